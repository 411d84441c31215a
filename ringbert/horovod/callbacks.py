"""Callbacks for `fit`."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringbase.errors import InputError
from ringbert.horovod.operations import allreduce, broadcast_
from ringbert.horovod.session import PAGE, Call, current


def _agree(facts):
    """Raises InputError on every rank unless all have the same facts."""
    with current().meeting(Call("hvd.callbacks:", ", ".join(facts))):
        current().world.agree(facts)


def _optimizers_of(model):
    """The optimizers among a model's attributes, also in lists, with the attribute's name."""
    for name, value in sorted(vars(model).items()):
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, keras.optimizers.Optimizer):
                yield name, one


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all ranks the weights and the state of the model's optimizers of rank `root_rank`.

    It leaves out `local_variables`, and what `broadcast_` leaves out. It does so before the first
    step; after it, as Horovod, if the model is not built by then.
    """

    def __init__(self, root_rank: int = 0, device: str = "", local_variables=()):
        super().__init__()
        self.root_rank = root_rank
        self.kept = {id(variable) for variable in tf.nest.flatten(local_variables)}

    def on_train_begin(self, logs=None):
        self._is_done, self._has_begun = False, False
        if self.model.built:
            if not self.model.optimizer.built:
                self.model.optimizer.build(self.model.trainable_variables)
            self.on_train_batch_end(0)

    def on_epoch_begin(self, epoch, logs=None):
        if not self._has_begun:
            advice = "BackupAndRestore must be on every rank, each with its own folder"
            _agree({f"the first epoch of fit ({advice})": epoch})
            self._has_begun = True

    def on_train_batch_end(self, batch, logs=None):
        if not self._is_done:
            self._send(self.model.weights, "the model's weights")
            for name, optimizer in _optimizers_of(self.model):
                self._send(optimizer.variables, f"the state of model.{name}")
            self._is_done = True

    def _send(self, variables: list, name: str) -> None:
        shared = [variable for variable in variables if id(variable) not in self.kept]
        broadcast_(shared, self.root_rank, name)


class MetricAverageCallback(keras.callbacks.Callback):
    """Replaces an epoch's metrics by their averages over ranks. Put it before callbacks that use
    them."""

    def __init__(self, device: str = ""):
        super().__init__()

    def on_epoch_end(self, epoch, logs=None):
        rate = getattr(self.model.optimizer, "learning_rate", 0.0)  # a MultiOptimizer has several
        advice = "put MetricAverageCallback before callbacks that set it"
        facts = {f"the learning rate ({advice}, as ReduceLROnPlateau)": float(rate)}
        facts[f"stop_training ({advice}, as EarlyStopping)"] = self.model.stop_training
        _agree(facts)
        logs = {} if logs is None else logs
        names = sorted(name for name in logs if np.ndim(logs[name]) == 0)
        if names:
            values = np.array([float(logs[name]) for name in names])
            means = allreduce(values, name=f"metrics {', '.join(names)}")
            logs.update(zip(names, means.numpy().tolist(), strict=True))


@dataclass(eq=False)
class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the rate to `initial_lr * multiplier(epoch)` from `start_epoch` to before `end_epoch`.

    Without `initial_lr`, as before Horovod 0.20, it is the rate that the optimizer has when `fit`
    begins.
    """

    initial_lr: float | None = None
    multiplier: Any = None  # a number, or a function of the epoch
    start_epoch: int = 0
    end_epoch: float | None = None
    # change the rate at the beginning of epochs only; else before each batch
    staircase: bool = True
    # scale the momentum's state with the rate (Goyal et al. 2017, section 3)
    momentum_correction: bool = True
    steps_per_epoch: int | None = None  # for fractions of epochs, where `fit` does not know it

    def __post_init__(self) -> None:
        super().__init__()
        if callable(self.initial_lr) and self.multiplier is None:  # as before Horovod 0.20
            self.initial_lr, self.multiplier = None, self.initial_lr
        if callable(self.initial_lr) or self.multiplier is None:
            raise InputError(
                "LearningRateScheduleCallback: which is the rate? Give multiplier=, start_epoch="
                f" and initial_lr= by name: Horovod 0.20 has changed their order ({PAGE})"
            )
        self.reads_rate = self.initial_lr is None
        self.staircase = self.staircase or not callable(self.multiplier)

    def on_train_begin(self, logs=None):
        self.steps_per_epoch = self.steps_per_epoch or self.params.get("steps")
        if not self.staircase and not self.steps_per_epoch:
            raise InputError(
                f"{type(self).__name__} needs steps_per_epoch, because fit does not know it"
            )
        optimizer = self.model.optimizer
        try:
            optimizer.learning_rate = float(optimizer.learning_rate)
        except (TypeError, AttributeError):
            wrong = f"{type(self).__name__} cannot set the rate of {type(optimizer).__name__}"
            needed = "its learning_rate must be a number, not a LearningRateSchedule"
            raise InputError(f"{wrong}: {needed}") from None
        if self.reads_rate:
            self.initial_lr = float(optimizer.learning_rate)

    def on_epoch_begin(self, epoch, logs=None):
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        is_over = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or is_over or (self.staircase and batch):
            return
        epoch = self.current_epoch
        if not self.staircase:
            epoch += batch / (self.steps_per_epoch or 1)
        factor = self.multiplier(epoch) if callable(self.multiplier) else self.multiplier
        optimizer = self.model.optimizer
        before = float(optimizer.learning_rate)
        after = optimizer.learning_rate = self.initial_lr * factor
        if self.momentum_correction and before and after != before:
            for velocity in _velocities(getattr(optimizer, "inner_optimizer", optimizer)):
                velocity.assign(velocity * (after / before))

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)


def _velocities(optimizer):
    """The momentum's state, if the optimizer adds to it gradients times the rate."""
    if not getattr(optimizer, "momentum", 0) or isinstance(optimizer, keras.optimizers.Muon):
        return []
    of_sgd = getattr(optimizer, "momentums", [])
    of_rmsprop = getattr(optimizer, "_momentums", [])
    return [velocity for velocity in [*of_sgd, *of_rmsprop] if velocity is not None]


def LearningRateWarmupCallback(
    initial_lr: float | None = None,
    warmup_epochs: float | None = None,
    momentum_correction: bool = True,
    steps_per_epoch: int | None = None,
    verbose: int = 0,
) -> LearningRateScheduleCallback:
    """Raises the rate from `initial_lr / size` to `initial_lr` over the first epochs (5 unless
    given; Goyal et al. 2017).

    Steps that Keras takes in one call (`steps_per_execution`) have the rate of the last of them.

    Without `initial_lr`, as before Horovod 0.20, it is the rate that the optimizer has when `fit`
    begins. `fit` shows the rate, so `verbose` has no effect.
    """
    # A whole number above 1 is no rate, unless the epochs stand beside it.
    is_lone = isinstance(initial_lr, int) and initial_lr > 1 and warmup_epochs is None
    if is_lone or isinstance(warmup_epochs, bool):
        raise InputError(
            f"LearningRateWarmupCallback({initial_lr}): the rate, or the epochs? Write"
            f" initial_lr={initial_lr}.0, or warmup_epochs={initial_lr}, by name: Horovod 0.20 has"
            f" changed their order ({PAGE})"
        )
    num_epochs = 5 if warmup_epochs is None else warmup_epochs

    def multiplier(epoch):
        # At the end of the call: the rate which is logged belongs to a whole number of epochs.
        call = schedule.model.steps_per_execution / (schedule.steps_per_epoch or 1)
        end = min(epoch + call, math.floor(epoch) + 1)
        size = current().world.size
        return min((end * (size - 1) / num_epochs + 1) / size, 1.0)

    # from epoch 0 to the last, and not in steps of whole epochs
    fixed = (initial_lr, multiplier, 0, num_epochs, False)
    schedule = LearningRateScheduleCallback(*fixed, momentum_correction, steps_per_epoch)
    return schedule


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Keeps the model with the best `monitor`; rank 0 writes. Put it after
    `MetricAverageCallback`."""

    def __init__(
        self, filepath: str | Path = "best_model.keras", monitor: str = "val_loss", **options
    ):
        super().__init__(str(filepath), monitor, **options, save_best_only=True)

    def _save_model(self, *args, **options) -> None:
        if current().world.rank == 0:
            super()._save_model(*args, **options)
