"""From start and end scores of windows to answers, by Google's rules (google-research/bert `run_squad.py`)."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from distributed.rows import Rows
from tasks.squad.reading import Examples
from tasks.squad.settings import AnswerSettings

NO_ANSWER = "empty"  # written by run_squad.py when no span is possible
MAX_NULL_ODDS = 1e9


@dataclass(frozen=True)
class Answers:
    """The contents of the prediction files: question id -> answer, n-best list, null score difference."""

    predictions: dict[str, str]
    nbest: dict[str, list[dict[str, object]]]
    null_odds: dict[str, float]


class _Window(NamedTuple):
    """A window's scores [tokens, 2], and its part of the context: `length` tokens from token `first` of the
    context, after the first `head` tokens of the window."""

    scores: np.ndarray
    head: int
    first: int
    length: int

    @property
    def null(self) -> "_Candidate":
        return _Candidate(float(self.scores[0, 0]), float(self.scores[0, 1]), "")


class _Span(NamedTuple):
    """A possible answer: its scores, and its first and last token in the context."""

    start_score: float
    end_score: float
    first: int
    last: int


class _Candidate(NamedTuple):
    start_score: float
    end_score: float
    text: str

    @property
    def score(self) -> float:
        return self.start_score + self.end_score


def find_answers(
    settings: AnswerSettings,
    version_2: bool,
    examples: Examples,
    windows: Rows,
    paragraphs: Rows,
    scores: Sequence[np.ndarray],
) -> Answers:
    """The best answers of each question over its windows.

    Args:
      version_2: whether a question may have no answer (SQuAD v2.0).
      scores: for each window float32 [tokens, 2], the start and end scores of its tokens, without padding.
    """
    heads, firsts = windows.column("question_tokens"), windows.column("document_start")
    spans, offsets = paragraphs.column("spans")
    windows_of: dict[int, list[_Window]] = defaultdict(list)
    for score, head, first, question in zip(scores, heads, firsts, windows.column("question"), strict=True):
        window = _Window(score, int(head), int(first), len(score) - int(head) - 1)  # without its [SEP]
        windows_of[int(question)].append(window)
    answers = Answers({}, {}, {})
    for number, question in enumerate(examples.questions):
        paragraph = question.paragraph
        token_spans = spans[offsets[paragraph] : offsets[paragraph + 1]].reshape(-1, 2)
        spans_of_question = _spans(settings, windows_of[number], len(token_spans))
        null = min((window.null for window in windows_of[number]), key=lambda candidate: candidate.score)
        if version_2:
            spans_of_question.append(_Span(null.start_score, null.end_score, -1, -1))
        spans_of_question.sort(key=lambda span: span.start_score + span.end_score, reverse=True)
        candidates: dict[str, _Candidate] = {}
        for span in spans_of_question:
            if len(candidates) >= settings.n_best_size:
                break
            text = ""
            if span.first >= 0:
                text = examples.paragraphs[paragraph][token_spans[span.first, 0] : token_spans[span.last, 1]]
            candidates.setdefault(text, _Candidate(span.start_score, span.end_score, text))
        if version_2:
            candidates.setdefault("", null)
        _record(settings, answers, question.id, list(candidates.values()), null if version_2 else None)
    return answers


def _spans(settings: AnswerSettings, windows: Sequence[_Window], num_tokens: int) -> list[_Span]:
    """The spans between the best starts and the best ends of each window.

    A token counts as a start only in the window that owns it (`max_context_owner`).
    """
    owners = max_context_owner([w.first for w in windows], [w.length for w in windows], num_tokens)
    spans = []
    for index, (scores, head, first, length) in enumerate(windows):
        best_ends = best_indexes(scores[:, 1], settings.n_best_size)
        for start in best_indexes(scores[:, 0], settings.n_best_size):
            if not head <= start < head + length or owners[start - head + first] != index:
                continue
            stop = min(start + settings.max_answer_length, head + length)
            spans += [
                _Span(float(scores[start, 0]), float(scores[end, 1]), start - head + first, end - head + first)
                for end in best_ends
                if start <= end < stop
            ]
    return spans


def _record(
    settings: AnswerSettings, answers: Answers, id_: str, candidates: list[_Candidate], null: _Candidate | None
) -> None:
    """Adds a question's candidates, best first, to the answers; `null` is the null answer of SQuAD v2.0."""
    best = next((candidate for candidate in candidates if candidate.text), None)
    if null is not None:
        # Google's script crashes without a candidate; here the answer is then null.
        difference = null.score - best.score if best else MAX_NULL_ODDS
        answers.null_odds[id_] = difference
        answers.predictions[id_] = best.text if best and difference <= settings.null_score_diff_threshold else ""
    else:
        answers.predictions[id_] = best.text if best else NO_ANSWER
    listed = candidates or [_Candidate(0.0, 0.0, NO_ANSWER)]
    probabilities = softmax([candidate.score for candidate in listed])
    answers.nbest[id_] = [
        {
            "text": candidate.text,
            "probability": probability,
            "start_logit": candidate.start_score,
            "end_logit": candidate.end_score,
        }
        for candidate, probability in zip(listed, probabilities, strict=True)
    ]


def max_context_owner(starts: Sequence[int], lengths: Sequence[int], num_tokens: int) -> np.ndarray:
    """For each token of a context, the window with the most context around it: the one with the largest
    min(left, right) + 0.01 * length, and the first one on ties (run_squad.py `_check_is_max_context`)."""
    best = np.full(num_tokens, -np.inf)
    owner = np.zeros(num_tokens, np.int64)
    for index, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        place = np.arange(length)
        score = np.minimum(place, length - 1 - place) + 0.01 * length
        better = score > best[start : start + length]
        best[start : start + length][better] = score[better]
        owner[start : start + length][better] = index
    return owner


def best_indexes(scores: np.ndarray, number: int) -> list[int]:
    """The indices of the `number` highest scores, highest first; on ties the earlier one comes first."""
    return np.argsort(-scores, kind="stable")[:number].tolist()


def softmax(scores: Sequence[float]) -> list[float]:
    """Probabilities from scores."""
    highest = max(scores)
    weights = [math.exp(score - highest) for score in scores]
    total = sum(weights)
    return [weight / total for weight in weights]
