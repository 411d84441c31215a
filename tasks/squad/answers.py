"""From the start and end scores of windows to answers, by Google's rules (google-research/bert
`run_squad.py`)."""

import itertools
import math
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring as _quoted  # in C
from typing import Any, NamedTuple

import numpy as np

from bert.text.characters import end_of_character
from distributed.rows import Rows
from tasks.runs.rows.texts import max_context_owner
from tasks.runs.task import Decoder
from tasks.squad.settings import AnswerSettings

NO_ANSWER = "empty"  # written by run_squad.py when no span is possible
MAX_NULL_ODDS = 1e9  # when no text is possible; Google's script crashes


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


class Answered(NamedTuple):
    """What the scores say about a question."""

    # the highest scores first, among them "" if a question may have no answer
    candidates: list[Candidate]
    text: str  # the answer in predictions.json
    # the null answer's score minus the best text's; None if every question has an answer
    null_odds: float | None

    def probabilities(self) -> list[float]:
        """The softmax of the candidates' scores."""
        highest = max((candidate.score for candidate in self.candidates), default=0.0)
        weights = [math.exp(candidate.score - highest) for candidate in self.candidates]
        total = sum(weights)
        return [weight / total for weight in weights]

    def nbest(self, probabilities: Sequence[float]) -> str:
        """The entry in nbest_predictions.json, as `json.dumps` with an indent of 4 writes it, but
        faster."""
        listed = [*zip(self.candidates, probabilities, strict=True)]
        entries = [
            f'        {{\n            "text": {_quoted(candidate.text)},\n'
            f'            "probability": {probability!r},\n'
            f'            "start_logit": {candidate.start_score!r},\n'
            f'            "end_logit": {candidate.end_score!r}\n        }}'
            for candidate, probability in listed or [(Candidate(0.0, 0.0, NO_ANSWER), 1.0)]
        ]
        return "[\n" + ",\n".join(entries) + "\n    ]"


class Prediction(NamedTuple):
    """What is kept of a question's answer."""

    text: str
    entry: str  # in nbest_predictions.json
    null_odds: float | None
    start: int  # of the text in its context
    probability: float


class SpanDecoder(Decoder):
    """Makes the scores of windows, the rows of `SpanReader.tables`, into the answers to questions.

    The scores of a window are float32 [tokens, 2], of start and end, without padding.
    """

    def __init__(
        self,
        settings: AnswerSettings,
        version_2: bool,
        tables: Mapping[str, Rows],
    ):
        self._settings = settings
        self._version_2 = version_2
        windows = tables["windows"]
        self._heads: Any = windows.column("question_tokens")
        self._firsts: Any = windows.column("document_start")
        self._question_of: Any = windows.column("question")
        self._paragraph_of: Any = windows.column("paragraph")
        self._token_spans: Any = tables["paragraphs"].column("spans")
        self._contexts = tables["paragraphs"].table.column("context")
        num_questions = int(self._question_of[-1]) + 1
        numbers = np.arange(num_questions + 1)
        edges = np.searchsorted(self._question_of, numbers).tolist()
        self.windows_of = [range(*pair) for pair in itertools.pairwise(edges)]

    def keep(self, window: int, scores: np.ndarray) -> Prediction | np.ndarray:
        """The prediction for the window's question if it has no other window, else a copy of the
        scores."""
        question = int(self._question_of[window])
        if len(self.windows_of[question]) > 1:
            return scores.copy()
        return self.prediction(question, [scores])

    def results(self, kept: Sequence[Prediction | np.ndarray]) -> list[Prediction]:
        """The prediction for each question. `kept` has what `keep` returned for each window."""
        predictions = []
        for question, windows in enumerate(self.windows_of):
            of_question: list = [kept[window] for window in windows]
            prediction = of_question[0]
            if not isinstance(prediction, Prediction):
                prediction = self.prediction(question, of_question)
            predictions.append(prediction)
        return predictions

    def prediction(self, question: int, scores: Sequence[np.ndarray]) -> Prediction:
        answered = self.answered(question, scores)
        probabilities = answered.probabilities()
        start, probability = 0, 1.0
        for candidate, share in zip(answered.candidates, probabilities, strict=True):
            if candidate.text == answered.text:
                start, probability = candidate.start, share
        entry = answered.nbest(probabilities)
        return Prediction(answered.text, entry, answered.null_odds, start, probability)

    def answered(self, question: int, scores: Sequence[np.ndarray]) -> Answered:
        """The answer, from the scores of each window of the question; at most `n_best_size`
        candidates, and the null answer."""
        paragraph = int(self._paragraph_of[self.windows_of[question][0]])
        context = self._contexts[paragraph].as_py()
        values, offsets = self._token_spans
        token_spans = values[offsets[paragraph] : offsets[paragraph + 1]].reshape(-1, 2)
        spans = self._spans(self.windows_of[question], scores, len(token_spans))
        nulls = np.array([scores_T2[0] for scores_T2 in scores], np.float64)
        lowest = nulls.sum(1).argmin()
        start_score, end_score = nulls[lowest].tolist()
        null = Candidate(start_score, end_score, "")
        if self._version_2:
            spans = np.concatenate([spans, [(start_score, end_score, -1, -1)]])
        order = np.argsort(-(spans[:, 0] + spans[:, 1]), kind="stable")
        candidates: dict[str, Candidate] = {}
        for start_score, end_score, first, last in spans[order].tolist():
            if len(candidates) >= self._settings.n_best_size:
                break
            start = stop = 0
            if first >= 0:
                start = int(token_spans[int(first), 0])
                stop = end_of_character(context, int(token_spans[int(last), 1]))
            text = context[start:stop]
            candidates.setdefault(text, Candidate(start_score, end_score, text, start, stop))
        best = next((candidate for candidate in candidates.values() if candidate.text), None)
        text = best.text if best else NO_ANSWER
        odds = None
        if self._version_2:
            candidates.setdefault("", null)
            odds = null.score - best.score if best else MAX_NULL_ODDS
            if not best or odds > self._settings.null_score_diff_threshold:
                text = ""
        return Answered([*candidates.values()], text, odds)

    def _spans(
        self, windows: Sequence[int], scores: Sequence[np.ndarray], num_tokens: int
    ) -> np.ndarray:
        """The spans between the best starts and the best ends of each window, in the order of
        Google's script: float64 [spans, 4], scores of start and end, and the first and last token
        in the context. A token counts as a start only in the window that owns it
        (`max_context_owner`)."""
        heads = self._heads[windows].tolist()
        firsts = self._firsts[windows].tolist()
        lengths = []
        for scores_T2, head in zip(scores, heads, strict=True):
            lengths.append(len(scores_T2) - head - 1)  # without its [SEP]
        owners = max_context_owner(firsts, lengths, num_tokens)
        spans = []
        for window, scores_T2 in enumerate(scores):
            head = heads[window]
            end = head + lengths[window]
            shift = firsts[window] - head  # from places in the window to tokens of the context
            # The highest scores first; on ties the earlier token.
            order_T2 = np.argsort(-scores_T2, 0, kind="stable")
            starts, ends = order_T2[: self._settings.n_best_size].T
            starts = starts[(starts >= head) & (starts < end)]
            starts = starts[owners[starts + shift] == window]
            stops = np.minimum(starts + self._settings.max_answer_length, end)
            is_span = (ends >= starts[:, None]) & (ends < stops[:, None])
            of_starts, of_ends = np.nonzero(is_span)
            starts, ends = starts[of_starts], ends[of_ends]
            columns = scores_T2[starts, 0], scores_T2[ends, 1], starts + shift, ends + shift
            spans.append(np.stack(columns, 1).astype(np.float64))
        return np.concatenate(spans)


def nbest_file(entries: Mapping[str, str]) -> str:
    """The content of nbest_predictions.json, from the entry of each question."""
    lines = (f"    {_quoted(id_)}: {entry}" for id_, entry in entries.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"
