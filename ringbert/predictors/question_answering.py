"""Answers questions from contexts with a model that bert-squad has trained, by the same code as
bert-squad."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, overload

from bert.configuration import BertConfig
from bert.heads import SPAN
from ringbase.errors import InputError
from ringbase.results import Result
from ringbase.settings import shown
from ringbert.predictors.base import Items, LoadSettings, TrainedPredictor, checked_texts
from tasks.squad.reading import Examples, Question
from tasks.squad.settings import AnswerSettings, WindowSettings
from tasks.squad.task import SpanTask


@dataclass(frozen=True, slots=True)
class Answer(Result):
    """The characters `context[start:end]`, or with `text` "" and both places 0 that there is no
    answer.

    Attributes:
      probability: as in nbest_predictions.json, the softmax over the scores of the question's
        `n_best_size` best
        candidates: the probability among these, if one of them is right. It is not calibrated.
      score: the model's start score plus end score. It can be compared between contexts.
      null_odds: the score of "no answer" minus the score of the best text, as in null_odds.json;
        above
        `null_score_diff_threshold` there is no answer. None if every question has an answer.

    >>> Answer("1843", 16, 20, 0.9, 12.5).text
    '1843'
    """

    text: str
    start: int
    end: int
    probability: float
    score: float
    null_odds: float | None = None


class SpanSettings(LoadSettings, AnswerSettings, WindowSettings):
    """How contexts are cut into windows, and answers chosen."""


@dataclass(kw_only=True, eq=False)
class QuestionAnswering(TrainedPredictor):
    """Answers questions: `QuestionAnswering(folder)(question, context)`. The answers are those of
    bert-squad's predictions.json.

    Args:
      folder: a folder that bert-squad wrote (`--output_dir` or its `model/`), a Hugging Face
        folder, a TensorFlow
        checkpoint of Google's, or a hub name.
      precision: "fp32", "bf16" or "fp16", the number format of matrix products.
      batch_size: windows of `max_seq_length` tokens in a batch; more if they are shorter.
      model_revision: commit, tag or branch of a hub model.
      max_seq_length: the most tokens of a window, the question included (384, at most the model's
        positions).
      doc_stride: tokens between the starts of windows (128).
      max_query_length: the most tokens of a question, which is cut (64).
      n_best_size: candidates per question, from which `probability` is computed, and the most of
        `top_k` (20).
      max_answer_length: the most tokens of an answer (30).
      version_2_with_negative: a question may have no answer (False).
      null_score_diff_threshold: there is no answer if `null_odds` exceeds this (0).
        The default of these seven is as in the run that wrote the folder, else that of bert-squad,
          in parentheses.
    Raises ringbert.InputError, one line that names the argument.

    >>> answers = QuestionAnswering("squad_output")
    >>> context = "Ada wrote it in 1843."
    >>> answer = answers("Who wrote it?", context)
    >>> answer.text == context[answer.start : answer.end]
    True
    """

    doc_stride: int | None = None
    max_query_length: int | None = None
    n_best_size: int | None = None
    max_answer_length: int | None = None
    version_2_with_negative: bool | None = None
    null_score_diff_threshold: float | None = None

    head = SPAN
    settings_class = SpanSettings
    longest = 384

    def make_task(self, bert_config: BertConfig) -> SpanTask:
        return SpanTask(self.settings, self.settings)

    @overload
    def __call__(self, question: str, context: str) -> Answer: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, question: str, context: str, *, top_k: int
    ) -> list[Answer]: ...
    @overload
    def __call__(self, question: Iterable[str], context: Iterable[str]) -> list[Answer]: ...
    @overload
    def __call__(
        self, question: Iterable[str], context: Iterable[str], *, top_k: int
    ) -> list[list[Answer]]: ...
    def __call__(
        self, question: Iterable[str], context: Iterable[str], *, top_k: int | None = None
    ) -> Answer | list[Answer] | list[list[Answer]]:
        """The best answer to a question in a context; with `top_k` a list of the best answers, the
        best first.

        Either may be a list, and then the result is a list: one question is asked of each context,
        each question of one context, or of its own.
        """
        most = self.settings.n_best_size
        if top_k is not None and (type(top_k) is not int or not 1 <= top_k <= most):
            raise InputError(
                f"top_k must be an integer from 1 to n_best_size {most}, got {shown(top_k)}"
            )
        questions, is_one_question = checked_texts(question, "question")
        contexts, is_one_context = checked_texts(context, "context")
        if is_one_question:
            questions *= len(contexts)
        elif is_one_context:
            contexts *= len(questions)
        if len(questions) != len(contexts):
            items = f"question has {len(questions)} items and context {len(contexts)}"
            raise InputError(f"{items}: give one for each, or one for all")
        answers = self._answers(questions, contexts) if questions else []
        results: list = [each[0] if top_k is None else each[:top_k] for each in answers]
        return results[0] if is_one_question and is_one_context else results

    def _answers(self, texts: Items, contexts: Items) -> list[list[Answer]]:
        """The answers to each question about its context, the chosen one first, then the others by
        score."""
        numbers = dict[str, int]()  # of the contexts that differ
        questions = list[Question]()
        for (text,), (context,) in zip(texts, contexts, strict=True):
            number = numbers.setdefault(context, len(numbers))
            questions.append(Question(str(len(questions)), text, number, ()))
        data = self.set_of(Examples("", list(numbers), questions))
        decoder = self.task.decoder(data)
        # Files have the entries of nbest_predictions.json as text, made where a window's scores
        # were computed; here the candidates themselves are wanted.
        scores: Any = self._predictor(data.rows, self.settings.batch_size)
        answers = []
        for number, windows in enumerate(decoder.windows_of):
            answered = decoder.answered(number, [scores[window] for window in windows])
            odds, chosen = answered.null_odds, answered.text
            listed = []
            for each, share in zip(answered.candidates, answered.probabilities(), strict=True):
                listed.append(Answer(each.text, each.start, each.stop, share, each.score, odds))
            listed.sort(key=lambda answer: answer.text != chosen)
            answers.append(listed or [Answer("", 0, 0, 0.0, 0.0)])
        return answers
