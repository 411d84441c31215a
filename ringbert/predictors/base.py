"""What the predictors share: a trained model with its task, and checked texts."""

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar, Self

import tensorflow as tf

from bert.configuration import BertConfig
from bert.heads import Head
from bert.text.tokenizer import MOST_UNKNOWN_SHARE
from ringbase.errors import InputError, as_arguments
from ringbase.settings import (
    LONGEST_ROW,
    SURROGATE,
    Settings,
    check_settled,
    fields_of,
    of_type,
    setting,
    shown,
)
from tasks.runs.execute.load import about_arguments, alone, find_model, load_model
from tasks.runs.execute.predict import Predictor
from tasks.runs.flags import hint
from tasks.runs.resolve.spec import Start
from tasks.runs.rows.sets import DataSet, set_of
from tasks.runs.rows.texts import Tokenization
from tasks.runs.settings import Precision, batch_size
from tasks.runs.task import Task

Items = list[tuple[str, ...]]  # texts, and pairs of texts


class LoadSettings(Settings):
    """What all predictors let their users choose."""

    precision: Precision = setting("fp32")
    batch_size: int = batch_size("rows", "prediction")
    model_revision: str | None = setting(None)


class ArgumentPredictor(Predictor):
    """A `Predictor` that names the arguments of Python."""

    def __call__(self, *arguments: Any, **options: Any) -> list | None:
        try:
            return super().__call__(*arguments, **options)
        except tf.errors.ResourceExhaustedError as error:
            raise InputError("out of memory: lower batch_size or max_seq_length") from error


@dataclass(eq=False)
class TrainedPredictor:
    """A predictor: its fields are the options. One that is None is as in the run that wrote the
    folder, else has the default of `settings_class`; `settings` has their values."""

    folder: str | os.PathLike[str]
    _: KW_ONLY
    precision: Precision = "fp32"
    batch_size: int = 8
    max_seq_length: int | None = None
    model_revision: str | None = None

    head: ClassVar[Any]
    settings_class = LoadSettings
    # of `max_seq_length` by default; never more than the model's positions
    longest = LONGEST_ROW

    def __new__(cls, *values: Any, **options: Any) -> Self:
        known = [each.name for each in fields(cls)]
        for name in options:
            if name not in known:
                text = f"unknown flag --{name}; {hint(name, known)}"
                raise InputError(as_arguments(text))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        name = os.fspath(self.folder)
        with about_arguments(name):
            start = find_model(name, self.model_revision)
            positions = start.bert_config.num_positions
            options = {"max_seq_length": min(self.longest, positions)}
            for source in (self.said_by(start), start.saved, vars(self)):
                options |= {name: each for name, each in source.items() if each is not None}
            self.options = options
            values = self._checked_options(positions)
            precision = values.get("precision", "fp32")
            # before the settings are made: the folder may be another program's
            self._model = load_model(start, self.head, precision)
            self.settings: Any = self.settings_class(**values)
            check_settled(self.settings)
            self._job = alone()
            self._tokenization = Tokenization(self._job.world, self._job.run, start.words)
            self.task: Any = self.make_task(start.bert_config)
        self.labels: tuple[str, ...] = tuple(self.task.labels or ())
        forward = self.forward()
        parts = self._model, self.task, self._job, forward
        self._predictor = ArgumentPredictor(*parts, compiles=False)

    def _checked_options(self, positions: int) -> dict[str, Any]:
        """The options that are settings. Raises ValueError: one is wrong."""
        values = {}
        for each in fields_of(self.settings_class):
            if self.options.get(each.name) is not None:
                try:
                    values[each.name] = of_type(self.options[each.name], each.type)
                except ValueError as error:
                    raise ValueError(f"{each.name} {error}") from None
        if (length := self.options["max_seq_length"]) > positions:
            raise ValueError(
                f"max_seq_length must be at most the model's {positions} positions, got {length}"
            )
        return values

    def said_by(self, start: Start) -> Mapping[str, Any]:
        """Options that a folder of another program's says."""
        return {}

    def make_task(self, bert_config: BertConfig) -> Task:
        """The task of the model, with `settings`."""
        raise NotImplementedError

    def forward(self) -> Callable | None:
        """What is computed instead of the head's scores; see `Predictor`."""
        return None

    def set_of(self, examples) -> DataSet:
        """The rows of examples. Warns, where the programs stop, when many of their tokens are
        [UNK]: a single text may well hold some."""
        data = set_of(self.task, examples, self._tokenization)
        share = data.made.facts["unknown_share"]
        tokenizer = self._tokenization.tokenizer
        if share > MOST_UNKNOWN_SHARE:
            warnings.warn(
                f"{share:.1%} of the tokens are [UNK], which the model knows nothing about: the"
                f" vocabulary {tokenizer.source} (lower case {tokenizer.lower_case}) may not fit"
                " the text",
                stacklevel=4,
            )
        return data

    def results(self, data: DataSet):
        return self._predictor.results(self.task, data, self.settings.batch_size)


@dataclass(eq=False)
class TaskPredictor(TrainedPredictor):
    """Predicts with a task of one's own: `TaskPredictor(folder, MyTask)(examples)`. The results
    are those of the task's decoder, in the order of the examples.

    Args:
      folder, precision, batch_size, model_revision: as those of `QuestionAnswering`.
      task_of: makes the task (`tasks.runs.task.Task`) of the settings, by flag, that its model was
        saved with (`Task.settings`); `max_seq_length` is among them.
    Raises ringbert.InputError, one line that names the argument.

    >>> from own_task import Reviews, Stars  # examples/own_task.py
    >>> TaskPredictor("stars", Stars)(Reviews(["a fine film", "two dull hours"])).shape
    (2, 1)
    """

    task_of: Callable[[Mapping[str, Any]], Task]

    @property
    def head(self) -> Head:
        return self.task_of(self.options).head

    def make_task(self, bert_config: BertConfig) -> Task:
        return self.task_of(self.options)

    def __call__(self, examples: Any) -> Any:
        return self.results(self.set_of(examples))


def checked_texts(
    value, name: str, takes_pairs: bool = False, takes_empty: bool = False
) -> tuple[Items, bool]:
    """The texts, or pairs of texts, of the argument `name`, and whether it is a single one: a
    string, or a tuple of two strings. Any other iterable, such as a list, a generator, an array or
    a series of pandas, has texts, perhaps none. With `takes_empty` they may be empty, of which it
    warns. Raises InputError: one is no string, empty, or no Unicode, or they are no texts at all.
    """
    is_pair = (
        isinstance(value, tuple)
        and len(value) == 2
        and all(isinstance(text, str) for text in value)
    )
    is_single = isinstance(value, str) or (takes_pairs and is_pair)
    # its items would be names
    is_table = isinstance(value, Mapping | Set) or hasattr(value, "columns")
    if is_single:
        value = [value]
    if is_table or not isinstance(value, Iterable):
        raise InputError(f"{name} must be a text or a list of texts, got {shown(value)}")
    items = list(value)
    texts = []
    takes_empty = takes_empty and not is_single
    num_empty = 0
    for number, item in enumerate(items):
        one = tuple(item) if takes_pairs and isinstance(item, tuple | list) else (item,)
        is_valid = all(isinstance(text, str) and not SURROGATE.search(text) for text in one)
        is_empty = is_valid and not all(map(str.strip, one))
        if len(one) not in (1, 2) or not is_valid or (is_empty and not takes_empty):
            place = name if is_single else f"{name}[{number}]"
            kinds = ", or a pair of these" * takes_pairs
            raise InputError(
                f"{place} is {shown(item)}: it must be Unicode text that is not empty{kinds}"
            )
        texts.append(tuple(map(str, one)))  # plain strings also for NumPy's
        num_empty += is_empty
    if num_empty:
        warnings.warn(
            f"{num_empty:,} of {len(texts):,} items in {name} have an empty text", stacklevel=3
        )
    return texts, is_single
