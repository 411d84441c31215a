"""Answers against google-research/bert `run_squad.py`, `write_predictions`; scores against official
programs."""

import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
from harness.google import google_s_answer
from harness.squad_files import open_windows, read_file, write_squad
from harness.texts import letters_tokenizer

from tasks.squad.answers import SpanDecoder, nbest_file
from tasks.squad.details import details
from tasks.squad.metrics import Score, separates_words, squad_v1, squad_v2
from tasks.squad.reading import Examples, Question
from tasks.squad.settings import AnswerSettings, WindowSettings

SETTINGS = WindowSettings(max_seq_length=20, doc_stride=5, max_query_length=6)


@pytest.fixture
def prepare(tmp_path, run):
    """Makes (context, question) pairs into a function: scores of the windows -> what the files of
    predictions hold; and the rows of the windows."""

    def prepare(pairs):
        path = write_squad(tmp_path / "dev.json", [(*pair, "", 0) for pair in pairs])
        examples = read_file(path, is_training=False, allow_impossible=True)
        ids = list(examples.references)
        tables = open_windows(SETTINGS, examples, letters_tokenizer(tmp_path), run)

        def answers(scores, version_2=False, **settings):
            decoder = SpanDecoder(AnswerSettings(**settings), version_2, tables)
            kept = [decoder.keep(*each) for each in enumerate(scores)]
            texts, entries, odds, starts, shares = zip(*decoder.results(kept), strict=True)
            text = nbest_file(dict(zip(ids, entries, strict=True)))
            nbest = json.loads(text)
            # as Google's script lays it out
            assert text == json.dumps(nbest, indent=4, ensure_ascii=False) + "\n"
            listed = [
                {entry["text"]: entry["probability"] for entry in each} for each in nbest.values()
            ]
            assert [each[text] for each, text in zip(listed, texts, strict=True)] == pytest.approx(
                shares, abs=0
            )
            for (context, _), answer, start in zip(pairs, texts, starts, strict=True):
                assert answer == "empty" or context.startswith(answer, start)
            return SimpleNamespace(predictions=[*texts], nbest=[*nbest.values()], null_odds=odds)

        return answers, tables["windows"].table.to_pylist()

    return prepare


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("version_2", [False, True])
@pytest.mark.parametrize(
    ("most", "longest", "threshold"), [(20, 30, 0.0), (3, 2, -4.0), (5, 1, 6.0)]
)
def test_answers_are_google_s(tmp_path, prepare, version_2, ties, most, longest, threshold):
    """Of contexts of 1 to 40 words of one or two tokens, with repetitions, so that texts
    coincide."""
    draw, pairs = np.random.default_rng(most + 2 * version_2 + ties), []
    for _ in range(60):
        lengths = draw.integers(1, 3, draw.integers(1, 40))
        context = " ".join("".join(draw.choice(list("abc"), length)) for length in lengths)
        pairs.append((context, "d e f"[: 2 * int(draw.integers(1, 4)) - 1]))
    (answers, rows), words = prepare(pairs), letters_tokenizer(tmp_path)
    scores, windows = [], [[] for _ in pairs]
    for row in rows:
        offset = row["question_tokens"]
        score = (5 * draw.normal(size=(len(row["input_ids"]), 2))).astype(np.float32)
        score[0] += 20 * (row["question"] % 2)  # for every other question no answer is likely
        scores.append(np.round(score) if ties else score)
        starts, ends = scores[-1].astype(float).T.tolist()
        tokens = words.pieces(row["input_ids"][offset:-1])
        windows[row["question"]].append((starts, ends, tokens, offset, row["document_start"]))
    options = {
        "n_best_size": most,
        "max_answer_length": longest,
        "null_score_diff_threshold": threshold,
    }
    found = answers(scores, version_2, **options)
    for number, own in enumerate(windows):
        prediction, nbest, probabilities, odds = google_s_answer(
            own, most, longest, version_2, threshold
        )
        assert found.predictions[number] == prediction
        assert [(e["text"], e["start_logit"], e["end_logit"]) for e in found.nbest[number]] == nbest
        assert [e["probability"] for e in found.nbest[number]] == pytest.approx(
            probabilities, rel=1e-12
        )
        assert version_2 or found.null_odds[number] is None
        if odds is not None:  # (a - b) - c against a - (b + c), in float64
            assert found.null_odds[number] == pytest.approx(odds, rel=1e-12, abs=1e-12)
    assert sum(len(own) > 1 for own in windows) > 10
    # the threshold decides both ways
    assert not version_2 or 0 < found.predictions.count("") < len(pairs)


CUT = [  # context, first and last token, the text
    ("ab  Cd\u202fE\u0301f\tg", 0, 3, "ab  Cd"),
    ("ab  Cd\u202fE\u0301b f", 4, 5, "E\u0301b"),
    ("a \u00e9\u00e8 \ud55c a", 1, 2, "\u00e9\u00e8"),
    ("a \U0001f600! b", 1, 1, "\U0001f600"),
    ("a cafe\u0301 b", 1, 4, "cafe\u0301"),
    ("a cafe\u0301", 4, 4, "e\u0301"),
    ("a b\u0301\ufe0f. c", 1, 1, "b\u0301\ufe0f"),
    ("a\x07b c", 0, 1, "a\x07b"),
]


def test_answers_are_cut_from_the_context(prepare):
    """What get_final_text is for: the answer as it stands there, case, accents, white space and
    all."""
    answers, rows = prepare([(context, "a") for context, *_ in CUT])
    scores = [np.zeros((len(row["input_ids"]), 2), np.float32) for row in rows]
    for score, row, (_, start, end, _) in zip(scores, rows, CUT, strict=True):
        score[row["question_tokens"] + start, 0] = score[row["question_tokens"] + end, 1] = 5
    assert answers(scores).predictions == [text for *_, text in CUT]


def test_no_possible_answer(prepare):
    """The best start and end are the question's: Google's script crashes in v2 form, ours answers
    nothing."""
    answers, rows = prepare([("a b c", "d e"), ("\x07", "d")])
    scores = [np.zeros((len(row["input_ids"]), 2), np.float32) for row in rows]
    for score in scores:
        score[1] = 9
    found = answers(scores, n_best_size=1)
    assert found.predictions == ["empty", "empty"]
    assert found.nbest[0] == [
        {"text": "empty", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0}
    ]
    found = answers(scores, version_2=True, n_best_size=1)
    assert found.predictions == ["", ""]
    assert [entry["text"] for entry in found.nbest[1]] == [""]
    assert 1e6 < found.null_odds[0] < np.inf


# -- scores ----------------------------------------------------------------------------------------

# The numbers come from other people's code run on the very inputs below: SQuAD 1.1 from allennlp
# 0.9.0's `squad_eval.py`, 2.0 from transformers 4.46.3's `squad_metrics.py`, both the official
# scripts; KorQuAD from a transcription of its `evaluate-v1.0.py`. Compared to 1e-12, because `sum`
# of floats differs in Python 3.12.
WORDS = (
    "the The a an A cat Cat sat, on U.S. mat. (1999) don't é É İ 서울 서울은 《춘향전》"
    " \u2018한국\u2019 \u201c인용\u201d 「책」 <b> $5 - ... and/or ﬁ Straße a-b the-"
)
# Of seed 1:
GOLDEN_V1 = {
    "word": {"exact_match": 55.0, "f1": 35.164285714285725},
    "korquad_v1": {"exact_match": 51.5, "f1": 39.4909873505445},
}
GOLDEN_V2 = {
    "exact": 42.0,
    "f1": 43.51785714285713,
    "total": 200,
    "HasAns_exact": 38.59649122807018,
    "HasAns_f1": 41.2593984962406,
    "HasAns_total": 114,
    "NoAns_exact": 46.51162790697674,
    "NoAns_f1": 46.51162790697674,
    "NoAns_total": 86,
}
BEST = ("best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh")
GOLDEN_BEST = {
    2: (49.0, -2.84, 49.892857142857146, -0.9),
    3: (44.5, -0.38, 45.50952380952381, -0.38),
}


def random_case(seed, unanswerable=0.0):
    """References, predictions and null odds of 200 questions."""
    generator, words = random.Random(seed), WORDS.split()

    def text():
        separator = " " if generator.random() < 0.9 else "\u3000"
        return separator.join(generator.choice(words) for _ in range(generator.randrange(5)))

    references, predictions, odds = {}, {}, {}
    for number in range(200):
        answers = [text() for _ in range(generator.randrange(1, 4))]
        answers = [] if generator.random() < unanswerable else answers
        references[f"q{number}"] = answers
        predictions[f"q{number}"] = generator.choice([*answers, text(), text(), ""])
        odds[f"q{number}"] = round(generator.uniform(-3, 3), generator.choice([0, 2]))
    return references, predictions, odds


@pytest.mark.parametrize(("unit", "golden"), GOLDEN_V1.items())
def test_v1_prints_the_official_numbers(unit, golden):
    references, predictions, _ = random_case(1)
    del predictions["q7"]
    assert squad_v1(references, predictions, unit)[0] == pytest.approx(golden, rel=1e-12)


def test_v2_prints_the_official_numbers():
    scores = squad_v2(*random_case(1, unanswerable=0.4))[0]
    assert {name: scores[name] for name in GOLDEN_V2} == pytest.approx(GOLDEN_V2, rel=1e-12)
    for seed, golden in GOLDEN_BEST.items():
        scores = squad_v2(*random_case(seed, unanswerable=0.4))[0]
        assert [scores[name] for name in BEST] == pytest.approx(golden, rel=1e-12)
    scores = squad_v2({"a": [], "b": ["x"]}, {"a": "u", "b": "v"}, {"a": -1.0, "b": -2.0})[0]
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (50.0, 0.0)  # answering nothing is best


def test_the_score_by_characters():
    """Of Han characters that of MLQA's `mlqa_evaluation_v1.py` for Chinese, worked out by its
    rules."""
    answers = {  # by predictions
        "北京": "北京。",
        "一九九四年夏": "一九九五年",
        "กรุงเทพมหานคร": "กรุงเทพ",
        "東京タワー": "東京「タワー」",
        "ไม่": "สวย",
    }
    references = {text: [answer] for text, answer in answers.items()}
    predictions = {text: text for text in answers}
    scores, each = squad_v1(references, predictions, "character")
    assert [score.exact for score in each.values()] == [1, 0, 0, 1, 0]
    # Shared characters 4 of 6 and of 5; 7 of 13 and of 7 (the vowel signs count).
    f1 = [score.f1 for score in each.values()]
    assert f1 == pytest.approx([1, 8 / 11, 14 / 20, 1, 0])
    assert scores["exact_match"] == 40
    words = [score.f1 for score in squad_v1(references, predictions)[1].values()]
    assert words[1:3] == [0, 0]
    odds = dict.fromkeys(references, 0.0)
    version_2 = squad_v2(references, predictions, odds, "character")[0]
    assert version_2["f1"] == pytest.approx(scores["f1"])


def test_texts_without_blanks_are_told():
    assert separates_words(
        ["the cat sat", "Donaudampfschifffahrtsgesellschaft ist ein Wort", "수도는 서울이다"]
    )
    assert not separates_words(["北京是中國的首都。上海在北京的南邊，我們去過北京兩次。"])
    assert not separates_words(["เมืองใหญ่คือกรุงเทพและเมืองเล็ก คือเชียงใหม่ซึ่งสวยมาก"])


@pytest.mark.parametrize(
    ("context", "ends", "groups"),
    [
        ("the old town is here", (3, 7, 15), ["1 word", "2 words", "3 to 4"]),
        ("กรุงเทพมหานครเป็นเมืองหลวง", (2, 4, 13), ["1 or 2 characters", "3 to 4", "9 to 16"]),
    ],
)
def test_an_answer_is_as_long_as_its_words_or_in_texts_without_blanks_its_characters(
    context, ends, groups
):
    """The page's table, of an English text and a Thai one."""
    answers = [context[:end] for end in ends]
    questions = [Question(text, "?", 0, ((text, 0),)) for text in answers]
    scores = dict.fromkeys(answers, Score(1.0, 1.0))
    sections = details(Examples("", [context], questions), scores)
    (table,) = [each for each in sections if each["title"] == "By length of the answer"]
    assert table["rows"] == [[group, 1, "100.00", "100.00"] for group in groups]


def test_scores_are_means_of_the_questions_with_a_question_word():
    """The page's tables; those without an answer are the last of the lengths."""
    asked = ["Who is it?", "Is it whole?", "in what town", "What for?"]
    answers = ((("a", 0),), (("a b", 0),), (("a", 0),), ())
    questions = []
    for text, answer in zip(asked, answers, strict=True):
        questions.append(Question(text, text, 0, answer))
    scored = [Score(1.0, 1.0), Score(0.0, 0.5), Score(0.0, 0.0), Score(0.0, 0.25)]
    scores = dict(zip(asked, scored, strict=True))
    by_word, by_length = details(Examples("", ["a b"], questions), scores)
    assert by_word["title"] == "By question word"
    assert by_word["rows"] == [
        ["what", 2, "0.00", "12.50"],
        ["who", 1, "100.00", "100.00"],
        ["other", 1, "0.00", "50.00"],
    ]
    assert by_length["rows"] == [
        ["1 word", 2, "50.00", "50.00"],
        ["2 words", 1, "0.00", "50.00"],
        ["no answer", 1, "0.00", "25.00"],
    ]
