"""Finds and loads a trained model for prediction in this process, without joining any ranks."""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from ringbase.errors import InputError, one_line
from ringbase.settings import fields_of, made, of_type
from tasks.engine import Engine
from tasks.environment import import_tensorflow, set_environment
from tasks.predictors.messages import Session, without_dashes
from tasks.signatures import hint

if TYPE_CHECKING:
    from transformers import BertConfig

    from bert.model import Bert
    from bert.text.tokenizer import Tokenizer
    from tasks.job import Job

Precision = Literal["fp32", "bf16", "fp16"]
Settings = TypeVar("Settings")

FIXED = ("precision", "batch_size", "model_revision")  # arguments of every predictor
CONFIG_FILES = ("config.json", "bert_config.json")
PROGRAM_OF_HEAD = {"span": "bert-squad", "classifier": "bert-classifier"}
_policy_lock = threading.Lock()


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
    model: "Bert"
    tokenizer: "Tokenizer"
    settings: Mapping[str, Any]
    job: "Job"
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """For the time in which the model computes, for one thread at a time."""
        with self._lock:
            yield

    @property
    def config(self) -> "BertConfig":
        return self.model.config

    def shown(self, predictor: object, *facts: str) -> str:
        """The `repr` of a predictor."""
        config = self.config
        layers = config.num_hidden_layers
        size = f"{layers} layer{'s' * (layers > 1)} of {config.hidden_size}"
        return f"{type(predictor).__name__}({', '.join([repr(self.name), size, *facts, self.precision])})"

    def settings_of(
        self, settings_class: type[Settings], given: Mapping[str, Any], has_windows: bool = False
    ) -> Settings:
        """The settings that the user has given, else the run's, else the defaults.

        `max_seq_length` is at most the model's number of positions, which is also its default unless longer texts
        are cut into windows. Raises InputError: a name, a type or a value
        is wrong.
        """
        fields = {field.name: field for field in fields_of(settings_class)}
        if unknown := sorted(given.keys() - fields.keys()):
            raise InputError(f"unknown argument {unknown[0]}; {hint(unknown[0], [*sorted(fields), *FIXED])}")
        given = {name: value for name, value in given.items() if value is not None}
        of_run = {name: self.settings[name] for name in fields if self.settings.get(name) is not None}
        values = of_run | given
        positions = int(self.config.max_position_embeddings)
        default = fields["max_seq_length"].default if has_windows else positions
        longest = values.setdefault("max_seq_length", default)
        if "max_seq_length" in given and isinstance(longest, int) and longest > positions:
            raise InputError(f"max_seq_length must be at most the model's {positions} positions, got {longest}")
        for name, value in values.items():
            try:
                values[name] = of_type(value, fields[name].type)
            except ValueError as error:
                raise InputError(f"{name} {error}") from error
        try:
            return settings_class(**values | {"max_seq_length": min(longest, positions)})
        except ValueError as error:
            raise InputError(without_dashes(str(error))) from error


def load(folder: str | os.PathLike[str], head: str, precision: str, revision: str | None) -> Trained:
    """The trained model in `folder`, with the head of this name (bert/model.py).

    Args:
      folder: a run's folder or its `model/`, a Hugging Face folder, a TensorFlow checkpoint, or a hub name.
      precision: "fp32", "bf16" or "fp16": the number format of matrix products.
      revision: the commit, tag or branch of a model of the hub.
    Raises InputError: TensorFlow is missing or Keras runs on another backend; there is no such folder, or it holds
      no such model.
    """
    if not isinstance(folder, str | os.PathLike) or not str(folder):
        raise InputError(f"folder must be the path of a folder or a hub name, got {folder!r:.80}")
    if precision not in get_args(Precision):
        raise InputError(f"precision must be one of {', '.join(get_args(Precision))}, got {precision!r:.80}")
    name = os.fspath(folder)
    start()
    try:
        from tasks.start import settings_of_run

        source, run = place_of(name)
        return _loaded(name, source, settings_of_run(run), head, precision, revision)
    except InputError as error:
        text = without_dashes(one_line(error))
        raise InputError(text if name in text else f"folder {name}: {text}") from error


def start() -> None:
    """Imports TensorFlow and Keras as the programs do. Raises InputError when they cannot be used."""
    if "keras" not in sys.modules:
        set_environment()
    if "tensorflow" not in sys.modules:
        import_tensorflow(is_for_users=True)
    from distributed.devices import imported_tensorflow

    imported_tensorflow()
    import keras

    if keras.backend.backend() != "tensorflow":
        raise InputError(
            f"Keras runs on {keras.backend.backend()} in this process: set the environment variable "
            "KERAS_BACKEND=tensorflow before Keras is imported"
        )


def _loaded(
    name: str, source: str, settings: Mapping[str, Any], head: str, precision: str, revision: str | None
) -> Trained:
    from bert import weights
    from bert.model import Bert
    from distributed.collectives.local import LocalCollectives
    from distributed.world import World
    from tasks.job import Job
    from tasks.settings import ModelSettings
    from tasks.start import TOKENIZER_FILES, Needs, start_of_model

    run = Session()
    found = weights.find(source, revision)
    folder = found if found.is_dir() else found.parent
    if not any((folder / file).is_file() for file in CONFIG_FILES):
        raise InputError(f"folder {name} has no {' or '.join(CONFIG_FILES)}: it is no folder of a model or run")
    if not any(any(folder.glob(pattern)) for pattern in TOKENIZER_FILES):
        raise InputError(f"folder {name} has no vocabulary ({', '.join(TOKENIZER_FILES)})")
    settings_of_model = made(ModelSettings, {"model": source, "model_revision": revision})
    start = start_of_model(settings_of_model, run.say, Needs(max_seq_length=1))
    assert start.weights is not None
    with policy(precision):
        model = Bert(start.bert_config, head)
    model.compiles_parts = False  # a question of a new length would wait 0.2 s for XLA, to save 2 ms
    try:
        weights.load(model, start.weights)
    except weights.MissingTensors as error:
        if set(error.names) <= set(weights.HEAD_TENSORS[head]) and head in PROGRAM_OF_HEAD:
            raise InputError(
                f"folder {name} holds a model without the head for this task ({error.names[0]} is missing): "
                f"{_use_of(error.unused)}, or train one with {PROGRAM_OF_HEAD[head]}"
            ) from error
        raise
    job = Job(World(), LocalCollectives(), run, Engine(model))
    return Trained(name, precision, model, start.words, settings, job)


def _use_of(tensors: Sequence[str]) -> str:
    """What a model is for, by the tensors beyond its encoder."""
    if "cls/squad/output_weights" in tensors:
        return "it answers questions: use ringbert.QuestionAnswering"
    if "output_weights" in tensors:
        return "it labels texts: use ringbert.Classifier"
    return "it is trained for no task: use ringbert.Features for its vectors"


@contextlib.contextmanager
def policy(precision: str) -> Iterator[None]:
    """The Keras dtype policy of models made in the block; afterwards the process has its own one again."""
    import keras

    from tasks.job import POLICIES

    with _policy_lock:
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(POLICIES[precision])
        try:
            yield
        finally:
            keras.config.set_dtype_policy(before)


# -- the folder ---------------------------------------------------------------------------------------------------


def place_of(name: str) -> tuple[str, Path | None]:
    """Where the weights of `name` are, and the folder of the run that wrote them, if one did.

    Of a run's folder this is `model/`, else its best or newest checkpoint. Raises InputError: it has neither.
    """
    from distributed.checkpoint import checkpoint_at
    from tasks.start import CHECKPOINTS, newest_checkpoint, run_of

    path = Path(name).expanduser()
    if not path.is_dir():
        return name, None
    if any((path / file).is_file() for file in CONFIG_FILES):
        return name, run_of(path)
    if (path / "model" / "config.json").is_file():
        return str(path / "model"), path
    if (path / CHECKPOINTS).is_dir():
        checkpoint = newest_checkpoint("auto", path, Session().say)
        if checkpoint is not None:
            best = checkpoint.state.best
            chosen = checkpoint_at(checkpoint.path.parent, best[0]) if best else checkpoint
            return str(chosen.path), path
    if seeds := sorted(child.name for child in path.glob("seed-*") if child.is_dir()):
        raise InputError(
            f"folder {name} has the runs of several seeds: give one of them, such as {path / seeds[0]}"
        )
    if (path / "run.json").is_file():
        raise InputError(
            f"folder {name} is a run that has not saved a model yet: it has neither model/ nor checkpoints"
        )
    return name, None
