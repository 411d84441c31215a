"""Horovod's `hvd.elastic`: a state that is committed, and a function that starts from it. No rank
is replaced."""

import copy
import functools
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf
from keras.callbacks import LambdaCallback

from ringbase.errors import InputError
from ringbert.horovod.operations import broadcast_, broadcast_object


class TensorFlowState:
    """Variables and attributes (`epoch`) that all ranks share, and copies of them as of the last
    `commit`."""

    def __init__(self, variables: Sequence = (), **attributes):
        self.variables = list(variables)
        self._names = tuple(attributes)
        vars(self).update(attributes)
        self.commit()

    def register_reset_callbacks(self, callbacks=()) -> None:
        """Does nothing: the callbacks are for the time when the ranks change, which they do not."""

    check_host_updates = register_reset_callbacks

    def commit(self) -> None:
        """Copies the state in memory, for `restore`."""
        self._values = [np.array(tf.convert_to_tensor(variable)) for variable in self.variables]
        self._saved = copy.deepcopy(self._attributes())

    save = commit

    def restore(self) -> None:
        """Goes back to the last `commit`."""
        for variable, value in zip(self.variables, self._values, strict=True):
            variable.assign(value)
        vars(self).update(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Gives all ranks the state of rank 0, and commits it."""
        broadcast_(self.variables)
        vars(self).update(broadcast_object(self._attributes(), name="hvd.elastic"))
        self.commit()

    def _attributes(self) -> dict:
        return {name: getattr(self, name) for name in self._names}


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
    """Makes `function(state, …)` start with rank 0's state on all ranks."""

    @functools.wraps(function)
    def synchronized(state, *args, **options):
        state.sync()
        return function(state, *args, **options)

    return synchronized


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
