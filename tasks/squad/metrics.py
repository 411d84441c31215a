"""The official scores of SQuAD 1.1, SQuAD 2.0 and KorQuAD 1.0.

Each function gives exactly the numbers that the official script prints (`evaluate-v1.1.py`,
`evaluate-v2.0.py` of rajpurkar.github.io/SQuAD-explorer, `evaluate-v1.0.py` of korquad.github.io),
because it does the same operations in the same order. `references` has the texts of a question's
answers by its id, none if it has no answer.
"""

import re
import string
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import regex

Unit = Literal["word", "korquad_v1", "character"]  # what F1 counts, after which normalization
References = Mapping[str, Sequence[str]]
Predictions = Mapping[str, str]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_PUNCTUATION_OF_ANY_SCRIPT = regex.compile(r"\p{P}")
MAIN_OF_V2 = "exact", "f1", "HasAns_f1", "NoAns_f1"  # come first
# Texts whose runs between blanks are longer than this on average separate no words: English has 6,
# German 7.
LONGEST_MEAN_WORD = 15
# KorQuAD: quotes and brackets separate words; other ASCII punctuation is removed, and 「」 and
# U+201C stay.
_KORQUAD_PUNCTUATION = _WITHOUT_PUNCTUATION | str.maketrans(
    dict.fromkeys("'\"()<>《》〈〉\u2018\u2019", " ")
)


class Score(NamedTuple):
    """Of a question, from 0 to 1."""

    exact: float
    f1: float


# those of the script, and those of each question
AllScores = tuple[dict[str, float], dict[str, Score]]


def squad_v1(references: References, predictions: Predictions, unit: Unit = "word") -> AllScores:
    """`exact_match` and `f1` in percent, as `evaluate-v1.1.py` prints them.

    The unit `korquad_v1` gives those of KorQuAD's `evaluate-v1.0.py`, whose F1 counts characters,
    because particles are attached to Korean words. `character` is for texts without blanks: it
    counts characters too, and leaves out the punctuation of every script, as MLQA's
    `mlqa_evaluation_v1.py` does for Chinese.

    The score of a question is the best over its answers, and 0 if it is missing from `predictions`.
    Two texts that are both empty after normalisation match exactly but have an F1 of 0.
    """
    each = {}
    for id_, answers in references.items():
        if id_ in predictions:
            each[id_] = score_v1(answers, predictions[id_], unit)
    exact, f1 = percent(each.values(), len(references))
    return {"exact_match": exact, "f1": f1}, each


def score_v1(answers: Sequence[str], prediction: str, unit: Unit) -> Score:
    """The score of one question by the rules of `squad_v1`."""
    predicted = normalized(prediction, unit)
    expected = [normalized(answer, unit) for answer in dict.fromkeys(answers)]  # many are equal
    return Score(float(predicted in expected), _best_f1(expected, predicted, unit))


def score_v2(answers: Sequence[str], prediction: str, unit: Unit) -> Score:
    """The score of one question by the rules of `squad_v2`."""
    # Answers that are empty after normalisation do not count; without answers the empty text is
    # expected.
    not_empty = filter(None, (normalized(answer, unit) for answer in answers))
    expected = [*not_empty] or [[]]
    predicted = normalized(prediction, unit)
    exact = float(predicted in expected)
    # If a text has no token, F1 is 1 if both have none, else 0.
    return Score(exact, _best_f1(expected, predicted, unit) if predicted else exact)


def squad_v2(
    references: References,
    predictions: Predictions,
    null_odds: Mapping[str, float],
    unit: Unit = "word",
) -> AllScores:
    """Scores in percent and totals, as `evaluate-v2.0.py` prints them without `--na-prob-thresh`.

    `best_exact` and `best_f1` are those with the thresholds that give them: a question whose odds
    (null_odds.json) exceed the threshold is answered with "". The keys `HasAns_…` and `NoAns_…`
    exist if there are such questions.
    """
    each = {}
    groups: dict[str, list[Score]] = {"": [], "HasAns_": [], "NoAns_": []}
    for id_, answers in references.items():
        score = each[id_] = score_v2(answers, predictions[id_], unit)
        groups[""].append(score)
        groups["HasAns_" if answers else "NoAns_"].append(score)
    result = {}
    for prefix, scores in groups.items():
        if scores:
            result[f"{prefix}exact"], result[f"{prefix}f1"] = percent(scores, len(scores))
            result[f"{prefix}total"] = len(scores)
    for name in Score._fields:
        of_name = {id_: getattr(score, name) for id_, score in each.items()}
        best, threshold = _best_threshold(references, predictions, of_name, null_odds)
        result[f"best_{name}"] = best
        result[f"best_{name}_thresh"] = threshold
    main_scores = {name: result[name] for name in MAIN_OF_V2 if name in result}
    return main_scores | result, each


def percent(scores: Collection[Score], total: int) -> tuple[float, float]:
    """The sums of `exact` and `f1` as shares of a total, in percent."""
    exact = 100.0 * sum(score.exact for score in scores) / total
    return exact, 100.0 * sum(score.f1 for score in scores) / total


def normalized(text: str, unit: Unit) -> list[str]:
    """What stands between blanks, in lower case and without the punctuation that `unit` leaves out,
    and for "word" without English articles."""
    if unit == "korquad_v1":
        return text.lower().translate(_KORQUAD_PUNCTUATION).split()
    text = text.lower().translate(_WITHOUT_PUNCTUATION)
    if unit == "character":
        return _PUNCTUATION_OF_ANY_SCRIPT.sub("", text).split()
    return _ARTICLES.sub(" ", text).split()


def separates_words(texts: Iterable[str]) -> bool:
    """Whether blanks stand between the words of these texts, as they do not in Chinese, Japanese or
    Thai."""
    lengths = [len(run) for text in texts for run in text.split()]
    return not lengths or sum(lengths) / len(lengths) <= LONGEST_MEAN_WORD


def _best_f1(expected: Sequence[list[str]], predicted: list[str], unit: Unit) -> float:
    """The best F1 of the predicted words over the expected ones, of their characters unless `unit`
    is "word"."""
    if unit != "word":
        predicted = list("".join(predicted))
        expected = [list("".join(words)) for words in expected]
    return max(_f1(words, predicted) for words in expected)


def _f1(expected: list[str], predicted: list[str]) -> float:
    """2·P·R/(P+R) over the two multisets; 0 if they share nothing, also if both are empty."""
    shared = sum((Counter(predicted) & Counter(expected)).values())
    if shared == 0:
        return 0.0
    precision = shared / len(predicted)
    recall = shared / len(expected)
    return (2 * precision * recall) / (precision + recall)


def _best_threshold(
    references: References,
    predictions: Predictions,
    scores: Mapping[str, float],
    odds: Mapping[str, float],
) -> tuple[float, float]:
    """The best score in percent, and the threshold of the odds that gives it (`find_best_thresh`).

    Starts with "" as every answer and accepts one prediction after the other, by rising odds: as in
    the official script, perhaps not all predictions of equal odds.
    """
    current: float = sum(not answers for answers in references.values())
    best = current
    threshold = 0.0
    for id_ in sorted(references, key=odds.__getitem__):
        if references[id_]:
            current += scores[id_]
        elif predictions[id_]:
            current -= 1
        if current > best:
            best = current
            threshold = odds[id_]
    return 100.0 * best / len(references), threshold
