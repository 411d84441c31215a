"""The factor of the losses while gradients are computed: small float16 gradients would be 0.

Micikevicius et al. 2018 (Mixed Precision Training), section 3.2, with the constants of PyTorch's
GradScaler and Keras' LossScaleOptimizer, which differ only in the initial scale.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import keras
import tensorflow as tf
from tensorflow import Tensor

LOSS_SCALE = "loss_scale"  # the name of its state
START = (2.0**15, 0.0)  # the scale, and the number of finite steps in a row
STEPS_TO_GROW, LEAST = 2000, 1.0


class LossScale(Protocol):
    """How losses are scaled."""

    start: Sequence[float]  # the first values of its variable

    def state(self) -> Mapping[str, keras.Variable]:
        """Its variable, if it has one."""

    def scaled(self, factors: Tensor) -> Tensor:
        """The factors of the losses in the backward pass."""

    def inverse(self, dtype: str) -> Tensor:
        """What makes the gradients those of the losses again, a scalar."""

    def shown(self, dtype: str) -> Tensor:
        """The scale for the log, or 0 if there is none to show."""

    def after(self, is_finite: Tensor, is_valid: Tensor | bool) -> None:
        """Changes the scale after a step, unless that is not valid."""


class Unscaled:
    """Losses as they are."""

    start: Sequence[float] = ()

    def state(self) -> Mapping[str, keras.Variable]:
        return {}

    def scaled(self, factors: Tensor) -> Tensor:
        return factors

    def inverse(self, dtype: str) -> Tensor:
        return tf.ones([], dtype)

    def shown(self, dtype: str) -> Tensor:
        return tf.zeros([], dtype)

    def after(self, is_finite: Tensor, is_valid: Tensor | bool) -> None:
        pass


class AdaptiveScale:
    """A scale that a gradient which is not finite halves, and that 2,000 finite ones in a row
    double."""

    start: Sequence[float] = START

    def __init__(self) -> None:
        # float32 [2]: the scale, and the number of finite steps in a row
        self._variable = keras.Variable(START, dtype="float32", trainable=False)

    def state(self) -> Mapping[str, keras.Variable]:
        return {LOSS_SCALE: self._variable}

    def scaled(self, factors: Tensor) -> Tensor:
        return factors * self.shown(factors.dtype)

    def inverse(self, dtype: str) -> Tensor:
        return tf.ones([], dtype) / self.shown(dtype)

    def shown(self, dtype: str) -> Tensor:
        return tf.cast(self._variable.value[0], dtype)

    def after(self, is_finite: Tensor, is_valid: Tensor | bool) -> None:
        values = self._variable.value
        changed = _next(values, is_finite)
        self._variable.assign(tf.where(is_valid, changed, values))


def _next(values: Tensor, is_finite: Tensor) -> Tensor:
    scale, finite_steps = tf.unstack(values)
    grows = tf.equal(finite_steps + 1, STEPS_TO_GROW)
    after_finite = tf.where(grows, [scale * 2, 0.0], [scale, finite_steps + 1])
    return tf.where(is_finite, after_finite, [tf.maximum(scale / 2, LEAST), 0.0])
