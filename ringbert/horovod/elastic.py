"""Horovod's `hvd.elastic`: a state that is committed, and a function that starts from it. No rank
is replaced; `bert-launch --restarts` starts the job again, which goes on from the last commit."""

import copy
import functools
import itertools
import json
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras.callbacks import LambdaCallback

from distributed.launcher import COMMITS
from ringbase.errors import InputError, one_line, unread
from ringbase.files import replacing
from ringbert.horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from ringbert.horovod.operations import broadcast_, broadcast_object
from ringbert.horovod.session import current

FACTS = "facts"  # the member of a commit's file that holds no variable
_numbers = itertools.count(1)  # of the states that a script makes: the same at each start


class TensorFlowState:
    """Variables and attributes (`epoch`) that all ranks share, and copies of them as of the last
    `commit`."""

    def __init__(self, variables: Sequence = (), **attributes):
        self.variables = list(variables)
        self._names = tuple(attributes)
        self._number = next(_numbers)
        self._is_told = False  # that some attribute is in no file
        self._reset_callbacks: list[Callable[[], object]] = []
        vars(self).update(attributes)
        self.save()

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], object]] = ()) -> None:
        """Functions to call when the job goes on with another number of ranks."""
        self._reset_callbacks += callbacks

    def on_reset(self) -> None:
        for callback in self._reset_callbacks:
            callback()

    def check_host_updates(self) -> None:
        """Does nothing: the hosts of a job stay the same until it ends."""

    def save(self) -> None:
        """Copies the state in memory, for `restore`."""
        self._values = [np.array(tf.convert_to_tensor(variable)) for variable in self.variables]
        self._saved = copy.deepcopy(self._attributes())

    def commit(self) -> None:
        """Copies the state in memory, for `restore`, and to the folder of commits, for a restart,
        if there is one."""
        self.save()
        if (path := self._file()) and current().world.rank == 0:
            self._write(path)

    def restore(self) -> None:
        """Goes back to the last `commit`."""
        for variable, value in zip(self.variables, self._values, strict=True):
            variable.assign(value)
        vars(self).update(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Gives all ranks the state of rank 0, and saves it."""
        broadcast_(self.variables)
        vars(self).update(broadcast_object(self._attributes(), name="hvd.elastic"))
        self.save()

    def resume(self) -> None:
        """Gives all ranks the last commit of this job before it was started again, if there is one,
        else the state of rank 0. After a restart with another number of ranks it calls what
        `register_reset_callbacks` was given."""
        session, path = current(), self._file()
        size = session.world.size
        if path and session.world.rank == 0 and path.exists():
            size = self._read(path)
            session.world.say(f"hvd.elastic: goes on from the commit {path}")
        self.sync()
        if broadcast_object(size, name="hvd.elastic") != session.world.size:
            self.on_reset()
            self.save()

    def _attributes(self) -> dict:
        return {name: getattr(self, name) for name in self._names}

    def _file(self) -> Path | None:
        folder = os.environ.get(COMMITS)
        return Path(folder) / f"state-{self._number}.npz" if folder else None

    def _write(self, path: Path) -> None:
        kept, lost = {}, []
        for name, value in self._saved.items():
            try:
                kept[name] = json.loads(json.dumps(value))
            except (TypeError, ValueError):
                lost.append(name)
        if lost and not self._is_told:
            self._is_told = True
            names = ", ".join(f"state.{name}" for name in lost)
            current().world.say(f"note: {names}: not kept for a restart, as JSON cannot hold it")
        facts = json.dumps({"size": current().world.size, "attributes": kept})
        arrays: dict = {str(place): value for place, value in enumerate(self._values)}
        arrays[FACTS] = np.array(facts)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(path) as file:
                np.savez(file, **arrays)
        except OSError as error:
            raise InputError(
                f"state.commit(): {one_line(error)}: set {COMMITS} to a folder that can be written"
            ) from None

    def _read(self, path: Path) -> int:
        """Takes the values of a file. Returns how many ranks there were."""
        damaged = f"the commit {path} is damaged: delete it to begin anew"
        try:
            with np.load(path) as file:
                facts = json.loads(str(file[FACTS]))
                values = [file[str(place)] for place in range(len(file.files) - 1)]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise unread(error, f"the commit {path}", damaged) from None
        shapes = [tuple(variable.shape) for variable in self.variables]
        if [value.shape for value in values] != shapes:
            raise InputError(f"the commit {path} is of other variables: delete it to begin anew")
        for variable, value in zip(self.variables, values, strict=True):
            dtype = tf.as_dtype(variable.dtype).as_numpy_dtype
            variable.assign(value.view(dtype) if value.dtype.kind == "V" else value)  # bfloat16
        vars(self).update(facts["attributes"])
        return facts["size"]


class TensorFlowKerasState(TensorFlowState):
    """A state that holds a model's weights and its optimizer's variables too."""

    def __init__(self, model: keras.Model, optimizer=None, backend=None, **attributes):
        if not model.built:
            raise InputError("the model must be built first: call model.build(input_shape)")
        optimizer = optimizer or getattr(model, "optimizer", None)
        if optimizer is None:
            raise InputError("the model has no optimizer: call model.compile first, or give one")
        self.model, self.optimizer = model, optimizer
        super().__init__([*model.variables, *self.optimizer.variables], **attributes)


State = ObjectState = TensorFlowState
KerasState = TensorFlowKerasState


def run(function: Callable) -> Callable:
    """Makes `function(state, …)` start from the last commit of this job, after a restart, else from
    rank 0's state, on all ranks. After a HorovodInternalError, which the script raises on all
    ranks, it starts again from the last commit."""

    @functools.wraps(function)
    def resumed(state, *args, **options):
        state.resume()
        while True:
            try:
                return function(state, *args, **options)
            except HorovodInternalError:
                state.restore()
            except HostsUpdatedInterrupt:
                pass
            state.on_reset()
            state.sync()

    return resumed


def CommitStateCallback(state, batches_per_commit: int = 1) -> keras.callbacks.Callback:
    """Commits the state after every `batches_per_commit` batches and after each epoch."""

    def after_batch(batch, logs):
        if (batch + 1) % batches_per_commit == 0:
            state.commit()

    return LambdaCallback(
        on_train_batch_end=after_batch, on_epoch_end=lambda epoch, logs: state.commit()
    )


def UpdateBatchStateCallback(state) -> keras.callbacks.Callback:
    """Keeps the number of the batch in `state.batch`; 0 after each epoch."""
    return LambdaCallback(
        on_train_batch_end=lambda batch, logs: setattr(state, "batch", batch),
        on_epoch_end=lambda epoch, logs: setattr(state, "batch", 0),
    )


def UpdateEpochStateCallback(state) -> keras.callbacks.Callback:
    """Keeps the number of epochs that are done, also by earlier calls of `fit`, in
    `state.epoch`."""
    return LambdaCallback(on_epoch_end=lambda epoch, logs: setattr(state, "epoch", state.epoch + 1))
