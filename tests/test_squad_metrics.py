"""The scores against numbers that the official programs print, and against cases worked out by hand.

The golden numbers come from other people's code run on the very inputs below: SQuAD 1.1 from the official
script as allennlp 0.9.0 ships it (`allennlp/tools/squad_eval.py`), SQuAD 2.0 from `squad_evaluate` in
transformers 4.46.3's `data/metrics/squad_metrics.py`, the official script as a library; KorQuAD from a
transcription of its `evaluate-v1.0.py`. On Python 3.11 they were equal to the bit; they are compared to 1e-12
because `sum` of floats differs in 3.12.
"""

from __future__ import annotations

import random

import pytest

from tasks.squad.metrics import korquad_v1, normalize_answer, normalize_korean_answer, squad_v1, squad_v2

# fmt: off
WORDS = [
    "the", "The", "a", "an", "A", "cat", "Cat", "sat,", "on",
    "U.S.", "mat.", "(1999)", "don't", "é", "É", "İ", "서울", "서울은",
    "《춘향전》", "\u2018한국\u2019", "\u201c인용\u201d", "「책」", "<b>", "$5", "-", "...", "and/or",
    "ﬁ", "Straße", "a-b", "the-",
]
# fmt: on

GOLDEN_V1 = {
    1: {"exact_match": 55.0, "f1": 35.164285714285725},
    2: {"exact_match": 47.0, "f1": 32.65238095238095},
    3: {"exact_match": 51.0, "f1": 32.91904761904762},
}
GOLDEN_KORQUAD = {
    1: {"exact_match": 51.5, "f1": 39.4909873505445},
    2: {"exact_match": 44.5, "f1": 39.484506644702996},
    3: {"exact_match": 48.0, "f1": 41.179655983851035},
}
GOLDEN_V2 = {
    (1, None): {
        "exact": 42.0,
        "f1": 43.51785714285713,
        "total": 200,
        "HasAns_exact": 38.59649122807018,
        "HasAns_f1": 41.2593984962406,
        "HasAns_total": 114,
        "NoAns_exact": 46.51162790697674,
        "NoAns_f1": 46.51162790697674,
        "NoAns_total": 86,
    },
    (2, 1.0): {
        "exact": 43.5,
        "f1": 45.20952380952381,
        "total": 200,
        "HasAns_exact": 26.16822429906542,
        "HasAns_f1": 29.36359590565198,
        "HasAns_total": 107,
        "NoAns_exact": 63.44086021505376,
        "NoAns_f1": 63.44086021505376,
        "NoAns_total": 93,
        "best_exact": 49.0,
        "best_exact_thresh": -2.84,
        "best_f1": 49.892857142857146,
        "best_f1_thresh": -0.9,
    },
    (3, -0.5): {
        "exact": 44.5,
        "f1": 45.50952380952381,
        "total": 200,
        "HasAns_exact": 15.044247787610619,
        "HasAns_f1": 16.831015592077538,
        "HasAns_total": 113,
        "NoAns_exact": 82.75862068965517,
        "NoAns_f1": 82.75862068965517,
        "NoAns_total": 87,
        "best_exact": 44.5,
        "best_exact_thresh": -0.38,
        "best_f1": 45.50952380952381,
        "best_f1_thresh": -0.38,
    },
}


def random_case(seed: int, *, unanswerable: float = 0.0) -> tuple[dict, dict, dict]:
    """References, predictions and null odds of 200 questions."""
    generator = random.Random(seed)

    def text() -> str:
        separator = " " if generator.random() < 0.9 else "\u3000"
        return separator.join(generator.choice(WORDS) for _ in range(generator.randrange(5)))

    references, predictions, odds = {}, {}, {}
    for number in range(200):
        answers = [text() for _ in range(generator.randrange(1, 4))]
        answers = [] if generator.random() < unanswerable else answers
        references[f"q{number}"] = answers
        predictions[f"q{number}"] = generator.choice([*answers, text(), text(), ""])
        odds[f"q{number}"] = round(generator.uniform(-3, 3), generator.choice([0, 2]))
    return references, predictions, odds


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_squad_v1_prints_the_official_numbers(seed: int) -> None:
    references, predictions, _ = random_case(seed)
    del predictions["q7"]
    assert squad_v1(references, predictions) == pytest.approx(GOLDEN_V1[seed], rel=1e-12)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_korquad_v1_prints_the_official_numbers(seed: int) -> None:
    references, predictions, _ = random_case(seed)
    del predictions["q7"]
    assert korquad_v1(references, predictions) == pytest.approx(GOLDEN_KORQUAD[seed], rel=1e-12)


@pytest.mark.parametrize(("seed", "threshold"), [(1, None), (2, 1.0), (3, -0.5)])
def test_squad_v2_prints_the_official_numbers(seed: int, threshold: float | None) -> None:
    references, predictions, odds = random_case(seed, unanswerable=0.4)
    scores = (
        squad_v2(references, predictions)
        if threshold is None
        else squad_v2(references, predictions, odds, threshold)
    )
    assert scores == pytest.approx(GOLDEN_V2[seed, threshold], rel=1e-12)


# Worked out by hand.


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("The  Cat,\tsat.", "cat sat"),
        ("an a the", ""),
        ("another theory", "another theory"),
        ("U.S.A.", "usa"),
        ("the-end", "theend"),  # punctuation goes before the articles: no word boundary is left
        ("É\u3000a É", "é é"),
        ("don\u2019t", "don\u2019t"),  # ASCII punctuation only
        ("", ""),
    ],
)
def test_normalize_answer(text: str, normalized: str) -> None:
    assert normalize_answer(text) == normalized


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("《춘향전》", "춘향전"),
        ("〈한국〉의 '역사'", "한국 의 역사"),
        ("서울(Seoul)", "서울 seoul"),
        ("\u2018가\u2019나", "가 나"),
        ("1,234.5%", "12345"),
        ("「책」", "「책」"),
        ("\u201c인용\u201d", "\u201c인용\u201d"),
        ("the A", "the a"),
    ],
)
def test_normalize_korean_answer(text: str, normalized: str) -> None:
    assert normalize_korean_answer(text) == normalized


def test_squad_v1_takes_the_best_answer_of_each_score() -> None:
    # "black cat" is neither answer; F1 is 2·1·(2/3)/(1+2/3) = 0.8 against the long one, 2/3 against "cat".
    assert squad_v1({"q": ["cat", "a big black cat"]}, {"q": "The black cat"}) == pytest.approx(
        {"exact_match": 0.0, "f1": 80.0}
    )


def test_squad_v1_counts_repeated_words_once_each() -> None:
    # Shared bag {new: 1}: precision 1/2, recall 1/3.
    assert squad_v1({"q": ["new york city"]}, {"q": "new new"})["f1"] == pytest.approx(40.0)


def test_a_missing_prediction_scores_zero_and_stays_in_the_mean() -> None:
    references = {"q1": ["x"], "q2": ["y"]}
    for score in (squad_v1, korquad_v1):
        assert score(references, {"q1": "x", "unknown": "y"}) == {"exact_match": 50.0, "f1": 50.0}


def test_squad_v1_two_texts_without_words_match_exactly_with_f1_zero() -> None:
    assert squad_v1({"q": ["The"]}, {"q": "..."}) == {"exact_match": 100.0, "f1": 0.0}


def test_korquad_counts_characters() -> None:
    # "서울특별시" against "서울시": 3 shared characters, precision 3/5, recall 3/3.
    assert korquad_v1({"q": ["서울시"]}, {"q": "서울 특별시"}) == pytest.approx({"exact_match": 0.0, "f1": 75.0})
    # SQuAD's F1 sees two different words.
    assert squad_v1({"q": ["서울시"]}, {"q": "서울특별시"})["f1"] == 0.0


def test_korquad_spaces_matter_to_exact_match_only() -> None:
    assert korquad_v1({"q": ["이 몽룡"]}, {"q": "이몽룡"}) == {"exact_match": 0.0, "f1": 100.0}


def test_squad_v2_empty_prediction_is_right_only_without_an_answer() -> None:
    scores = squad_v2({"yes": ["cat"], "no": []}, {"yes": "", "no": ""})
    assert scores == {
        "exact": 50.0,
        "f1": 50.0,
        "total": 2,
        "HasAns_exact": 0.0,
        "HasAns_f1": 0.0,
        "HasAns_total": 1,
        "NoAns_exact": 100.0,
        "NoAns_f1": 100.0,
        "NoAns_total": 1,
    }


def test_squad_v2_an_answer_that_normalises_to_nothing_expects_the_empty_text() -> None:
    assert squad_v2({"q": ["the"]}, {"q": ""})["HasAns_exact"] == 100.0
    assert squad_v2({"q": ["the", "cat"]}, {"q": ""})["HasAns_exact"] == 0.0


def test_squad_v2_has_no_part_without_questions() -> None:
    assert not any(key.startswith("NoAns") for key in squad_v2({"q": ["x"]}, {"q": "x"}))
    assert not any(key.startswith("HasAns") for key in squad_v2({"q": []}, {"q": ""}))


def test_squad_v2_threshold_blanks_above_it_and_needs_odds() -> None:
    references, predictions = {"q1": ["x"], "q2": []}, {"q1": "x", "q2": "y"}
    odds = {"q1": 1.0, "q2": 1.5}
    assert squad_v2(references, predictions, odds, 1.0)["exact"] == 100.0  # 1.0 does not exceed 1.0
    assert squad_v2(references, predictions, odds, 0.5)["exact"] == 50.0
    assert squad_v2(references, predictions, odds, 2.0)["exact"] == 50.0
    assert squad_v2(references, predictions, threshold=-5.0)["exact"] == 50.0


def test_squad_v2_best_threshold() -> None:
    # Nothing answered: 1 of 4 right. Then by rising odds: right (2), half right in F1 (2 / 2.5), wrong on an
    # unanswerable one (1 / 1.5), right (2 / 2.5): exact is best at -2.0, F1 at 0.5.
    references = {"a": ["x"], "b": ["y z w"], "c": [], "d": ["v"]}
    predictions = {"a": "x", "b": "y", "c": "u", "d": "v"}
    odds = {"d": 3.0, "c": 2.0, "b": 0.5, "a": -2.0}
    scores = squad_v2(references, predictions, odds)
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (50.0, -2.0)
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (62.5, 0.5)


def test_squad_v2_best_threshold_is_zero_when_answering_nothing_is_best() -> None:
    scores = squad_v2({"a": [], "b": ["x"]}, {"a": "u", "b": "v"}, {"a": -1.0, "b": -2.0})
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (50.0, 0.0)


def test_squad_v2_at_its_best_threshold_reaches_its_best_score() -> None:
    references, predictions, _ = random_case(4, unanswerable=0.4)
    # The official search holds a prediction such as "the" wrong where its score holds it empty, so right.
    predictions = {
        question_id: text if normalize_answer(text) else "" for question_id, text in predictions.items()
    }
    odds = {question_id: number / 7 - 10 for number, question_id in enumerate(references)}
    best = squad_v2(references, predictions, odds)
    again = squad_v2(references, predictions, odds, best["best_f1_thresh"])
    assert again["f1"] == pytest.approx(best["best_f1"])


@pytest.mark.parametrize("score", [squad_v1, korquad_v1, squad_v2])
def test_nothing_to_score_is_an_error(score) -> None:
    with pytest.raises(ValueError, match="no questions"):
        score({}, {"q": "x"})


def test_errors_name_the_question() -> None:
    with pytest.raises(ValueError, match="question q2 has no answer"):
        squad_v1({"q1": ["x"], "q2": []}, {})
    with pytest.raises(ValueError, match="1 of 2 questions have no prediction, first q2"):
        squad_v2({"q1": ["x"], "q2": []}, {"q1": "x"})
    with pytest.raises(ValueError, match="2 of 2 questions have no null odds, first q1"):
        squad_v2({"q1": ["x"], "q2": []}, {"q1": "x", "q2": ""}, {"other": 1.0})
