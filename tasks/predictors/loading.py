"""Finds and loads a trained model for prediction in this process, without joining any ranks."""

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import keras
from tqdm import tqdm
from transformers import BertConfig

from bert import weights
from bert.model import Bert
from bert.text.tokenizer import Tokenizer
from distributed.checkpoint import checkpoint_at
from distributed.collectives.local import LocalCollectives
from distributed.run import Run, progress_bar
from distributed.world import World
from ringbase.errors import InputError, one_line
from ringbase.settings import MOST_ROWS, fields_of, made, of_type
from tasks.job import POLICIES, Job
from tasks.settings import ModelSettings
from tasks.start import (
    CHECKPOINTS,
    TOKENIZER_FILES,
    Needs,
    newest_checkpoint,
    settings_of,
    start_of_model,
)

Precision = Literal["fp32", "bf16", "fp16"]
Settings = TypeVar("Settings")

CONFIG_FILES = ("config.json", "bert_config.json")
PROGRAM_OF_HEAD = {"span": "bert-squad", "classifier": "bert-classifier"}
FEWEST_SHOWN = 50  # steps of a progress bar: shorter loops have none


class Session(Run):
    """Stands for a run where the programs' functions take one. It has no folder."""

    def __init__(self) -> None:
        super().__init__(Path(), is_writer=False)

    def say(self, text: str) -> None:
        """Shows warnings as Python's, and nothing else."""
        if text.startswith("warning: "):
            warnings.warn(without_dashes(text.removeprefix("warning: ")), stacklevel=2)

    def progress(self, total: int, label: str | None, unit: str = "step", initial: int = 0) -> tqdm:
        return progress_bar(total, label, unit, total >= FEWEST_SHOWN, initial)


@dataclass(frozen=True)
class Trained:
    """A model with its weights.

    Attributes:
      name: the folder as the user gave it, for messages.
      precision: the number format of matrix products.
      settings: those of the run that wrote the folder, by the names of its program's flags; empty without a run.
      job: a job of this process alone.
    """

    name: str
    precision: str
    tokenizer: Tokenizer
    settings: Mapping[str, Any]
    job: Job

    @property
    def config(self) -> BertConfig:
        return self.job.model.config

    def shown(self, predictor: object, *facts: str) -> str:
        """The `repr` of a predictor."""
        layers = self.config.num_hidden_layers
        size = f"{layers} layer{'s' * (layers > 1)} of {self.config.hidden_size}"
        return f"{type(predictor).__name__}({', '.join([repr(self.name), size, *facts, self.precision])})"

    def settings_of(self, settings_class: type[Settings], given: Mapping[str, Any], **defaults: Any) -> Settings:
        """The settings that the user has given (not None), else the run's, else `defaults`, else the class's.

        `max_seq_length` is at most the model's number of positions. Raises InputError: a type or value is wrong.
        """
        types = {field.name: field.type for field in fields_of(settings_class)}
        given = {name: value for name, value in given.items() if value is not None}
        of_run = {name: self.settings[name] for name in types if self.settings.get(name) is not None}
        values = defaults | of_run | given
        positions = int(self.config.max_position_embeddings)
        for name, value in values.items():
            try:
                values[name] = of_type(value, types[name])
            except ValueError as error:
                raise InputError(f"{name} {error}") from error
        if given.get("max_seq_length", 0) > positions:
            raise InputError(
                f"max_seq_length must be at most the model's {positions} positions, got {given['max_seq_length']}"
            )
        values["max_seq_length"] = min(values["max_seq_length"], positions)
        try:
            return settings_class(**values)
        except ValueError as error:
            raise InputError(without_dashes(str(error))) from error


def load(folder: str | os.PathLike[str], head: str, precision: str, revision: str | None) -> Trained:
    """The trained model in `folder`, with the head of this name (bert/model.py).

    Args:
      folder: a run's folder or its `model/`, a Hugging Face folder, a TensorFlow checkpoint, or a hub name.
      precision: "fp32", "bf16" or "fp16": the number format of matrix products.
      revision: the commit, tag or branch of a model of the hub.
    Raises InputError: there is no such folder, or it holds no such model.
    """
    if not isinstance(folder, str | os.PathLike) or not str(folder):
        raise InputError(f"folder must be the path of a folder or a hub name, got {folder!r:.80}")
    if precision not in get_args(Precision):
        raise InputError(f"precision must be one of {', '.join(get_args(Precision))}, got {precision!r:.80}")
    name = os.fspath(folder)
    try:
        return _loaded(name, weights_in(name), head, precision, revision)
    except InputError as error:
        text = without_dashes(one_line(error))
        raise InputError(text if name in text else f"folder {name}: {text}") from error


def _loaded(name: str, source: str, head: str, precision: str, revision: str | None) -> Trained:
    run = Session()
    place = weights.find(source, revision)
    folder = place if place.is_dir() else place.parent
    if not any((folder / file).is_file() for file in CONFIG_FILES):
        raise InputError(f"folder {name} has no {' or '.join(CONFIG_FILES)}: it is no model, nor a run with one")
    if not any(any(folder.glob(pattern)) for pattern in TOKENIZER_FILES):
        raise InputError(f"folder {name} has no vocabulary ({', '.join(TOKENIZER_FILES)})")
    model_settings = made(ModelSettings, {"model": source, "model_revision": revision})
    start = start_of_model(model_settings, run.say, Needs(max_seq_length=1))
    assert start.weights is not None
    before = keras.config.dtype_policy()  # the process's: it is set for this model, and then again as it was
    keras.config.set_dtype_policy(POLICIES[precision])
    try:
        model = Bert(start.bert_config, head)
    finally:
        keras.config.set_dtype_policy(before)
    model.compiles_parts = False  # a question of a new length would wait 0.2 s for XLA, to save 2 ms
    try:
        weights.load(model, start.weights)
    except weights.MissingTensors as error:
        if head not in PROGRAM_OF_HEAD or not set(error.names) <= set(weights.HEAD_TENSORS[head]):
            raise
        raise InputError(
            f"folder {name} holds a model without the head for this task ({error.names[0]} is missing): "
            f"train one with {PROGRAM_OF_HEAD[head]}, or use ringbert.Features for its vectors"
        ) from error
    job = Job(World(), LocalCollectives(), run)
    job.workspace.take(model)
    return Trained(name, precision, start.words, settings_of(start.weights), job)


def weights_in(name: str) -> str:
    """Where the weights of a folder are: of a run's folder its `model/`, else its best or newest checkpoint."""
    path = Path(name).expanduser()
    if (path / "model" / "config.json").is_file():
        return str(path / "model")
    if any((path / file).is_file() for file in CONFIG_FILES) or not (path / CHECKPOINTS).is_dir():
        return name
    checkpoint = newest_checkpoint("auto", path, Session().say)
    if checkpoint is not None and checkpoint.state.best:
        checkpoint = checkpoint_at(checkpoint.path.parent, checkpoint.state.best[0])
    return str(checkpoint.path) if checkpoint else name


def checked_batch_size(batch_size: object) -> int:
    """Raises InputError unless the argument is an integer in its range."""
    if type(batch_size) is not int or not 1 <= batch_size <= MOST_ROWS:
        raise InputError(f"batch_size must be an integer from 1 to {MOST_ROWS:,}, got {batch_size!r:.80}")
    return batch_size


def without_dashes(message: str) -> str:
    """A message about flags as one about arguments: `--max_seq_length` is `max_seq_length`, `--model` is
    `folder`."""
    message = re.sub(r" \((--\w+(, )?)+\)", "", message)
    message = re.sub(r"(?<![\w-])--(model|init_checkpoint)\b", "folder", message)
    return re.sub(r"(?<![\w-])--(?=[a-z])", "", message)
