"""From the start and end scores of windows to answers, by Google's rules (google-research/bert `run_squad.py`)."""

import json
import math
from collections.abc import Sequence
from json.encoder import encode_basestring as _quoted  # in C
from typing import NamedTuple

import numpy as np

from distributed.rows import Rows
from tasks.squad.reading import Examples
from tasks.squad.settings import AnswerSettings

NO_ANSWER = "empty"  # written by run_squad.py when no span is possible
MAX_NULL_ODDS = 1e9


class Candidate(NamedTuple):
    """A text that may be the answer: `context[start:stop]`, or "" for the null answer, at 0."""

    start_score: float
    end_score: float
    text: str
    start: int = 0
    stop: int = 0

    @property
    def score(self) -> float:
        return self.start_score + self.end_score


class Candidates(NamedTuple):
    """The candidates of a question, with the highest scores first.

    `null` is the null answer if a question may have no answer (SQuAD v2.0), else None; it is among `listed`.
    """

    listed: list[Candidate]
    null: Candidate | None

    @property
    def best(self) -> Candidate | None:
        """The best candidate that is not the null answer, if there is one."""
        return next((candidate for candidate in self.listed if candidate.text), None)

    @property
    def null_odds(self) -> float:
        """The null answer's score minus the best candidate's. Google's script crashes without a candidate; here
        the answer is then null."""
        assert self.null is not None
        return self.null.score - self.best.score if self.best else MAX_NULL_ODDS

    def chosen(self, threshold: float) -> Candidate | None:
        """The answer: None for the null answer, or if no span is possible."""
        return self.best if self.null is None or self.null_odds <= threshold else None

    def probabilities(self) -> list[float]:
        """The softmax of the scores of `listed`."""
        return softmax([candidate.score for candidate in self.listed]) if self.listed else []


class Prediction(NamedTuple):
    """What the files of predictions say about a question: its answer, its entry in the n-best file as JSON, and
    the null score difference, None unless questions may have no answer."""

    answer: str
    nbest: str
    null_odds: float | None


class SpanDecoder:
    """Makes the scores of windows into the answers to the questions of a file.

    Args:
      version_2: whether a question may have no answer (SQuAD v2.0).
      windows, paragraphs: the tables of `tasks.squad.windows`.
    """

    def __init__(
        self, settings: AnswerSettings, version_2: bool, examples: Examples, windows: Rows, paragraphs: Rows
    ):
        self._settings, self._version_2, self._examples = settings, version_2, examples
        self._heads, self._firsts = windows.column("question_tokens"), windows.column("document_start")
        spans = paragraphs.column("spans")
        assert isinstance(spans, tuple)
        self._token_spans, self._offsets = spans
        self._question_of: list[int] = np.asarray(windows.column("question")).tolist()
        self.windows_of: list[list[int]] = [[] for _ in examples.questions]
        for window, question in enumerate(self._question_of):
            self.windows_of[question].append(window)

    def keep(self, window: int, scores: np.ndarray) -> Prediction | np.ndarray:
        """The prediction for the window's question if it has no other window, else a copy of the scores."""
        question = self._question_of[window]
        return self.prediction(question, [scores]) if len(self.windows_of[question]) == 1 else scores.copy()

    def decode(self, kept: Sequence[Prediction | np.ndarray]) -> list[Prediction]:
        """The prediction for each question. `kept` has what `keep` returned for each window."""
        predictions = []
        for question, windows in enumerate(self.windows_of):
            first = kept[windows[0]]
            if not isinstance(first, Prediction):
                first = self.prediction(question, [np.asarray(kept[window]) for window in windows])
            predictions.append(first)
        return predictions

    def prediction(self, question: int, scores: Sequence[np.ndarray]) -> Prediction:
        """The prediction for a question from the scores of its windows, as in `candidates`."""
        candidates = self.candidates(question, scores)
        chosen = candidates.chosen(self._settings.null_score_diff_threshold)
        is_possible = candidates.null is not None
        answer = chosen.text if chosen else "" if is_possible else NO_ANSWER
        listed = candidates if candidates.listed else Candidates([Candidate(0.0, 0.0, NO_ANSWER)], None)
        return Prediction(answer, _nbest_json(listed), candidates.null_odds if is_possible else None)

    def candidates(self, question: int, scores: Sequence[np.ndarray]) -> Candidates:
        """At most `n_best_size` candidates and the null answer.

        Args:
          scores: for each window of the question float32 [tokens, 2], the start and end scores of its tokens,
            without padding.
        """
        paragraph = self._examples.questions[question].paragraph
        token_spans = self._token_spans[self._offsets[paragraph] : self._offsets[paragraph + 1]].reshape(-1, 2)
        spans = self._spans(self.windows_of[question], scores, len(token_spans))
        nulls = [Candidate(float(each[0, 0]), float(each[0, 1]), "") for each in scores]
        null = min(nulls, key=lambda candidate: candidate.score)
        if self._version_2:
            spans = np.concatenate([spans, [(null.start_score, null.end_score, -1, -1)]])
        candidates: dict[str, Candidate] = {}
        for place in np.argsort(-(spans[:, 0] + spans[:, 1]), kind="stable").tolist():
            if len(candidates) >= self._settings.n_best_size:
                break
            start_score, end_score, first, last = spans[place].tolist()
            start = stop = 0
            if first >= 0:
                start, stop = int(token_spans[int(first), 0]), int(token_spans[int(last), 1])
            text = self._examples.paragraphs[paragraph][start:stop]
            if text not in candidates:
                candidates[text] = Candidate(start_score, end_score, text, start, stop)
        if self._version_2:
            candidates.setdefault("", null)
        return Candidates(list(candidates.values()), null if self._version_2 else None)

    def _spans(self, windows: Sequence[int], scores: Sequence[np.ndarray], num_tokens: int) -> np.ndarray:
        """The spans between the best starts and the best ends of each window, in the order of Google's script:
        float64 [spans, 4], scores of start and end, and the first and last token in the context.

        A token counts as a start only in the window that owns it (`max_context_owner`).
        """
        heads, firsts = ([int(column[window]) for window in windows] for column in (self._heads, self._firsts))
        lengths = [len(each) - head - 1 for each, head in zip(scores, heads, strict=True)]  # without its [SEP]
        owners = max_context_owner(firsts, lengths, num_tokens) if len(windows) > 1 else None
        spans = []
        for index, (each, head, first, length) in enumerate(zip(scores, heads, firsts, lengths, strict=True)):
            starts, ends = (best_indexes(each[:, side], self._settings.n_best_size) for side in (0, 1))
            starts = starts[(starts >= head) & (starts < head + length)]
            if owners is not None:
                starts = starts[owners[starts - head + first] == index]
            stops = np.minimum(starts + self._settings.max_answer_length, head + length)
            one, two = np.nonzero((ends >= starts[:, None]) & (ends < stops[:, None]))
            starts, ends = starts[one], ends[two]
            places = starts - head + first, ends - head + first
            spans.append(np.stack([each[starts, 0], each[ends, 1], *places], 1).astype(np.float64))
        return np.concatenate(spans)


def nbest_file(ids: Sequence[str], predictions: Sequence[Prediction]) -> str:
    """The content of nbest_predictions.json."""
    entries = (f"    {_quoted(id_)}: {each.nbest}" for id_, each in zip(ids, predictions, strict=True))
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _nbest_json(candidates: Candidates) -> str:
    """A question's entry in the n-best file, as `json.dumps` with an indent of 4 writes it, but faster."""
    entries = [
        f'        {{\n            "text": {_quoted(candidate.text)},\n'
        f'            "probability": {_number(probability)},\n'
        f'            "start_logit": {_number(candidate.start_score)},\n'
        f'            "end_logit": {_number(candidate.end_score)}\n        }}'
        for candidate, probability in zip(candidates.listed, candidates.probabilities(), strict=True)
    ]
    return "[\n" + ",\n".join(entries) + "\n    ]"


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else json.dumps(value)


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


def best_indexes(scores: np.ndarray, number: int) -> np.ndarray:
    """The indices of the `number` highest scores, highest first; on ties the earlier one comes first."""
    return np.argsort(-scores, kind="stable")[:number]


def softmax(scores: Sequence[float]) -> list[float]:
    """Probabilities from scores."""
    highest = max(scores)
    weights = [math.exp(score - highest) for score in scores]
    total = sum(weights)
    return [weight / total for weight in weights]
