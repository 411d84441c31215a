"""Horovod's `hvd.elastic`: a state that is committed, and a function that starts from it.

Horovod replaces ranks of a running job; hvd in RingBERT does not. So `run` calls its function once, with rank 0's
state on all ranks. When a rank dies, the job ends; `bert-launch --restarts N` starts it again, from what the
script saves itself.
"""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringbert.horovod.operations import broadcast_object
from ringbert.horovod.optimizer import broadcast_variables
from ringbert.horovod.session import current


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes `function(state, …)` start with rank 0's state on all ranks."""

    @functools.wraps(function)
    def synchronized(state: "State", *args: Any, **options: Any) -> Any:
        current().world.say(
            "hvd.elastic: ranks that die are not replaced; bert-launch --restarts N starts the whole job again"
        )
        state.sync()
        return function(state, *args, **options)

    return synchronized


class State:
    """Attributes that all ranks share, such as `epoch` and `batch`, and copies of them as of the last `commit`."""

    def __init__(self, **attributes: Any):
        self._names = tuple(attributes)
        self._reset_callbacks: list[Callable[[], Any]] = []
        for name, value in attributes.items():
            setattr(self, name, value)
        self.save()

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Functions for the time when the ranks change, which they do not."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Copies the state in memory, for `restore`."""
        self.save()

    def check_host_updates(self) -> None:
        """Nothing: the hosts of a job do not change."""

    def save(self) -> None:
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._names}

    def restore(self) -> None:
        """Goes back to the last `commit`."""
        for name, value in self._saved.items():
            setattr(self, name, copy.deepcopy(value))

    def sync(self) -> None:
        """Gives all ranks the state of rank 0, and commits it."""
        values = broadcast_object({name: getattr(self, name) for name in self._names}, name="hvd.elastic")
        for name, value in values.items():
            setattr(self, name, value)
        self.save()


ObjectState = State


class TensorFlowState(State):
    """A state that holds the values of variables too."""

    def __init__(self, variables: Sequence[Any], **attributes: Any):
        self.variables = list(variables)
        super().__init__(**attributes)

    def _all_variables(self) -> list[Any]:
        return self.variables

    def save(self) -> None:
        self._values = [np.array(tf.convert_to_tensor(variable)) for variable in self._all_variables()]
        super().save()

    def restore(self) -> None:
        for variable, value in zip(self._all_variables(), self._values, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        broadcast_variables(self._all_variables(), root_rank=0)
        super().sync()


class TensorFlowKerasState(TensorFlowState):
    """A state that holds a model's weights and its optimizer's variables too."""

    def __init__(self, model: keras.Model, optimizer: Any = None, backend: Any = None, **attributes: Any):
        if not model.built:
            raise ValueError("the model must be built first: call model.build(input_shape)")
        self.model, self.optimizer = model, optimizer or model.optimizer
        super().__init__((), **attributes)

    def _all_variables(self) -> list[Any]:
        return [*self.model.variables, *self.optimizer.variables]


KerasState = TensorFlowKerasState


class CommitStateCallback(keras.callbacks.Callback):
    """Commits the state after every `batches_per_commit` batches and after each epoch."""

    def __init__(self, state: State, batches_per_commit: int = 1):
        super().__init__()
        self.state, self.batches_per_commit = state, batches_per_commit
        self.num_batches = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self.num_batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.num_batches += 1
        if self.num_batches % self.batches_per_commit == 0:
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keeps the number of the batch in `state.batch`; 0 after each epoch."""

    def __init__(self, state: Any):
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keeps the number of epochs that are done, also by earlier calls of `fit`, in `state.epoch`."""

    def __init__(self, state: Any):
        super().__init__()
        self.state = state
        self.first_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        self.first_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.epoch = self.first_epoch + epoch + 1
