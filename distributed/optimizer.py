"""AllreduceOptimizer: any Keras optimizer on many ranks, with one sum of a list of tensors per
step.

`TrainingStep.take` in `distributed/gradient.py` shows its use. It replaces Horovod's
`DistributedOptimizer`, but is not a Keras optimizer, because `apply_gradients` gets the gradients
without the weights that divide their sum.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import keras
import tensorflow as tf
from tensorflow import Tensor

from distributed.arrays import broadcast, digest_of, host_view
from distributed.collectives import Collectives
from distributed.world import World

CLIP_NORM = 1.0
# The loss scale of float16 training: Micikevicius et al. 2018 (Mixed Precision Training), section
# 3.2, with the constants of PyTorch's GradScaler and Keras' LossScaleOptimizer, which differ only
# in the initial scale.
LOSS_SCALE = "loss_scale"
START_OF_SCALE = (2.0**15, 0.0)  # the scale, and the number of finite steps in a row
STEPS_TO_GROW, LEAST_LOSS_SCALE = 2000, 1.0

Tensors = list[Tensor]  # the gradient of each variable, and last the loss sums [terms]


@dataclass(frozen=True)
class StepResult:
    """The numbers of a step, and the weight of each loss term over all ranks."""

    # [gradient norm, rate, 1 if applied else 0, loss scale or 0, loss sums…], on the device
    numbers: Tensor
    weights: Mapping[str, float]

    def read(self) -> dict[str, float]:
        """The numbers by name: losses are means over all ranks, NaN without a target,
        "gradient_norm" is that before clipping, and there is a "loss_scale" for float16 only. Waits
        until the device has finished the step."""
        norm, rate, applied, scale, *sums = self.numbers.numpy().tolist()
        losses = {}
        for loss_sum, (term, weight) in zip(sums, self.weights.items(), strict=True):
            losses[term] = loss_sum / weight if weight else math.nan
        numbers = {"loss": sum(losses.values()), **losses}
        numbers |= {"learning_rate": rate, "gradient_norm": norm, "applied": applied}
        if scale:
            numbers["loss_scale"] = scale
        return numbers


@dataclass(eq=False)
class AllreduceOptimizer:
    """Wraps a Keras optimizer: one sum over ranks, finite check, clip to the global norm 1, one
    compiled update.

    `optimizer` is any that does not clip. If it has a method `update(gradients, scale, rate)`, that
    method applies the factor of clipping, which saves a pass over memory. `trainable` are its
    variables, in the order of the gradients, all of one dtype. `scales_loss` multiplies the
    losses by an adaptive scale, for a model that computes in float16. The compression "bf16" sends
    gradients (not losses) between machines as bfloat16.
    """

    optimizer: keras.optimizers.Optimizer
    trainable: Sequence[keras.Variable]
    world: World
    collectives: Collectives
    loss_terms: Sequence[str] = ("loss",)
    scales_loss: bool = False
    compression: Literal["none", "bf16"] = "none"

    def __post_init__(self) -> None:
        (self.dtype,) = {variable.dtype for variable in self.trainable}
        self.optimizer.build(self.trainable)
        self._loss_scale = None
        if self.scales_loss:
            self._loss_scale = keras.Variable(START_OF_SCALE, dtype="float32", trainable=False)
        # On CPUs XLA would take 10 s to compile the whole update; an optimizer may compile parts of
        # its own.
        self.update = tf.function(self.apply, jit_compile=self.world.device.is_gpu, autograph=False)

    def state(self) -> dict[str, keras.Variable]:
        """The optimizer's variables except the learning rate, numbered in order, and the loss
        scale."""
        rate = self.optimizer._learning_rate
        variables = [variable for variable in self.optimizer.variables if variable is not rate]
        named = {f"{number:04d}": variable for number, variable in enumerate(variables)}
        if self._loss_scale is not None:
            named[LOSS_SCALE] = self._loss_scale
        return named

    def reset(self) -> None:
        """Gives the state its first values, which are 0 in BERT's optimizers."""
        for name, variable in self.state().items():
            value = START_OF_SCALE
            if name != LOSS_SCALE:
                value = tf.zeros(variable.shape, variable.dtype)
            variable.assign(value)

    def reduce_weights(
        self, weights: Mapping[str, float], requests: Sequence[bool] = ()
    ) -> tuple[dict[str, float], list[bool]]:
        """Each loss term's weight summed over ranks (in float64), and which of the requests any
        rank makes. Raises ValueError when a weight is negative or NaN."""
        in_order = [weights[term] for term in self.loss_terms]
        sums = self.world.all_reduce_sum([*in_order, *requests], "the sum of a step's weights")
        num_terms = len(in_order)
        total = dict(zip(self.loss_terms, sums[:num_terms].tolist(), strict=True))
        for term, weight in total.items():
            if not weight >= 0:
                raise ValueError(f"the weight of loss term {term!r} over all ranks is {weight}")
        is_wanted = sums[num_terms:] > 0
        return total, is_wanted.tolist()

    def inverse_weights(self, totals: Mapping[str, float]) -> Tensor:
        """The factor of each loss sum in the backward pass, [terms]: loss scale / weight over all
        ranks."""
        inverse = [1 / totals[term] for term in self.loss_terms]
        factors = tf.constant(inverse, self.dtype)
        return factors if self._loss_scale is None else factors * self._scale()

    def _scale(self) -> Tensor:
        """That of the losses, or 0 if they have none."""
        if self._loss_scale is None:
            return tf.zeros([], self.dtype)
        return tf.cast(self._loss_scale.value[0], self.dtype)

    def _rate(self) -> Tensor:
        return tf.cast(self.optimizer.learning_rate, self.dtype)

    def all_reduce(self, own: Tensors) -> Tensors:
        """The sums over ranks, with the same bits on all of them."""
        with self.world.operation("the sum of the gradients"):
            return self.collectives.all_reduce_sum(own, self.compression == "bf16")

    def apply(self, total: Tensors, is_valid: Tensor | bool = True) -> Tensor:
        """Checks, clips and applies sums; what is not finite, or not `is_valid`, is skipped on
        every rank. Returns the numbers of `StepResult`. `update` is this, compiled."""
        *gradients, sums = total
        rate = self._rate()
        scale = tf.ones([], self.dtype)
        if self._loss_scale is not None:
            scale /= self._scale()
        norm = tf.sqrt(2.0 * tf.add_n([tf.nn.l2_loss(gradient) for gradient in gradients])) * scale
        finite = tf.math.is_finite(norm) & is_valid
        clip = tf.constant(CLIP_NORM, self.dtype)  # as in tf.clip_by_global_norm
        scale *= clip / tf.maximum(norm, clip)

        def change_variables():
            if hasattr(self.optimizer, "update"):
                self.optimizer.update(gradients, scale, rate)
                self.optimizer.iterations.assign_add(1)
            else:
                self.optimizer.apply([gradient * scale for gradient in gradients])
            return tf.constant(True)

        tf.cond(finite, change_variables, lambda: tf.constant(False))
        if self._loss_scale is not None:
            changed = _next_loss_scale(self._loss_scale.value, finite)
            self._loss_scale.assign(tf.where(is_valid, changed, self._loss_scale.value))
        numbers = tf.stack([norm, rate, tf.cast(finite, self.dtype), self._scale()])
        return tf.concat([numbers, sums], 0)

    def skip(self) -> Tensor:
        """The numbers of `StepResult` of a step that computes and changes nothing."""
        zero = tf.zeros([], self.dtype)
        loss_sums = [zero] * len(self.loss_terms)
        return tf.stack([zero, self._rate(), zero, self._scale(), *loss_sums])

    def check_replicas(self) -> None:
        """Raises InputError on every rank unless the ranks' trainable variables are
        bit-identical."""
        if self.world.size > 1:
            what = f"the trainable variables after {self.optimizer.iterations.numpy()} steps"
            self.world.agree({what: digest_of(variable.value for variable in self.trainable)})


def terms_without_targets(weights: Mapping[str, float]) -> list[str]:
    """The loss terms that no row of a step has a target for: their means are not defined."""
    return [term for term, weight in weights.items() if weight == 0]


def broadcast_variables(variables: Sequence[keras.Variable], world: World, root: int = 0) -> None:
    """Gives every rank the values of the rank `root`."""
    with world.operation("the broadcast of the variables"):
        for variable in variables if world.size > 1 else ():
            own_values = host_view(variable.value)
            values = broadcast(world.comm, own_values, root)
            if world.rank != root:
                variable.assign(values)
        world.refuse_after_death()


def _next_loss_scale(state, applied):
    """The loss scale and the number of finite steps in a row, float32 [2], after a step. A gradient
    that is not finite halves the scale; 2,000 finite ones in a row double it."""
    scale, finite_steps = tf.unstack(state)
    grows = tf.equal(finite_steps + 1, STEPS_TO_GROW)
    after_finite = tf.where(grows, [scale * 2, 0.0], [scale, finite_steps + 1])
    return tf.where(applied, after_finite, [tf.maximum(scale / 2, LEAST_LOSS_SCALE), 0.0])
