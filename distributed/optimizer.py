"""AllreduceOptimizer: any Keras optimizer on many ranks, with one logical gradient reduction per step.

    weights, stop = optimizer.reduce_weights({"loss": rows}, stop)     # first: what each loss term is divided by
    flat = gradient(batch, weights)                                     # compiled; ends in optimizer.flatten(…)
    flat = optimizer.all_reduce(flat)                                   # in plain sight, outside compiled code
    losses = optimizer.update(flat)                                     # compiled: check, clip, update

Every rank ends a step with the same bits.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from distributed.collectives import Collectives
from distributed.world import World

LINE = 16  # numbers: the 64 bytes of a cache line in float32


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step did: mean of each loss term over all ranks, norm before clipping, rate, applied."""

    losses: dict[str, float]
    gradient_norm: float
    learning_rate: float
    applied: bool


class AllreduceOptimizer:
    """Wraps a Keras optimizer: flat-buffer sum over ranks, finite check, global-norm clip, one compiled update.

    Args:
      optimizer: any Keras optimizer without clipping of its own (that would clip after ours). One with a method
        `apply_scaled(gradients, scale)` multiplies by what clipping leaves in its own pass.
      variables: the trainable variables, in the order of the gradients; all of one dtype.
      loss_terms: names of the loss terms, whose sums travel behind the gradient.
      clip_norm: global norm that the summed gradient is clipped to, as tf.clip_by_global_norm does; None for none.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        variables: Sequence[keras.Variable],
        world: World,
        collectives: Collectives,
        loss_terms: Sequence[str] = ("loss",),
        clip_norm: float | None = 1.0,
    ):
        kinds = {variable.dtype for variable in variables}
        if len(kinds) != 1:
            raise ValueError(f"the trainable variables have several dtypes: {sorted(kinds)}")
        self.optimizer, self.trainable = optimizer, list(variables)
        self.world, self.collectives = world, collectives
        self.loss_terms, self.clip_norm = tuple(loss_terms), clip_norm
        self.dtype = kinds.pop()
        optimizer.build(self.trainable)
        self._sizes = [int(np.prod(variable.shape)) for variable in self.trainable]
        # On CPUs XLA would take 10 s to compile the whole; an optimizer may compile its parts (bert/optimizer.py).
        self._compiled_update = tf.function(self._update, jit_compile=world.device == "gpu", autograph=False)

    @property
    def steps_done(self) -> int:
        return int(self.optimizer.iterations.numpy())

    def state(self) -> dict[str, keras.Variable]:
        """The optimizer's variables but for the rate, under names that depend on their order alone."""
        kept = [v for v in self.optimizer.variables if v is not self.optimizer._learning_rate]
        return {f"{number:04d}": variable for number, variable in enumerate(kept)}

    def reduce_weights(self, weights: Mapping[str, float], stop: bool = False) -> tuple[dict[str, float], bool]:
        """Each loss term's weight summed over ranks (in float64), and whether any rank wants to stop.

        Raises ValueError when a term's weight is zero over all ranks: its mean is not defined.
        """
        local = np.array([*(weights[term] for term in self.loss_terms), float(stop)], np.float64)
        *total, stops = self.world.all_reduce_sum(local)
        for term, weight in zip(self.loss_terms, total, strict=True):
            if not weight > 0:
                raise ValueError(
                    f"the weight of loss term {term!r} over all ranks is {weight}: nothing to average"
                )
        return dict(zip(self.loss_terms, map(float, total), strict=True)), bool(stops)

    def flatten(self, gradients: Sequence, loss_sums: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """[gradient | loss sums] as one vector in the variables' dtype; sparse gradients become dense.

        Zeros fill each gradient up to whole lines of a cache, so that no part has to be copied to be used alone.
        """
        parts = []
        for gradient, size in zip(gradients, self._sizes, strict=True):
            if gradient is None:
                parts.append(tf.zeros([size + -size % LINE], self.dtype))
                continue
            parts.append(tf.reshape(tf.convert_to_tensor(gradient), [-1]))
            if size % LINE:
                parts.append(tf.zeros([-size % LINE], self.dtype))
        sums = tf.stack([tf.cast(loss_sums[term], self.dtype) for term in self.loss_terms])
        return tf.concat([*parts, sums, tf.zeros([-len(self.loss_terms) % LINE], self.dtype)], 0)

    def all_reduce(self, flat: tf.Tensor) -> tf.Tensor:
        """The sum of the flat buffers of all ranks."""
        return self.collectives.all_reduce_sum(flat)

    def update(self, flat: tf.Tensor, weights: Mapping[str, float]) -> StepResult:
        """Checks, clips and applies a reduced buffer; a gradient that is not finite is skipped on every rank."""
        rate = float(self.optimizer.learning_rate.numpy())
        sums, norm, finite = self._compiled_update(flat)
        losses = {t: float(s) / weights[t] for t, s in zip(self.loss_terms, sums.numpy(), strict=True)}
        return StepResult(losses, float(norm.numpy()), rate, bool(finite.numpy()))

    def _update(self, flat: tf.Tensor):
        # Lines as rows: TensorFlow then splits without copying.
        lines = [-(-size // LINE) for size in (*self._sizes, len(self.loss_terms))]
        gradient, sums = tf.split(tf.reshape(flat, [-1, LINE]), [sum(lines[:-1]), lines[-1]])
        norm = tf.sqrt(2.0 * tf.nn.l2_loss(gradient))  # one pass; a product with itself would lose digits
        pieces = tf.split(gradient, lines[:-1])
        finite = tf.math.is_finite(norm)
        scale = tf.ones([], flat.dtype)
        if self.clip_norm is not None:
            clip = tf.constant(self.clip_norm, flat.dtype)
            scale = clip / tf.maximum(norm, clip)
        gradients = [
            tf.reshape(tf.reshape(piece, [-1])[:size] if size % LINE else piece, variable.shape)
            for piece, size, variable in zip(pieces, self._sizes, self.trainable, strict=True)
        ]

        def apply():
            if hasattr(self.optimizer, "apply_scaled"):
                self.optimizer.apply_scaled(gradients, scale)
            else:
                self.optimizer.apply([gradient * scale for gradient in gradients])
            return tf.constant(True)

        tf.cond(finite, apply, lambda: tf.constant(False))
        return tf.reshape(sums, [-1])[: len(self.loss_terms)], norm, finite

    def broadcast_variables(self) -> None:
        """Gives every rank rank 0's trainable variables and optimizer state."""
        broadcast_variables([*self.trainable, *self.state().values()], self.collectives)

    def replica_digest(self) -> str:
        """A digest of the trainable variables' bits, equal on every rank."""
        total = hashlib.sha256()
        for variable in self.trainable:
            total.update(np.ascontiguousarray(variable.numpy()).data)
        return total.hexdigest()[:24]

    def check_replicas(self) -> None:
        """Raises InputError on every rank when the ranks' variables are not equal to the bit."""
        if self.world.size > 1:
            self.world.agree({f"the trainable variables after {self.steps_done} steps": self.replica_digest()})


def broadcast_variables(variables: Sequence[keras.Variable], collectives: Collectives) -> None:
    """Gives every rank rank 0's values."""
    for variable in variables:
        variable.assign(collectives.broadcast(tf.convert_to_tensor(variable.value)))
