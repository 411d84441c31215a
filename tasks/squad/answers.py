"""From start and end scores of windows to answers, by Google's rules (google-research/bert `run_squad.py`)."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distributed.rows import Rows
from tasks.squad.windows import Examples

NO_ANSWER = "empty"  # what run_squad.py writes where no span is possible
MOST_NULL_ODDS = 1e9


@dataclass(frozen=True)
class Answers:
    """What the prediction files hold: question id -> answer, n-best list, null score difference."""

    predictions: dict[str, str]
    nbest: dict[str, list[dict[str, object]]]
    null_odds: dict[str, float]


@dataclass(frozen=True)
class _Candidate:
    start_score: float
    end_score: float
    text: str

    @property
    def score(self) -> float:
        return self.start_score + self.end_score


def find_answers(
    examples: Examples,
    windows: Rows,
    paragraphs: Rows,
    scores: Sequence[np.ndarray],
    *,
    n_best_size: int,
    max_answer_length: int,
    version_2: bool,
    null_score_diff_threshold: float,
) -> Answers:
    """The best answers of each question over its windows.

    Args:
      scores: for each window float32 [tokens, 2], start and end scores of its tokens without padding.
    """
    head_lengths, starts = windows.column("question_tokens"), windows.column("document_start")
    spans, span_offsets = paragraphs.column("spans")
    windows_of: dict[int, list[int]] = defaultdict(list)
    for window, question in enumerate(windows.column("question")):
        windows_of[int(question)].append(window)
    answers = Answers({}, {}, {})
    for number, question in enumerate(examples.questions):
        p = question.paragraph
        token_spans = spans[span_offsets[p] : span_offsets[p + 1]].reshape(-1, 2)
        context = examples.paragraphs[p]
        mine = windows_of[number]
        lengths = [len(scores[w]) - int(head_lengths[w]) - 1 for w in mine]
        owners = max_context_owner([int(starts[w]) for w in mine], lengths, len(token_spans))
        found: list[tuple[float, float, int, int]] = []
        null_score, null = math.inf, _Candidate(0.0, 0.0, "")
        for index, window in enumerate(mine):
            score, head, first = scores[window], int(head_lengths[window]), int(starts[window])
            if float(score[0, 0]) + float(score[0, 1]) < null_score:
                null = _Candidate(float(score[0, 0]), float(score[0, 1]), "")
                null_score = null.score
            best_ends = best_indexes(score[:, 1], n_best_size)
            for start in best_indexes(score[:, 0], n_best_size):
                begin = start - head + first
                if start < head or start >= head + lengths[index] or owners[begin] != index:
                    continue
                for end in best_ends:
                    if start <= end < min(start + max_answer_length, head + lengths[index]):
                        found.append((float(score[start, 0]), float(score[end, 1]), begin, end - head + first))
        if version_2:
            found.append((null.start_score, null.end_score, -1, -1))
        found.sort(key=lambda entry: entry[0] + entry[1], reverse=True)
        candidates: list[_Candidate] = []
        seen = set()
        for start_score, end_score, begin, end in found:
            if len(candidates) >= n_best_size:
                break
            text = context[token_spans[begin, 0] : token_spans[end, 1]] if begin >= 0 else ""
            if text not in seen:
                seen.add(text)
                candidates.append(_Candidate(start_score, end_score, text))
        if version_2 and "" not in seen:
            candidates.append(null)
        _record(answers, question.id, candidates, null, version_2, null_score_diff_threshold)
    return answers


def _record(
    answers: Answers, id_: str, candidates: list[_Candidate], null: _Candidate, version_2: bool, threshold: float
):
    best = next((candidate for candidate in candidates if candidate.text), None)
    if version_2:
        # Without any candidate Google's script crashes; the answer is then certainly null.
        difference = null.score - best.score if best else MOST_NULL_ODDS
        answers.null_odds[id_] = difference
        answers.predictions[id_] = best.text if best and difference <= threshold else ""
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
    """For each token of a context the window that shows most context on both sides of it:
    the largest min(left, right) + 0.01 * length of the window, the first one on ties (`_check_is_max_context`)."""
    best = np.full(num_tokens, -np.inf)
    owner = np.zeros(num_tokens, np.int64)
    for index, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        place = np.arange(length)
        score = np.minimum(place, length - 1 - place) + 0.01 * length
        better = score > best[start : start + length]
        best[start : start + length][better] = score[better]
        owner[start : start + length][better] = index
    return owner


def best_indexes(scores: np.ndarray, most: int) -> list[int]:
    """Indices of the highest scores, highest first, the earlier one first on ties."""
    return np.argsort(-scores, kind="stable")[:most].tolist()


def softmax(scores: Sequence[float]) -> list[float]:
    """Probabilities from scores."""
    highest = max(scores)
    weights = [math.exp(score - highest) for score in scores]
    return [weight / sum(weights) for weight in weights]
