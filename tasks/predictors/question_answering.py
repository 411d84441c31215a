"""Answers questions from contexts with a model that bert-squad has trained, by the same code as bert-squad."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

from ringbase.errors import InputError
from tasks.cache import in_memory
from tasks.predict import Predictor
from tasks.predictors.inputs import checked_list, checked_text, is_pair, warn_of_unknown
from tasks.predictors.loading import Precision, checked_batch_size, load
from tasks.squad.answers import SpanDecoder
from tasks.squad.reading import Examples, Question, Source
from tasks.squad.settings import AnswerSettings, WindowSettings
from tasks.squad.task import SpanTask
from tasks.squad.windows import tables

Pair = tuple[str, str]
FORMS = "a string, a list of strings, a pair (question, context), or a list of pairs"
CONTEXTS = "a string or a list of strings"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, or with `text` "" that there is none.

    Attributes:
      text: the original characters, `context[start:end]`.
      start, end: places in the context, in characters; both 0 without an answer.
      probability: the softmax over the scores of the question's `n_best_size` best candidates (different texts
        from all windows, and "" if a question may have no answer), as in nbest_predictions.json. So it is the
        probability among these candidates, given that one of them is right, and it is not calibrated. 0 if no
        text of the context can be an answer.
      score: the model's start score plus end score, from which the probability comes. It can be compared between
        contexts.
      null_odds: the score of "no answer" minus the score of the best text, as in null_odds.json; above
        `null_score_diff_threshold` there is no answer. None if every question has an answer.
    """

    text: str
    start: int
    end: int
    probability: float
    score: float
    null_odds: float | None = None


@dataclass(frozen=True, kw_only=True)
class _Settings(AnswerSettings, WindowSettings):
    """How contexts are cut into windows, and answers chosen."""


class QuestionAnswering:
    """Answers questions: `QuestionAnswering(folder)(question, context)`.

    The answers are those of bert-squad's predictions.json. Contexts longer than `max_seq_length` tokens are cut
    into windows. Calls from several threads are computed one after the other.

    Args:
      folder: a folder that bert-squad wrote (`--output_dir` or its `model/`), a Hugging Face folder, a TensorFlow
        checkpoint of Google's, or a hub name.
      precision: "fp32", "bf16" or "fp16", the number format of matrix products. The Keras policy of the process
        stays as it is.
      batch_size: windows of `max_seq_length` tokens in a batch; more if they are shorter.
      model_revision: commit, tag or branch of a hub model.
      max_seq_length: the most tokens of a window, the question included (384, at most the model's positions).
      doc_stride: tokens between the starts of windows (128).
      max_query_length: the most tokens of a question, which is cut (64).
      n_best_size: candidates per question, from which `probability` is computed, and the most of `top_k` (20).
      max_answer_length: the most tokens of an answer (30).
      version_2_with_negative: a question may have no answer (False).
      null_score_diff_threshold: there is no answer if `null_odds` exceeds this (0).
        The default of these seven is as in the run that wrote the folder, else that of bert-squad, in parentheses.
    Raises ringbase.errors.InputError, one line that names the argument: the folder holds no model for questions,
      or an argument is wrong.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        precision: Precision = "fp32",
        batch_size: int = 8,
        model_revision: str | None = None,
        max_seq_length: int | None = None,
        doc_stride: int | None = None,
        max_query_length: int | None = None,
        n_best_size: int | None = None,
        max_answer_length: int | None = None,
        version_2_with_negative: bool | None = None,
        null_score_diff_threshold: float | None = None,
    ):
        self._batch_size = checked_batch_size(batch_size)
        self._trained = load(folder, "span", precision, model_revision)
        given = {
            "max_seq_length": max_seq_length,
            "doc_stride": doc_stride,
            "max_query_length": max_query_length,
            "n_best_size": n_best_size,
            "max_answer_length": max_answer_length,
            "version_2_with_negative": version_2_with_negative,
            "null_score_diff_threshold": null_score_diff_threshold,
        }
        self.settings = self._trained.settings_of(_Settings, given, max_seq_length=384)
        length = self.settings.max_seq_length
        self._predictor = Predictor(self._trained.job, SpanTask(length).batch, length)

    def __repr__(self) -> str:
        return self._trained.shown(self, f"max_seq_length={self.settings.max_seq_length}")

    @overload
    def __call__(self, question: str, context: str) -> Answer: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, question: str, context: str, *, top_k: int
    ) -> list[Answer]: ...
    @overload
    def __call__(self, question: Pair) -> Answer: ...
    @overload
    def __call__(self, question: Pair, *, top_k: int) -> list[Answer]: ...
    @overload
    def __call__(self, question: Sequence[Pair]) -> list[Answer]: ...
    @overload
    def __call__(self, question: Sequence[Pair], *, top_k: int) -> list[list[Answer]]: ...
    @overload
    def __call__(self, question: Iterable[str], context: str | Iterable[str]) -> list[Answer]: ...
    @overload
    def __call__(
        self, question: Iterable[str], context: str | Iterable[str], *, top_k: int
    ) -> list[list[Answer]]: ...
    def __call__(
        self,
        question: str | Pair | Iterable[str] | Sequence[Pair],
        context: str | Iterable[str] | None = None,
        *,
        top_k: int | None = None,
    ) -> Answer | list[Answer] | list[list[Answer]]:
        """The best answer of each question; with `top_k` a list of the best answers, the best first.

        Args:
          question: a question, a list of questions, or without `context` a pair (question, context), which is a
            tuple of two strings, or a list of pairs.
          context: the text to search, or a list of texts, each of which is searched; for a list of questions one
            text for all, or a list of as many.
          top_k: how many answers per question, 1 to `n_best_size`. There may be fewer.
        Returns, for one question about one text, an `Answer` or with `top_k` a list of them; for a list of
        questions or of texts the list of that. Raises InputError: an argument is of another type, or empty.
        """
        if top_k is not None and (type(top_k) is not int or not 1 <= top_k <= self.settings.n_best_size):
            most = self.settings.n_best_size
            raise InputError(f"top_k must be an integer from 1 to n_best_size {most}, got {top_k!r:.80}")
        pairs, is_single = checked_pairs(question, context)
        answers = self._answers(pairs, 1 if top_k is None else top_k)
        results = answers if top_k is not None else [best for best, *_ in answers]
        return results[0] if is_single else results

    def _answers(self, pairs: Sequence[Pair], most: int) -> list[list[Answer]]:
        """The `most` best answers of each pair of question and context."""
        settings, trained = self.settings, self._trained
        numbers: dict[str, int] = {}  # of the contexts, which may be repeated
        questions = [
            Question(str(number), question, numbers.setdefault(context, len(numbers)), ())
            for number, (question, context) in enumerate(pairs)
        ]
        examples = Examples(Source("", "", is_training=False), "", list(numbers), questions)
        data = in_memory(tables(settings, examples, trained.tokenizer, trained.job.run))
        warn_of_unknown(data.facts["unknown_share"], trained.tokenizer)
        windows, paragraphs = data.tables["windows"], data.tables["paragraphs"]
        scores = self._predictor(windows, self._batch_size)
        assert scores is not None
        decoder = SpanDecoder(settings, settings.version_2_with_negative, examples, windows, paragraphs)
        answers = []
        for number, of_question in enumerate(decoder.windows_of):
            candidates = decoder.candidates(number, [scores[window] for window in of_question])
            chosen = candidates.chosen(settings.null_score_diff_threshold)
            odds = None if candidates.null is None else candidates.null_odds
            listed = [
                Answer(each.text, each.start, each.stop, probability, each.score, odds)
                for each, probability in zip(candidates.listed, candidates.probabilities(), strict=True)
            ]
            text = chosen.text if chosen else ""
            listed.sort(key=lambda answer: answer.text != text)  # the answer, then the others by their scores
            answers.append(listed[:most] or [Answer("", 0, 0, 0.0, 0.0)])
        return answers


def checked_pairs(question: object, context: object) -> tuple[list[Pair], bool]:
    """Questions and contexts as pairs, and whether it is a single one. Raises InputError as
    `QuestionAnswering.__call__`."""
    if context is None:
        if isinstance(question, str):
            raise InputError("context is missing: give the text to search")
        if is_pair(question):
            return [_pair(question, "question")], True
        questions = checked_list(question, "question", FORMS)
        return [_pair(item, f"question[{number}]") for number, item in enumerate(questions)], False
    questions, contexts = _texts(question, "question", FORMS), _texts(context, "context", CONTEXTS)
    if isinstance(question, str):
        questions *= len(contexts)
    elif isinstance(context, str):
        contexts *= len(questions)
    if len(questions) != len(contexts):
        raise InputError(
            f"question has {len(questions)} items and context {len(contexts)}: give one for each, or one for all"
        )
    is_single = isinstance(question, str) and isinstance(context, str)
    return list(zip(questions, contexts, strict=True)), is_single


def _texts(value: object, name: str, forms: str) -> list[str]:
    """A text, or the texts of a list."""
    if isinstance(value, str):
        return [checked_text(value, name)]
    items = checked_list(value, name, forms)
    return [checked_text(item, f"{name}[{number}]") for number, item in enumerate(items)]


def _pair(item: object, name: str) -> Pair:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise InputError(f"{name} must be a pair (question, context) where no context is given, got {item!r:.60}")
    return checked_text(item[0], f"{name}[0]"), checked_text(item[1], f"{name}[1]")
