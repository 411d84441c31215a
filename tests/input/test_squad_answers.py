"""Answers from scores against google-research/bert `run_squad.py`, `write_predictions`, written out below."""

import collections
import json
import math

import numpy as np
import pytest
from harness.squad_files import find_answers, open_windows, read_file
from harness.texts import write_vocabulary

from bert.text import tokenizer
from tasks.squad.settings import AnswerSettings, WindowSettings

LETTERS = "abcdefghijkl"
SETTINGS = WindowSettings(max_seq_length=20, doc_stride=5, max_query_length=6, allow_unknown=True)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A tokenizer that knows twelve letters."""
    vocabulary = write_vocabulary(tmp_path_factory.mktemp("words"), *LETTERS, *(f"##{c}" for c in LETTERS))
    return tokenizer.load(str(vocabulary))


def prepare(words, folder, run, entries):
    """Examples and their windows of (context, question) pairs."""
    paragraphs = [
        {"context": context, "qas": [{"id": f"q{number}", "question": question, "answers": []}]}
        for number, (context, question) in enumerate(entries)
    ]
    path = folder / "dev.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}), encoding="utf-8")
    examples = read_file(path, is_training=False, allow_impossible=True)
    return examples, *open_windows(SETTINGS, examples, words, folder / "cache", run)


def random_entries(generator, count: int) -> list[tuple[str, str]]:
    """Contexts of 1 to 40 words of one or two tokens, with repetitions, so that texts coincide."""
    entries = []
    for _ in range(count):
        lengths = generator.integers(1, 3, generator.integers(1, 40))
        context = " ".join("".join(generator.choice(list("abc"), length)) for length in lengths)
        entries.append((context, "d e f"[: 2 * int(generator.integers(1, 4)) - 1]))
    return entries


def random_scores(generator, windows, ties: bool) -> list[np.ndarray]:
    lengths = np.diff(windows.column("input_ids")[1])
    scores = [(5 * generator.normal(size=(n, 2))).astype(np.float32) for n in lengths]
    for score, question in zip(scores, windows.column("question"), strict=True):
        score[0] += 20 * (question % 2)  # for every other question no answer is likely
    return [np.round(score) for score in scores] if ties else scores


# -- google-research/bert run_squad.py: write_predictions ---------------------------------------------------------


def google_s_is_max_context(doc_spans, cur_span_index, position) -> bool:
    best_score, best_span_index = None, None
    for span_index, (start, length) in enumerate(doc_spans):
        end = start + length - 1
        if position < start or position > end:
            continue
        score = min(position - start, end - position) + 0.01 * length
        if best_score is None or score > best_score:
            best_score, best_span_index = score, span_index
    return cur_span_index == best_span_index


def google_s_best_indexes(logits, n_best_size):
    index_and_score = sorted(enumerate(logits), key=lambda x: x[1], reverse=True)
    return [index for index, _ in index_and_score[:n_best_size]]


def google_s_softmax(scores):
    exps = [math.exp(score - max(scores)) for score in scores]
    return [x / sum(exps) for x in exps]


Prelim = collections.namedtuple("Prelim", ["window", "start", "end", "start_logit", "end_logit"])


def google_s_answer(windows, n_best_size, max_answer_length, version_2, threshold):
    """Prediction, n-best list and null odds of one question.

    A window is (start logits, end logits, document tokens, number of tokens before them, first one's number).
    """
    doc_spans = [(first, len(texts)) for *_, texts, _, first in windows]
    prelims, score_null = [], 1000000
    null_start_logit = null_end_logit = 0
    for number, (starts, ends, texts, offset, first) in enumerate(windows):
        if version_2 and starts[0] + ends[0] < score_null:
            score_null = starts[0] + ends[0]
            null_start_logit, null_end_logit = starts[0], ends[0]
        for start_index in google_s_best_indexes(starts, n_best_size):
            for end_index in google_s_best_indexes(ends, n_best_size):
                in_document = range(offset, offset + len(texts))
                if start_index not in in_document or end_index not in in_document:
                    continue
                if not google_s_is_max_context(doc_spans, number, start_index - offset + first):
                    continue
                if end_index < start_index or end_index - start_index + 1 > max_answer_length:
                    continue
                prelims.append(Prelim(number, start_index, end_index, starts[start_index], ends[end_index]))
    if version_2:
        prelims.append(Prelim(0, 0, 0, null_start_logit, null_end_logit))
    prelims = sorted(prelims, key=lambda x: x.start_logit + x.end_logit, reverse=True)
    seen, nbest = set(), []
    for pred in prelims:
        if len(nbest) >= n_best_size:
            break
        text = ""
        if pred.start > 0:
            _, _, texts, offset, _ = windows[pred.window]
            text = " ".join(texts[pred.start - offset : pred.end - offset + 1]).replace(" ##", "")
            text = text.removeprefix("##")
            if text in seen:
                continue
        seen.add(text)
        nbest.append((text, pred.start_logit, pred.end_logit))
    if version_2 and "" not in seen:
        nbest.append(("", null_start_logit, null_end_logit))
    if not nbest:
        nbest.append(("empty", 0.0, 0.0))
    best_non_null = next((entry for entry in nbest if entry[0]), None)
    probabilities = google_s_softmax([start + end for _, start, end in nbest])
    if not version_2:
        return nbest[0][0], nbest, probabilities, None
    if best_non_null is None:  # Google's script crashes here
        return "", nbest, probabilities, None
    difference = score_null - best_non_null[1] - best_non_null[2]
    return "" if difference > threshold else best_non_null[0], nbest, probabilities, difference


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
def test_answers_are_google_s(words, tmp_path, run, version_2, ties, n_best_size, max_answer_length, threshold):
    generator = np.random.default_rng(n_best_size + 2 * version_2 + ties)
    examples, windows, paragraphs = prepare(words, tmp_path, run, random_entries(generator, 60))
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


def one_answer(words, folder, run, context, start, end, version_2=False, **settings):
    """The prediction when the scores of these tokens of the context are highest."""
    examples, windows, paragraphs = prepare(words, folder, run, [(context, "a")])
    row = windows.table.to_pylist()[0]
    scores = np.zeros((len(row["input_ids"]), 2), np.float32)
    scores[row["question_tokens"] + start, 0] = scores[row["question_tokens"] + end, 1] = 5
    return find_answers(AnswerSettings(**settings), version_2, examples, windows, paragraphs, [scores])


@pytest.mark.parametrize(
    ("context", "start", "end", "text"),
    [
        ("ab  Cd\u202fE\u0301f\tg", 0, 3, "ab  Cd"),
        ("ab  Cd\u202f\u00c9b f", 2, 5, "Cd\u202f\u00c9b"),
        ("ab  Cd\u202fE\u0301b f", 4, 5, "E\u0301b"),
        ("a \u00e9\u00e8 \ud55c a", 1, 2, "\u00e9\u00e8"),
        ("a \U0001f600! b", 1, 1, "\U0001f600"),
        ("a\x07b c", 0, 1, "a\x07b"),
        ("ABC", 1, 1, "B"),
    ],
)
def test_answers_are_cut_from_the_context(words, tmp_path, run, context, start, end, text):
    """What get_final_text is for: the answer as it stands there, case, accents, white space and all."""
    assert one_answer(words, tmp_path, run, context, start, end).predictions["q0"] == text


def test_no_possible_answer(words, tmp_path, run):
    """The best start and end are the question's: Google's script crashes in v2 form, ours answers nothing."""
    examples, windows, paragraphs = prepare(words, tmp_path, run, [("a b c", "d e"), ("\x07", "d")])
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


def test_above_the_threshold_the_answer_is_empty(words, tmp_path, run):
    """The null odds are null score minus best score."""
    for threshold, text in ((-10.5, ""), (-10.0, "b"), (0.0, "b")):
        settings = {"version_2": True, "null_score_diff_threshold": threshold}
        answers = one_answer(words, tmp_path, run, "a b", 1, 1, **settings)
        assert answers.null_odds == {"q0": -10.0}
        assert answers.predictions == {"q0": text}
        assert answers.nbest["q0"][0]["text"] == "b"
