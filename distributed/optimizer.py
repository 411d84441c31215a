"""AllreduceOptimizer: any Keras optimizer on many ranks, with one sum of a list of tensors per
step.

`SplitStep.take` in `distributed/step.py` shows its use. It replaces Horovod's
`DistributedOptimizer`, but is not a Keras optimizer, because `apply_gradients` gets the gradients
without the weights that divide their sum.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import keras
import tensorflow as tf
from tensorflow import Tensor

from distributed.arrays import broadcast, digest_of, host_view
from distributed.collectives import Collectives, Sink
from distributed.loss_scale import AdaptiveScale, LossScale, Unscaled
from distributed.world import World

Tensors = list[Tensor]  # the gradient of each variable, and last the loss sums [terms]
# "mlm/news" is a part of the loss term "mlm": its mean is logged, and nothing is learned from it
PART = "/"


@dataclass(frozen=True)
class StepResult:
    """The numbers of a step, and the weight of each loss term over all ranks."""

    # [gradient norm, rate, 1 if applied else 0, loss scale or 0, loss sums…], on the device
    numbers: Tensor
    weights: Mapping[str, float]
    awaited: str = "the result of a step"  # what the watchdog says of a wait for the numbers

    def read(self) -> dict[str, float]:
        """The numbers by name: losses are means over all ranks, NaN without a target; parts of them
        without one are left out. "gradient_norm" is that before clipping, and there is a
        "loss_scale" for float16 only. Waits until the device has finished the step."""
        norm, rate, applied, scale, *sums = self.numbers.numpy().tolist()
        losses, parts = {}, {}
        for loss_sum, (term, weight) in zip(sums, self.weights.items(), strict=True):
            if PART not in term:
                losses[term] = loss_sum / weight if weight else math.nan
            elif weight:
                parts[term] = loss_sum / weight
        numbers = {"loss": sum(losses.values()), **losses, **parts}
        numbers |= {"learning_rate": rate, "gradient_norm": norm, "applied": applied}
        if scale:
            numbers["loss_scale"] = scale
        return numbers


class StepOptimizer(Protocol):
    """What a step needs of an optimizer."""

    world: World

    @property
    def trainable(self) -> Sequence[Any]:
        """The variables, of one dtype."""

    def state(self) -> Mapping[str, Any]:
        """The optimizer's own variables, by name."""

    def reset(self) -> None:
        """Gives the state its first values."""

    def num_steps(self) -> int:
        """How many updates the state has seen."""

    def factors(self, weights: Mapping[str, float]) -> Tensor:
        """The factor of each loss term in the backward pass, [terms], for the weights over all
        ranks."""

    def sink(self) -> Sink:
        """What takes the tensors of one step and sums them over ranks."""

    def update(self, total: Tensors) -> Tensor:
        """Changes the variables by the sums [*gradients, loss terms], unless they are not finite.
        Returns the numbers of `StepResult`."""

    def skip(self, num_terms: int) -> Tensor:
        """The numbers of `StepResult` of a step that computes and changes nothing."""


@runtime_checkable
class ScaledUpdate(Protocol):
    """A Keras optimizer which applies the factor of clipping itself: it saves a pass over
    memory."""

    iterations: keras.Variable

    def update_scaled(self, gradients: Sequence[Tensor], scale: Tensor, rate: Tensor) -> None:
        """A step of all variables with scale * gradients, in the order of `build`. `iterations`
        stay as they are."""


@dataclass(eq=False)
class AllreduceOptimizer:
    """Wraps a Keras optimizer: one sum over ranks, finite check, clip to the global norm
    `clip_norm` (0: none), one compiled update.

    `optimizer` is any that does not clip. `trainable` are its variables, in the order of the
    gradients, all of one dtype. `scales_loss` multiplies the losses by an adaptive scale, for a
    model that computes in float16. The compression "bf16" sends gradients (not losses) between
    machines as bfloat16.
    """

    optimizer: keras.optimizers.Optimizer
    trainable: Sequence[keras.Variable]
    world: World
    collectives: Collectives
    scales_loss: bool = False
    compression: Literal["none", "bf16"] = "none"
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        (self.dtype,) = {variable.dtype for variable in self.trainable}
        self.optimizer.build(self.trainable)
        self._loss_scale: LossScale = AdaptiveScale() if self.scales_loss else Unscaled()
        # On CPUs XLA would take 10 s to compile the whole update; an optimizer may compile parts of
        # its own.
        self.update = tf.function(self.apply, jit_compile=self.world.device.is_gpu, autograph=False)

    def state(self) -> dict[str, keras.Variable]:
        """The optimizer's variables except the learning rate, numbered in order, and the loss
        scale."""
        return {**self._own_state(), **self._loss_scale.state()}

    def _own_state(self) -> dict[str, keras.Variable]:
        rate = self.optimizer._learning_rate
        variables = [variable for variable in self.optimizer.variables if variable is not rate]
        return {f"{number:04d}": variable for number, variable in enumerate(variables)}

    def reset(self) -> None:
        """Gives the state its first values, which are 0 in BERT's optimizers."""
        for variable in self._own_state().values():
            variable.assign(tf.zeros(variable.shape, variable.dtype))
        for variable in self._loss_scale.state().values():
            variable.assign(self._loss_scale.start)

    def num_steps(self) -> int:
        return int(self.optimizer.iterations.numpy())

    def factors(self, weights: Mapping[str, float]) -> Tensor:
        """The factor of each loss term in the backward pass, [terms]: loss scale / weight over all
        ranks; 0 for parts of terms."""
        inverse = [0 if PART in term else 1 / weight for term, weight in weights.items()]
        return self._loss_scale.scaled(tf.constant(inverse, self.dtype))

    def sink(self) -> Sink:
        return self.collectives.sink(self.compression == "bf16")

    def apply(self, total: Tensors, is_valid: Tensor | bool = True) -> Tensor:
        """Checks, clips and applies sums; what is not finite, or not `is_valid`, is skipped on
        every rank. Returns the numbers of `StepResult`. `update` is this, compiled."""
        *gradients, sums = total
        rate = self._rate()
        scale = self._loss_scale.inverse(self.dtype)
        norm = tf.sqrt(2.0 * tf.add_n([tf.nn.l2_loss(gradient) for gradient in gradients])) * scale
        finite = tf.math.is_finite(norm) & is_valid
        if self.clip_norm:
            clip = tf.constant(self.clip_norm, self.dtype)  # as in tf.clip_by_global_norm
            scale *= clip / tf.maximum(norm, clip)

        def change_variables():
            if isinstance(self.optimizer, ScaledUpdate):
                self.optimizer.update_scaled(gradients, scale, rate)
                self.optimizer.iterations.assign_add(1)
            else:
                self.optimizer.apply([gradient * scale for gradient in gradients])
            return tf.constant(True)

        tf.cond(finite, change_variables, lambda: tf.constant(False))
        self._loss_scale.after(finite, is_valid)
        shown = self._loss_scale.shown(self.dtype)
        numbers = tf.stack([norm, rate, tf.cast(finite, self.dtype), shown])
        return tf.concat([numbers, sums], 0)

    def skip(self, num_terms: int) -> Tensor:
        zero = tf.zeros([], self.dtype)
        numbers = [zero, self._rate(), zero, self._loss_scale.shown(self.dtype)]
        return tf.stack(numbers + [zero] * num_terms)

    def _rate(self) -> Tensor:
        return tf.cast(self.optimizer.learning_rate, self.dtype)


def reduce_weights(
    world: World, weights: Mapping[str, float], requests: Sequence[bool] = ()
) -> tuple[dict[str, float], list[bool]]:
    """Each loss term's weight summed over ranks (in float64), and which of the requests any rank
    makes. All ranks name the terms in the same order. Raises ValueError when a weight is negative
    or NaN."""
    sums = world.all_reduce_sum([*weights.values(), *requests], "the sum of a step's weights")
    num_terms = len(weights)
    total = dict(zip(weights, sums[:num_terms].tolist(), strict=True))
    for term, weight in total.items():
        if not weight >= 0:
            raise ValueError(f"the weight of loss term {term!r} over all ranks is {weight}")
    is_wanted = sums[num_terms:] > 0
    return total, is_wanted.tolist()


def terms_without_targets(weights: Mapping[str, float]) -> list[str]:
    """The loss terms that no row of a step has a target for: their means are not defined."""
    return [term for term, weight in weights.items() if weight == 0 and PART not in term]


def check_replicas(optimizer: StepOptimizer) -> None:
    """Raises InputError on every rank unless the ranks' trainable variables are bit-identical."""
    world = optimizer.world
    if world.size > 1:
        what = f"the trainable variables after {optimizer.num_steps()} steps"
        world.agree({what: digest_of(variable.value for variable in optimizer.trainable)})


def broadcast_variables(variables: Sequence[keras.Variable], world: World, root: int = 0) -> None:
    """Gives every rank the values of the rank `root`."""
    with world.operation("the broadcast of the variables"):
        for variable in variables if world.size > 1 else ():
            own_values = host_view(variable.value)
            values = broadcast(world.comm, own_values, root)
            if world.rank != root:
                variable.assign(values)
        world.ranks.refuse_after_death()
