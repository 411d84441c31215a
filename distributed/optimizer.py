"""AllreduceOptimizer: any Keras optimizer on many ranks, with one sum of a list of tensors per step.

    collectives = open_collectives(world, "auto")
    optimizer = AllreduceOptimizer(AdamWeightDecay(3e-5), model.trainable_variables, world, collectives)
    optimizer.broadcast_variables()

    weights, _ = optimizer.reduce_weights({"loss": rows})              # the divisor of each loss term
    own = gradient(batch, optimizer.inverse_weights(weights), key)      # compiled: [*gradients, loss sums]
    total = optimizer.all_reduce(own)                                   # outside compiled code
    result = optimizer.update(total, weights)                           # compiled: check, clip, update
    result.read()                                                       # waits for the device

Every rank ends a step with bit-identical weights. This class replaces Horovod's `DistributedOptimizer`, but it is
not a Keras optimizer, because `apply_gradients` gets the gradients without the weights that divide their sum.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import google_crc32c
import keras
import numpy as np
import tensorflow as tf

from distributed.arrays import broadcast, host_view
from distributed.collectives import Collectives
from distributed.world import World

CLIP_NORM = 1.0
LOSS_SCALE = "loss_scale"
# The loss scale of float16 training: Micikevicius et al. 2018 (Mixed Precision Training), section 3.2, with the
# constants of PyTorch's GradScaler and Keras' LossScaleOptimizer, which differ only in the initial scale.
START_OF_SCALE = (2.0**15, 0.0)  # the scale, and the number of finite steps in a row
STEPS_TO_GROW, LEAST_LOSS_SCALE = 2000, 1.0

Tensors: TypeAlias = list[tf.Tensor]  # the gradient of each variable, and last the loss sums [terms]


@dataclass(frozen=True)
class StepResult:
    """The numbers of a step.

    Attributes:
      numbers: [gradient norm, rate, 1 if applied else 0, loss scale or 0, loss sums…], on the device.
      weights: the weight of each loss term over all ranks.
    """

    numbers: tf.Tensor
    weights: Mapping[str, float]

    def read(self) -> dict[str, float]:
        """The numbers by name; waits until the device has finished the step.

        "loss" is the sum of the loss terms, which are means over all ranks. "gradient_norm" is that before
        clipping. "applied" is 0 if the gradient was not finite, so that every rank skipped the update.
        "loss_scale" is that after the step, and 0 without one.
        """
        norm, rate, applied, scale, *sums = self.numbers.numpy().tolist()
        losses = {term: s / weight for s, (term, weight) in zip(sums, self.weights.items(), strict=True)}
        facts = {"learning_rate": rate, "gradient_norm": norm, "loss_scale": scale, "applied": applied}
        return {"loss": sum(losses.values()), **losses, **facts}


class AllreduceOptimizer:
    """Wraps a Keras optimizer: one sum over ranks, finite check, clip to the global norm 1, one compiled update.

    Args:
      optimizer: any Keras optimizer that does not clip. If it has a method `apply_scaled(gradients, scale)`, that
        method applies the factor of clipping, which saves a pass over memory.
      variables: the trainable variables, in the order of the gradients, all of one dtype.
      loss_terms: names of the loss terms, whose sums follow the gradients in the list.
      scales_loss: multiply the losses by an adaptive scale, for a model that computes in float16.
      compression: "bf16" sends gradients (not losses) between machines as bfloat16.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        variables: Sequence[keras.Variable],
        world: World,
        collectives: Collectives,
        loss_terms: Sequence[str] = ("loss",),
        scales_loss: bool = False,
        compression: Literal["none", "bf16"] = "none",
    ):
        (self.dtype,) = {variable.dtype for variable in variables}
        self.optimizer, self.trainable = optimizer, list(variables)
        self.world, self.collectives = world, collectives
        self.loss_terms, self.compresses = tuple(loss_terms), compression == "bf16"
        optimizer.build(self.trainable)
        self._loss_scale = None
        if scales_loss:
            self._loss_scale = keras.Variable(START_OF_SCALE, dtype="float32", trainable=False)
        # On CPUs XLA would take 10 s to compile the whole update; an optimizer may compile parts of its own.
        self._compiled_update = tf.function(self.apply, jit_compile=world.device.is_gpu, autograph=False)

    def state(self) -> dict[str, keras.Variable]:
        """The optimizer's variables except the learning rate, numbered in order, and the loss scale."""
        variables = [v for v in self.optimizer.variables if v is not self.optimizer._learning_rate]
        named = {f"{number:04d}": variable for number, variable in enumerate(variables)}
        return named if self._loss_scale is None else named | {LOSS_SCALE: self._loss_scale}

    def reset(self) -> None:
        """Gives the state its first values, which are 0 in BERT's optimizers."""
        for name, variable in self.state().items():
            variable.assign(START_OF_SCALE if name == LOSS_SCALE else tf.zeros(variable.shape, variable.dtype))

    def reduce_weights(
        self, weights: Mapping[str, float], requests: Sequence[bool] = ()
    ) -> tuple[dict[str, float], list[bool]]:
        """Each loss term's weight summed over ranks (in float64), and which of the requests any rank makes.

        Raises ValueError when a term's weight is zero over all ranks: its mean is not defined.
        """
        local = np.array([*(weights[term] for term in self.loss_terms), *requests], np.float64)
        totals = self.world.all_reduce_sum(local, "the sum of a step's weights").tolist()
        total = dict(zip(self.loss_terms, totals, strict=False))
        for term, weight in total.items():
            if not weight > 0:
                raise ValueError(
                    f"the weight of loss term {term!r} over all ranks is {weight}: nothing to average"
                )
        return total, [wanted > 0 for wanted in totals[len(total) :]]

    def inverse_weights(self, totals: Mapping[str, float]) -> tf.Tensor:
        """The factor of each loss sum in the backward pass, [terms]: loss scale / weight over all ranks."""
        inverse = tf.constant([1 / totals[term] for term in self.loss_terms], self.dtype)
        return inverse if self._loss_scale is None else inverse * tf.cast(self._loss_scale.value[0], self.dtype)

    def listed(self, gradients: Sequence, loss_sums: Mapping[str, tf.Tensor]) -> Tensors:
        """What a rank sums: [*gradients, loss sums]; sparse gradients become dense, and None becomes zeros."""
        pairs = zip(gradients, self.trainable, strict=True)
        dense = [tf.zeros_like(v.value) if g is None else tf.convert_to_tensor(g) for g, v in pairs]
        return [*dense, tf.stack([tf.cast(loss_sums[term], self.dtype) for term in self.loss_terms])]

    def all_reduce(self, own: Tensors) -> Tensors:
        """The sums over ranks, with the same bits on all of them."""
        with self.world.operation("the sum of the gradients"):
            return self.collectives.all_reduce_sum(own, self.compresses)

    def update(self, total: Tensors, weights: Mapping[str, float]) -> StepResult:
        """Checks, clips and applies sums; a gradient that is not finite is skipped on every rank."""
        return StepResult(self._compiled_update(total), weights)

    def apply(self, total: Tensors, is_valid: tf.Tensor | bool = True) -> tf.Tensor:
        """What `update` compiles. Changes nothing unless it `is_valid`. Returns the numbers of `StepResult`."""
        *gradients, sums = total
        rate = tf.cast(self.optimizer.learning_rate, self.dtype)
        scale = tf.ones([], self.dtype)
        if self._loss_scale is not None:
            scale /= tf.cast(self._loss_scale.value[0], self.dtype)
        norm = tf.sqrt(2.0 * tf.add_n([tf.nn.l2_loss(gradient) for gradient in gradients])) * scale
        finite = tf.math.is_finite(norm) & is_valid
        clip = tf.constant(CLIP_NORM, self.dtype)  # as in tf.clip_by_global_norm
        scale *= clip / tf.maximum(norm, clip)

        def apply():
            if hasattr(self.optimizer, "apply_scaled"):
                self.optimizer.apply_scaled(gradients, scale)
            else:
                self.optimizer.apply([gradient * scale for gradient in gradients])
            return tf.constant(True)

        tf.cond(finite, apply, lambda: tf.constant(False))
        loss_scale = tf.zeros([], self.dtype)
        if self._loss_scale is not None:
            changed = next_loss_scale(self._loss_scale.value, finite)
            self._loss_scale.assign(tf.where(is_valid, changed, self._loss_scale.value))
            loss_scale = tf.cast(self._loss_scale.value[0], self.dtype)
        return tf.concat([tf.stack([norm, rate, tf.cast(finite, self.dtype), loss_scale]), sums], 0)

    def broadcast_variables(self, root: int = 0) -> None:
        """Gives every rank the trainable variables and optimizer state of the rank `root`."""
        broadcast_variables([*self.trainable, *self.state().values()], self.world, root)

    def replica_digest(self) -> str:
        """A digest of the trainable variables' bits, equal on every rank."""
        total = hashlib.sha256()
        for variable in self.trainable:
            raw = host_view(tf.convert_to_tensor(variable.value)).reshape(-1).view(np.uint8)
            total.update(google_crc32c.value(raw).to_bytes(4, "little"))
        return total.hexdigest()[:24]

    def check_replicas(self) -> None:
        """Raises InputError on every rank unless the ranks' variables are bit-identical."""
        if self.world.size > 1:
            step = int(self.optimizer.iterations.numpy())
            self.world.agree({f"the trainable variables after {step} steps": self.replica_digest()})


def broadcast_variables(variables: Sequence[keras.Variable], world: World, root: int = 0) -> None:
    """Gives every rank the values of the rank `root`."""
    with world.operation("the broadcast of the variables"):
        for variable in variables if world.size > 1 else ():
            variable.assign(broadcast(world.comm, variable.numpy(), root))


def next_loss_scale(state: tf.Tensor, applied: tf.Tensor) -> tf.Tensor:
    """The loss scale and the number of finite steps in a row, float32 [2], after a step.

    A gradient that is not finite halves the scale; 2,000 finite ones in a row double it. All ranks agree, because
    `applied` depends on the sum over ranks.
    """
    scale, finite_steps = tf.unstack(state)
    grows = tf.equal(finite_steps + 1, STEPS_TO_GROW)
    after_finite = tf.stack([tf.where(grows, scale * 2, scale), tf.where(grows, 0.0, finite_steps + 1)])
    return tf.where(applied, after_finite, tf.stack([tf.maximum(scale / 2, LEAST_LOSS_SCALE), 0.0]))
