"""A trained model in this process, without joining any ranks: for Python and for export."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import keras

from bert import hub, weights
from bert.heads import Head
from bert.model import Bert
from distributed.collectives import Collectives
from distributed.found import CHECKPOINTS
from distributed.run import Unwritten
from distributed.world import World
from ringbase.errors import InputError, as_arguments, one_line
from ringbase.settings import made
from tasks.runs.execute.job import POLICIES, Job
from tasks.runs.execute.loading import check_kind, model_of
from tasks.runs.remote import fetched_model, is_remote
from tasks.runs.resolve.past import models_in
from tasks.runs.resolve.spec import Start
from tasks.runs.resolve.start import (
    TOKENIZER_FILES,
    Needs,
    find_start,
    past_of,
    start_of_model,
)
from tasks.runs.settings import ModelSettings, Precision

CONFIG_FILES = ("config.json", "bert_config.json")
ARGUMENTS = {"model": "folder", "init_checkpoint": "folder"}  # of flags, where they differ
FEWEST_SHOWN = 50  # steps of a progress bar: shorter loops have none


class Session(Unwritten):
    """A run that writes nothing, and shows warnings as Python's."""

    def say(self, text: str) -> None:
        if text.startswith("warning: "):
            message = as_arguments(text.removeprefix("warning: "), ARGUMENTS)
            warnings.warn(message, stacklevel=2)

    def shows(self, total: int) -> bool:
        return total >= FEWEST_SHOWN


def find_model(name: str, revision: str | None) -> Start:
    """Where the model in a folder is: of a run's folder in `model/`, else in its best or newest
    checkpoint. A remote one is copied into the cache."""
    if is_remote(name):
        name = fetched_model(name)
    path = Path(name).expanduser()
    say = Session().say
    is_complete = (path / "model/config.json").is_file()
    source = str(path / "model") if is_complete else name
    settings = made(ModelSettings, {"model": source, "model_revision": revision})
    if (path / CHECKPOINTS).is_dir() and not is_complete:
        past, _ = past_of(path, "auto", say, reads_starts=False)
        return find_start(settings, "auto", past, trains=False, needs=Needs(), say=say)
    place = hub.find(source, revision)
    folder = place if place.is_dir() else place.parent
    for files in (CONFIG_FILES, TOKENIZER_FILES):
        if not any(any(folder.glob(file)) for file in files):
            raise InputError(
                f"folder {name} has no {' or '.join(files)}: it is no model, nor a run with"
                f" one{models_in(folder)}"
            )
    return start_of_model(settings, say, Needs())


def alone() -> Job:
    """A job of this process alone, which writes nothing."""
    return Job(World(), Collectives(), Session())


def load_model(start: Start, head: Head, precision: Precision = "fp32") -> Bert:
    """The trained model. Raises InputError: it has another head."""
    check_kind(start, head)
    before = keras.config.dtype_policy()  # the process's, which is restored
    keras.config.set_dtype_policy(POLICIES[precision])
    try:
        model = model_of(start, head)
    finally:
        keras.config.set_dtype_policy(before)
    assert start.weights is not None
    try:
        weights.load(model, start.weights)
    except weights.MissingTensors as error:
        advice = f"; {head.program} trains such a model" if head.program else ""
        raise InputError(f"{error}{advice}") from error
    return model


@contextlib.contextmanager
def about_arguments(name: str) -> Iterator[None]:
    """Makes errors about flags errors about arguments, with the folder's name."""
    try:
        yield
    except ValueError as error:
        text = as_arguments(one_line(error), ARGUMENTS)
        raise InputError(text if name in text else f"folder {name}: {text}") from error
