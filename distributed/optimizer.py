"""AllreduceOptimizer: any Keras optimizer on many ranks, with one sum of a list of tensors per step.

    collectives = open_collectives(world, "auto")
    optimizer = AllreduceOptimizer(AdamWeightDecay(3e-5), model.trainable_variables, world, collectives)
    optimizer.broadcast_variables()

    weights, _ = optimizer.reduce_weights({"loss": rows})              # the divisor of each loss term
    own = gradient(batch, optimizer.inverse_weights(weights), key)      # compiled: [*gradients, loss sums]
    total = optimizer.all_reduce(own)                                   # outside compiled code
    result = optimizer.update(total, weights)                           # compiled: check, clip, update
    result.losses                                                       # waits for the device

Every rank ends a step with bit-identical weights. This class replaces Horovod's `DistributedOptimizer`, but it is
not a Keras optimizer, because `apply_gradients` gets the gradients without the weights that divide their sum.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import google_crc32c
import keras
import numpy as np
import tensorflow as tf

from distributed.arrays import host_view
from distributed.collectives import Collectives
from distributed.step_result import FIRST_LOSS_SCALE, StepResult, next_loss_scale
from distributed.world import World

LOSS_SCALE = "loss_scale"
START_OF_SCALE = (FIRST_LOSS_SCALE, 0.0)  # the scale, and the number of finite steps in a row

Tensors: TypeAlias = list[tf.Tensor]  # the gradient of each variable, and last the loss sums [terms]


class AllreduceOptimizer:
    """Wraps a Keras optimizer: one sum over ranks, finite check, global-norm clip, one compiled update.

    Args:
      optimizer: any Keras optimizer that does not clip. If it has a method `apply_scaled(gradients, scale)`, that
        method applies the factor of clipping, which saves a pass over memory.
      variables: the trainable variables, in the order of the gradients, all of one dtype.
      loss_terms: names of the loss terms, whose sums follow the gradients in the list.
      clip_norm: the global norm to which the summed gradient is clipped, as in tf.clip_by_global_norm; or None.
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
        clip_norm: float | None = 1.0,
        scales_loss: bool = False,
        compression: Literal["none", "bf16"] = "none",
    ):
        kinds = {variable.dtype for variable in variables}
        if len(kinds) != 1:
            raise ValueError(f"the trainable variables have several dtypes: {sorted(kinds)}")
        self.optimizer, self.trainable = optimizer, list(variables)
        self.world, self.collectives = world, collectives
        self.loss_terms, self.clip_norm = tuple(loss_terms), clip_norm
        self.compresses = compression == "bf16"
        self.dtype = kinds.pop()
        optimizer.build(self.trainable)
        self._loss_scale = None
        if scales_loss:
            self._loss_scale = keras.Variable(START_OF_SCALE, dtype="float32", trainable=False)
        # On CPUs XLA would take 10 s to compile the whole update; an optimizer may compile parts of its own.
        self._compiled_update = tf.function(self.apply, jit_compile=world.device.is_gpu, autograph=False)

    @property
    def steps_done(self) -> int:
        return int(self.optimizer.iterations.numpy())

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
        return self.result(self._compiled_update(total), weights)

    def result(self, numbers: tf.Tensor, weights: Mapping[str, float]) -> StepResult:
        return StepResult(numbers, {term: weights[term] for term in self.loss_terms}, self._loss_scale is not None)

    def apply(self, total: Tensors, is_valid: tf.Tensor | bool = True) -> tf.Tensor:
        """What `update` compiles. Skips the step unless it `is_valid`. Returns the numbers of `StepResult`."""
        *gradients, sums = total
        rate = tf.cast(self.optimizer.learning_rate, self.dtype)
        scale = tf.ones([], self.dtype)
        if self._loss_scale is not None:
            scale /= tf.cast(self._loss_scale.value[0], self.dtype)
        norm = tf.sqrt(2.0 * tf.add_n([tf.nn.l2_loss(gradient) for gradient in gradients])) * scale
        finite = tf.math.is_finite(norm) & is_valid
        if self.clip_norm is not None:
            clip = tf.constant(self.clip_norm, self.dtype)
            scale *= clip / tf.maximum(norm, clip)

        def apply():
            if hasattr(self.optimizer, "apply_scaled"):
                self.optimizer.apply_scaled(gradients, scale)
            else:
                self.optimizer.apply([gradient * scale for gradient in gradients])
            return tf.constant(True)

        tf.cond(finite, apply, lambda: tf.constant(False))
        loss_scale = tf.ones([], self.dtype)
        if self._loss_scale is not None:
            self._loss_scale.assign(next_loss_scale(self._loss_scale.value, finite))
            loss_scale = tf.cast(self._loss_scale.value[0], self.dtype)
        return tf.concat([tf.stack([norm, rate, tf.cast(finite, self.dtype), loss_scale]), sums], 0)

    @property
    def loss_scale(self) -> float:
        """The factor that keeps small float16 gradients from becoming 0; 1 without `scales_loss`."""
        return 1.0 if self._loss_scale is None else float(self._loss_scale.numpy()[0])

    def broadcast_variables(self, root: int = 0) -> None:
        """Gives every rank the trainable variables and optimizer state of the rank `root`."""
        broadcast_variables([*self.trainable, *self.state().values()], self.collectives, self.world, root)

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
            self.world.agree({f"the trainable variables after {self.steps_done} steps": self.replica_digest()})


def broadcast_variables(
    variables: Sequence[keras.Variable], collectives: Collectives, world: World, root: int = 0
) -> None:
    """Gives every rank the values of the rank `root`."""
    with world.operation("the broadcast of the variables"):
        for variable in variables:
            variable.assign(collectives.broadcast(tf.convert_to_tensor(variable.value), root))
