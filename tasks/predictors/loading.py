"""What the predictors share: a trained model in this process, without joining any ranks, and
checked texts."""

import contextlib
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import keras

from bert import hub, weights
from bert.heads import Head
from bert.model import Bert
from bert.text.tokenizer import MOST_UNKNOWN_SHARE, Tokenizer
from distributed.collectives import Collectives
from distributed.run import Unwritten
from distributed.world import World
from ringbase.errors import InputError, one_line
from ringbase.settings import (
    LONGEST_ROW,
    SURROGATE,
    Settings,
    fields_of,
    made,
    of_type,
    setting,
    shown,
)
from tasks.job import POLICIES, Job
from tasks.settings import ModelSettings, Precision, batch_size
from tasks.start import TOKENIZER_FILES, Needs, Start, find_start, start_of_model
from tasks.texts import Preparation
from tasks.trained import CHECKPOINTS, settings_of

CONFIG_FILES = ("config.json", "bert_config.json")
FEWEST_SHOWN = 50  # steps of a progress bar: shorter loops have none


class Session(Unwritten):
    """A run that writes nothing, and shows warnings as Python's."""

    def say(self, text: str) -> None:
        if text.startswith("warning: "):
            warnings.warn(without_dashes(text.removeprefix("warning: ")), stacklevel=2)

    def shows(self, total: int) -> bool:
        return total >= FEWEST_SHOWN


@dataclass(frozen=True, kw_only=True)
class LoadSettings(Settings):
    """What all predictors let their users choose."""

    precision: Precision = setting("fp32")
    batch_size: int = batch_size("rows", "prediction")
    model_revision: str | None = setting(None)


@dataclass(kw_only=True, eq=False)
class TrainedPredictor:
    """A predictor: its fields are the options. One that is None is as in the run that wrote the
    folder, else has the default of `settings_class`; `settings` has their values."""

    folder: str | os.PathLike[str] = field(kw_only=False)
    precision: Precision = "fp32"
    batch_size: int = 8
    max_seq_length: int | None = None
    model_revision: str | None = None

    head: ClassVar[Head]
    trained_by: ClassVar[str | None] = None  # the program that trains such a model
    settings_class: ClassVar[type[LoadSettings]]
    # of `max_seq_length` by default; never more than the model's positions
    longest: ClassVar[int] = LONGEST_ROW

    def __post_init__(self) -> None:
        name = os.fspath(self.folder)
        with about_arguments(name):
            start = find_model(name, self.model_revision)
            assert start.weights is not None
            self._tokenizer, self._of_run = start.words, settings_of(start.weights)
            positions = start.bert_config.num_positions
            options = {
                **self._of_run,
                **{name: value for name, value in vars(self).items() if value is not None},
            }
            values: dict[str, Any] = {"max_seq_length": min(self.longest, positions)}
            for each in fields_of(self.settings_class):
                if options.get(each.name) is not None:
                    try:
                        values[each.name] = of_type(options[each.name], each.type)
                    except ValueError as error:
                        raise ValueError(f"{each.name} {error}") from None
            if (length := values["max_seq_length"]) > positions:
                raise ValueError(
                    f"max_seq_length must be at most the model's {positions} positions, got"
                    f" {length}"
                )
            # before the settings: it may be another program's
            self._model = load(start, self.head, self.precision, self.trained_by)
            self._job = alone()
            self._preparation = Preparation(self._job.world, self._job.run, self._tokenizer)
            self.settings: Any = self.settings_class(**values)


def find_model(name: str, revision: str | None) -> Start:
    """Where the model in a folder is: of a run's folder in `model/`, else in its best or newest
    checkpoint."""
    path, needs = Path(name).expanduser(), Needs(max_seq_length=1)
    run, is_complete = Session(path), (path / "model/config.json").is_file()
    source = str(path / "model") if is_complete else name
    settings = made(ModelSettings, {"model": source, "model_revision": revision})
    if (path / CHECKPOINTS).is_dir() and not is_complete:
        return find_start(settings, "auto", run, trains=False, needs=needs)
    place = hub.find(source, revision)
    for files in (CONFIG_FILES, TOKENIZER_FILES):
        if not any(any((place if place.is_dir() else place.parent).glob(file)) for file in files):
            raise InputError(
                f"folder {name} has no {' or '.join(files)}: it is no model, nor a run with one"
            )
    return start_of_model(settings, run.say, needs)


def alone() -> Job:
    """A job of this process alone, which writes nothing."""
    return Job(World(), Collectives(), Session())


def load(
    start: Start, head: Head, precision: Precision = "fp32", trained_by: str | None = None
) -> Bert:
    """The trained model. Raises InputError: its weights have no such head."""
    before = keras.config.dtype_policy()  # the process's, which is restored
    keras.config.set_dtype_policy(POLICIES[precision])
    try:
        model = start.model(head)
    finally:
        keras.config.set_dtype_policy(before)
    assert start.weights is not None
    try:
        weights.load(model, start.weights)
    except weights.MissingTensors as error:
        advice = f"; {trained_by} trains such a model" if trained_by else ""
        raise InputError(f"{error}{advice}") from error
    return model


@contextlib.contextmanager
def about_arguments(name: str) -> Iterator[None]:
    """Makes errors about flags errors about arguments, with the folder's name."""
    try:
        yield
    except ValueError as error:
        text = without_dashes(one_line(error))
        raise InputError(text if name in text else f"folder {name}: {text}") from error


def without_dashes(message: str) -> str:
    """A message with arguments for flags: `--max_seq_length` is `max_seq_length`, `--model` is
    `folder`."""
    message = re.sub(r" \((--\w+(, )?)+\)", "", message)
    message = re.sub(r"(?<![\w-])--(model|init_checkpoint)\b", "folder", message)
    return re.sub(r"(?<![\w-])--(?=[a-z])", "", message)


def checked_texts(
    value: Any, name: str, takes_pairs: bool = False, takes_empty: bool = False
) -> tuple[list[tuple[str, ...]], bool]:
    """The texts, or pairs of texts, of the argument `name`, and whether it is a single one: a
    string, or a tuple of two strings. Lists with `takes_empty` may have empty texts, of which it
    warns. Raises InputError: there is none, or one is no string, empty, or no Unicode."""
    is_pair = (
        isinstance(value, tuple)
        and len(value) == 2
        and all(isinstance(text, str) for text in value)
    )
    is_single = isinstance(value, str) or (takes_pairs and is_pair)
    # its items would be names
    is_table = isinstance(value, Mapping | Set) or hasattr(value, "columns")
    items = (
        [value]
        if is_single
        else list(value)
        if isinstance(value, Iterable) and not is_table
        else []
    )
    if not items:
        raise InputError(f"{name} must be a text or a list of texts, got {shown(value)}")
    texts, takes_empty, num_empty = [], takes_empty and not is_single, 0
    for number, item in enumerate(items):
        one = tuple(item) if takes_pairs and isinstance(item, tuple | list) else (item,)
        is_valid = all(isinstance(text, str) and not SURROGATE.search(text) for text in one)
        is_empty = is_valid and not all(map(str.strip, one))
        if len(one) not in (1, 2) or not is_valid or (is_empty and not takes_empty):
            place, kinds = (
                name if is_single else f"{name}[{number}]",
                ", or a pair of these" * takes_pairs,
            )
            raise InputError(
                f"{place} must be Unicode text that is not empty{kinds}, got {shown(item)}"
            )
        texts.append(tuple(map(str, one)))  # plain strings also for NumPy's
        num_empty += is_empty
    if num_empty:
        warnings.warn(
            f"{num_empty:,} of {len(texts):,} items in {name} have an empty text", stacklevel=3
        )
    return texts, is_single


def warn_of_unknown(share: float, tokenizer: Tokenizer) -> None:
    """Warns when many of the tokens are [UNK], where the programs stop: a single text may well hold
    some."""
    if share > MOST_UNKNOWN_SHARE:
        text = (
            f"{share:.1%} of the tokens are [UNK], which the model knows nothing about: the"
            " vocabulary "
        )
        text += f"{tokenizer.source} (lower case {tokenizer.lower_case}) may not fit the text"
        warnings.warn(text, stacklevel=4)
