"""Callbacks for `fit`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ringbase.errors import InputError
from ringbert.horovod.operations import allreduce, broadcast_
from ringbert.horovod.session import current


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all ranks the weights and the optimizer's state of rank `root_rank`, but not `local_variables`.

    It does so before the first step; after it, as Horovod, if the model is not built by then.
    """

    def __init__(self, root_rank: int = 0, device: str = "", local_variables: Any = ()):
        super().__init__()
        self.root_rank, self.kept = root_rank, set(map(id, tf.nest.flatten(local_variables)))

    def on_train_begin(self, logs: Any = None) -> None:
        self._is_done = False
        if self.model.built:
            if not self.model.optimizer.built:
                self.model.optimizer.build(self.model.trainable_variables)
            self.on_train_batch_end(0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._is_done:
            variables = [*self.model.variables, *self.model.optimizer.variables]
            broadcast_([variable for variable in variables if id(variable) not in self.kept], self.root_rank)
            self._is_done = True


class MetricAverageCallback(keras.callbacks.Callback):
    """Replaces an epoch's metrics by their averages over ranks. Put it before callbacks that use them."""

    def __init__(self, device: str = ""):
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        names = sorted(name for name, value in (logs or {}).items() if np.ndim(value) == 0)
        if logs and names:
            means = allreduce(np.array([float(logs[name]) for name in names]), name=f"metrics {', '.join(names)}")
            logs.update(zip(names, means.numpy().tolist(), strict=True))


@dataclass(eq=False)
class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the rate to `initial_lr * multiplier(epoch)` from `start_epoch` to before `end_epoch`."""

    initial_lr: float
    multiplier: float | Callable[[float], float]
    start_epoch: int = 0
    end_epoch: int | None = None
    staircase: bool = True  # change the rate at the beginning of epochs only; else before each batch
    momentum_correction: bool = True  # scale the momentum's state with the rate (Goyal et al. 2017, section 3)
    steps_per_epoch: int | None = None  # for fractions of epochs, where `fit` does not know it

    def __post_init__(self) -> None:
        super().__init__()
        self.staircase = self.staircase or not callable(self.multiplier)

    def on_train_begin(self, logs: Any = None) -> None:
        self.steps_per_epoch = self.steps_per_epoch or self.params.get("steps")
        if not self.staircase and not self.steps_per_epoch:
            raise InputError(f"{type(self).__name__} needs steps_per_epoch, because fit does not know it")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        is_over = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or is_over or (self.staircase and batch):
            return
        epoch = self.current_epoch + (0 if self.staircase else batch / float(self.steps_per_epoch or 1))
        factor = self.multiplier(epoch) if callable(self.multiplier) else self.multiplier
        optimizer = self.model.optimizer
        before, after = float(optimizer.learning_rate), self.initial_lr * factor
        optimizer.learning_rate = after
        if self.momentum_correction and before and after != before and getattr(optimizer, "momentum", 0):
            # Keras multiplies gradients by the rate before it adds them to the momentum.
            for velocity in getattr(optimizer, "momentums", ()):
                velocity.assign(velocity * (after / before))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)


def LearningRateWarmupCallback(
    initial_lr: float, warmup_epochs: float = 5, *args: Any, verbose: int = 0, **options: Any
) -> LearningRateScheduleCallback:
    """Raises the rate from `initial_lr / size` to `initial_lr` over the first epochs (Goyal et al. 2017).

    The options are `momentum_correction` and `steps_per_epoch`. `fit` shows the rate, so `verbose` has no effect.
    """

    def multiplier(epoch: float) -> float:
        # So that the rate at the end of an epoch, which is logged, belongs to a whole number of epochs.
        epoch, size = epoch + 1.0 / (schedule.steps_per_epoch or 1), current().world.size
        return (epoch * (size - 1) / warmup_epochs + 1) / size

    schedule = LearningRateScheduleCallback(initial_lr, multiplier, 0, int(warmup_epochs), False, *args, **options)
    return schedule


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Keeps the model with the best `monitor`; rank 0 writes. Put it after `MetricAverageCallback`."""

    def __init__(self, filepath: str | Path = "best_model.keras", monitor: str = "val_loss", **options: Any):
        super().__init__(str(filepath), monitor, **options, save_best_only=True)

    def _save_model(self, *args: Any, **options: Any) -> None:
        if current().world.rank == 0:
            super()._save_model(*args, **options)
