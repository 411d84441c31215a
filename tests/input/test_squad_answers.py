"""Answers from scores against google-research/bert `run_squad.py`, `write_predictions`."""

import collections
import json

import numpy as np
import pytest
from harness.google_data import google_s_answer, google_s_is_max_context
from harness.squad_files import find_answers, open_windows, random_entries, random_scores, read_file, write_squad
from harness.texts import write_vocabulary

from bert.text import tokenizer
from tasks.squad.answers import max_context_owner
from tasks.squad.settings import AnswerSettings, WindowSettings
from tasks.squad.windows import window_starts

LETTERS = "abcdefghijkl"
SETTINGS = WindowSettings(max_seq_length=20, doc_stride=5, max_query_length=6, allow_unknown=True)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A tokenizer that knows twelve letters."""
    vocabulary = write_vocabulary(tmp_path_factory.mktemp("words"), *LETTERS, *(f"##{c}" for c in LETTERS))
    return tokenizer.load(str(vocabulary))


@pytest.fixture
def prepare(words, tmp_path, run):
    """Makes examples and their windows of (context, question) pairs."""

    def prepare(pairs):
        path = write_squad(tmp_path / "dev.json", [(*pair, "", 0) for pair in pairs])
        examples = read_file(path, is_training=False, allow_impossible=True)
        return examples, *open_windows(SETTINGS, examples, words, run)

    return prepare


def google_s_windows(words, rows, scores):
    """The windows of each question."""
    windows = collections.defaultdict(list)
    for row, score in zip(rows.table.to_pylist(), scores, strict=True):
        offset = row["question_tokens"]
        starts, ends = score.astype(float).T.tolist()
        entry = (starts, ends, words.pieces(row["input_ids"][offset:-1]), offset, row["document_start"])
        windows[row["question"]].append(entry)
    return windows


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("version_2", [False, True])
@pytest.mark.parametrize(
    ("n_best_size", "max_answer_length", "threshold"), [(20, 30, 0.0), (3, 2, -4.0), (5, 1, 6.0)]
)
def test_answers_are_google_s(words, prepare, version_2, ties, n_best_size, max_answer_length, threshold):
    generator = np.random.default_rng(n_best_size + 2 * version_2 + ties)
    examples, windows, paragraphs = prepare(random_entries(generator, 60))
    scores = random_scores(generator, windows, ties)
    settings = AnswerSettings(
        n_best_size=n_best_size, max_answer_length=max_answer_length, null_score_diff_threshold=threshold
    )
    answers = find_answers(settings, version_2, examples, windows, paragraphs, scores)
    by_question = google_s_windows(words, windows, scores)
    without = 0
    for number, question in enumerate(examples.questions):
        prediction, nbest, probabilities, difference = google_s_answer(
            by_question[number], n_best_size, max_answer_length, version_2, threshold
        )
        found = answers.nbest[question.id]
        without += prediction == ""
        assert answers.predictions[question.id] == prediction
        assert [(e["text"], e["start_logit"], e["end_logit"]) for e in found] == nbest
        assert [e["probability"] for e in found] == pytest.approx(probabilities, rel=1e-12)
        if difference is not None:
            # (a - b) - c against a - (b + c), in float64
            assert answers.null_odds[question.id] == pytest.approx(difference, rel=1e-12, abs=1e-12)
    assert sum(len(own) > 1 for own in by_question.values()) > 10
    assert version_2 == bool(answers.null_odds)
    assert not version_2 or 0 < without < len(examples.questions)  # the threshold decides both ways


@pytest.mark.parametrize(
    ("context", "start", "end", "text"),
    [
        ("ab  Cd\u202fE\u0301f\tg", 0, 3, "ab  Cd"),
        ("ab  Cd\u202fE\u0301b f", 4, 5, "E\u0301b"),
        ("a \u00e9\u00e8 \ud55c a", 1, 2, "\u00e9\u00e8"),
        ("a \U0001f600! b", 1, 1, "\U0001f600"),
        ("a\x07b c", 0, 1, "a\x07b"),
    ],
)
def test_answers_are_cut_from_the_context(prepare, context, start, end, text):
    """What get_final_text is for: the answer as it stands there, case, accents, white space and all."""
    examples, windows, paragraphs = prepare([(context, "a")])
    row = windows.table.to_pylist()[0]
    scores = np.zeros((len(row["input_ids"]), 2), np.float32)
    scores[row["question_tokens"] + start, 0] = scores[row["question_tokens"] + end, 1] = 5
    answers = find_answers(AnswerSettings(), False, examples, windows, paragraphs, [scores])
    assert answers.predictions["q0"] == text


def test_no_possible_answer(prepare):
    """The best start and end are the question's: Google's script crashes in v2 form, ours answers nothing."""
    examples, windows, paragraphs = prepare([("a b c", "d e"), ("\x07", "d")])
    scores = [np.zeros((len(row["input_ids"]), 2), np.float32) for row in windows.table.to_pylist()]
    for score in scores:
        score[1] = 9
    settings = AnswerSettings(n_best_size=1)
    answers = find_answers(settings, False, examples, windows, paragraphs, scores)
    assert answers.predictions == {"q0": "empty", "q1": "empty"}
    assert answers.nbest["q0"] == [{"text": "empty", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0}]
    answers = find_answers(settings, True, examples, windows, paragraphs, scores)
    assert answers.predictions == {"q0": "", "q1": ""}
    assert [entry["text"] for entry in answers.nbest["q1"]] == [""]
    assert answers.null_odds["q0"] > 1e6
    json.dumps(answers.null_odds, allow_nan=False)


def test_a_token_belongs_to_the_window_that_google_chooses():
    """Its score is min(left, right) + 0.01 * length: the last window is often shorter than the others."""
    draw = np.random.default_rng(2)
    for _ in range(20):
        num_tokens, room, stride = (int(x) for x in draw.integers([1, 1, 50], [900, 381, 150]))
        spans = [(start, min(room, num_tokens - start)) for start in window_starts(num_tokens, room, stride)]
        owners = max_context_owner(*zip(*spans, strict=True), num_tokens)
        assert all(google_s_is_max_context(spans, owner, token) for token, owner in enumerate(owners))
