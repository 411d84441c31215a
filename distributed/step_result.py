"""The numbers of a training step, and the loss scale of float16 training."""

import functools
from collections.abc import Mapping

import tensorflow as tf

# The loss scale of float16 training: Micikevicius et al. 2018 (Mixed Precision Training), section 3.2, with the
# constants of PyTorch's GradScaler and Keras' LossScaleOptimizer, which differ only in the initial scale.
FIRST_LOSS_SCALE, STEPS_TO_GROW, LEAST_LOSS_SCALE = 2.0**15, 2000, 1.0


class StepResult:
    """The numbers of a step. Reading the first of them waits until the device has finished the step.

    Args:
      numbers: [gradient norm, rate, 1 if applied else 0, loss scale, loss sums…], on the device.
      weights: the weight of each loss term over all ranks.
      scales_loss: the optimizer has a loss scale.
    """

    def __init__(self, numbers: tf.Tensor, weights: Mapping[str, float], scales_loss: bool = False):
        self.numbers, self._weights, self._scales_loss = numbers, weights, scales_loss

    @functools.cached_property
    def _values(self) -> list[float]:
        return self.numbers.numpy().tolist()

    @property
    def losses(self) -> dict[str, float]:
        """The mean of each loss term over all ranks."""
        return {
            term: s / weight for s, (term, weight) in zip(self._values[4:], self._weights.items(), strict=True)
        }

    @property
    def gradient_norm(self) -> float:
        """The global norm before clipping."""
        return self._values[0]

    @property
    def learning_rate(self) -> float:
        return self._values[1]

    @property
    def applied(self) -> bool:
        """False if the gradient was not finite, so that every rank skipped the update."""
        return bool(self._values[2])

    @property
    def loss_scale(self) -> float | None:
        """The loss scale after the step; None without one."""
        return self._values[3] if self._scales_loss else None


def next_loss_scale(state: tf.Tensor, applied: tf.Tensor) -> tf.Tensor:
    """The loss scale and the number of finite steps in a row, float32 [2], after a step.

    A gradient that is not finite halves the scale; 2,000 finite ones in a row double it. All ranks agree, because
    `applied` depends on the sum over ranks.
    """
    scale, finite_steps = tf.unstack(state)
    grows = tf.equal(finite_steps + 1, STEPS_TO_GROW)
    after_finite = tf.stack([tf.where(grows, scale * 2, scale), tf.where(grows, 0.0, finite_steps + 1)])
    return tf.where(applied, after_finite, tf.stack([tf.maximum(scale / 2, LEAST_LOSS_SCALE), 0.0]))
