"""AllreduceOptimizer: any Keras optimizer on many ranks, with one reduction of the gradient per step.

    collectives = open_collectives(world, "auto")
    optimizer = AllreduceOptimizer(AdamWeightDecay(3e-5), model.trainable_variables, world, collectives)
    optimizer.broadcast_variables()

    weights, _ = optimizer.reduce_weights({"loss": rows})              # the divisor of each loss term
    own = gradient(batch, optimizer.inverse_weights(weights))           # compiled; ends in optimizer.gathered(…)
    total = optimizer.all_reduce(own)                                   # outside compiled code; not needed with
                                                                        # optimizer.overlaps
    result = optimizer.update(total, weights)                           # compiled: check, clip, update
    result.losses                                                       # waits for the device

Every rank ends a step with bit-identical weights. This class replaces Horovod's `DistributedOptimizer`, but it is
not a Keras optimizer, because `apply_gradients` gets the gradients without the weights that divide their sum.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import google_crc32c
import keras
import numpy as np
import tensorflow as tf

from distributed.collectives import Collectives, CollectivesSettings
from distributed.flat import FlatLayout
from distributed.host import host_view
from distributed.step_result import FIRST_LOSS_SCALE, StepResult, next_loss_scale
from distributed.world import World
from ringbase.errors import InputError

DEFAULT_SETTINGS = CollectivesSettings()
LOSS_SCALE = "loss_scale"
START_OF_SCALE = (FIRST_LOSS_SCALE, 0.0)  # the scale, and the number of finite steps in a row

Vector: TypeAlias = tf.Tensor | list[tf.Tensor]  # whole, or in parts: the gradients, and the loss sums [terms]


class AllreduceOptimizer:
    """Wraps a Keras optimizer: one sum over ranks, finite check, global-norm clip, one compiled update.

    What is summed is a vector: the gradients side by side, and the loss sums. On CPUs it lies in several tensors
    until it is summed, because putting them into one takes longer than the sum.

    Args:
      optimizer: any Keras optimizer that does not clip. If it has a method `apply_scaled(gradients, scale)`, that
        method applies the factor of clipping, which saves a pass over memory.
      variables: the trainable variables, in the order of the gradients, all of one dtype.
      loss_terms: names of the loss terms, whose sums follow the gradient in the buffer.
      clip_norm: the global norm to which the summed gradient is clipped, as in tf.clip_by_global_norm; or None.
      scales_loss: multiply the losses by an adaptive scale, for a model that computes in float16.
      settings: whether gradients (not losses) are sent between machines as bfloat16, and whether they are summed
        during the backward pass (`sum_in_buckets`) if the backend supports it.
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
        settings: CollectivesSettings = DEFAULT_SETTINGS,
    ):
        kinds = {variable.dtype for variable in variables}
        if len(kinds) != 1:
            raise ValueError(f"the trainable variables have several dtypes: {sorted(kinds)}")
        self.optimizer, self.trainable = optimizer, list(variables)
        self.world, self.collectives = world, collectives
        self.loss_terms, self.clip_norm = tuple(loss_terms), clip_norm
        self.compresses = settings.compression == "bf16" and collectives.compresses
        self.overlaps = settings.overlap != "off" and collectives.sum_in_graph is not None
        self._sums_in_step = settings.overlap == "compiled"
        if self._sums_in_step and world.size > 1 and collectives.name != "nccl":
            raise InputError(
                f"--overlap compiled needs the backend nccl, but this run uses {collectives.name}: "
                "use --overlap auto"
            )
        self.dtype = kinds.pop()
        optimizer.build(self.trainable)
        self.layout = FlatLayout([v.shape for v in self.trainable], len(self.loss_terms), self.dtype)
        self._loss_scale = None
        if scales_loss:
            self._loss_scale = keras.Variable(START_OF_SCALE, dtype="float32", trainable=False)
        # On CPUs XLA would take 10 s to compile the whole update; an optimizer may compile parts of its own.
        sums_parts = world.size == 1 or collectives.sum_of_parts is not None
        self.keeps_parts = world.device == "cpu" and sums_parts and not (self.compresses or self.overlaps)
        self._compiled_update = tf.function(self._update, jit_compile=world.device == "gpu", autograph=False)

    @property
    def compiles_steps(self) -> bool:
        """Whether XLA can compile the gradient, the sum over ranks and the update as one function."""
        return self.world.device == "gpu" and (self.world.size == 1 or self._sums_in_step)

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

    def gathered(self, gradients: Sequence, loss_sums: Mapping[str, tf.Tensor]) -> Vector:
        """What a rank sums: the vector of `flatten`, or its parts."""
        if not self.keeps_parts:
            return self.flatten(gradients, loss_sums)
        pairs = zip(gradients, self.trainable, strict=True)
        dense = [tf.zeros_like(v.value) if g is None else tf.convert_to_tensor(g) for g, v in pairs]
        return [*dense, tf.stack([tf.cast(loss_sums[term], self.dtype) for term in self.loss_terms])]

    def flatten(self, gradients: Sequence, loss_sums: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """[gradient | loss sums] as one vector in the variables' dtype; sparse gradients become dense."""
        return self.layout.flatten(gradients, [loss_sums[term] for term in self.loss_terms])

    def sum_in_buckets(
        self, gradients: Sequence, loss_sums: Mapping[str, tf.Tensor], before: tf.Tensor | None
    ) -> tf.Tensor:
        """As `flatten`, plus `before`, the buffer of earlier micro-batches, and summed over ranks in the graph."""
        sums = [loss_sums[term] for term in self.loss_terms]
        return self.layout.sum_in_buckets(gradients, sums, before, self._sum_part)

    def _sum_part(self, part: tf.Tensor, number: int, holds_numbers: bool) -> tf.Tensor:
        assert self.collectives.sum_in_graph is not None
        return self.collectives.sum_in_graph(part, number, self.compresses and not holds_numbers)

    def unflatten(self, total: Vector) -> tuple[list[tf.Tensor], tf.Tensor]:
        """The gradients in the shapes of the variables, and the loss sums."""
        return (total[:-1], total[-1]) if isinstance(total, list) else self.layout.unflatten(total)

    def all_reduce(self, own: Vector) -> Vector:
        """The sum of the vectors of all ranks."""
        with self.world.operation("the sum of the gradients"):
            if isinstance(own, list):
                if self.world.size == 1:
                    return own
                if self.collectives.sum_of_parts is not None:
                    places = [*self.layout.starts, self.layout.numbers_at]
                    return self.collectives.sum_of_parts(own, places, self.layout.ends[-1])
            flat = self.layout.flatten(own[:-1], tf.unstack(own[-1])) if isinstance(own, list) else own
            if not self.compresses:
                return self.collectives.all_reduce_sum(flat)
            numbers = self.layout.numbers_at
            sums = tf.identity(self.collectives.all_reduce_sum(flat[numbers:]))
            return tf.concat([self.collectives.all_reduce_sum_bf16(flat[:numbers]), sums], 0)

    def inverse_weights(self, totals: Mapping[str, float]) -> tf.Tensor:
        """The factor of each loss sum in the backward pass, [terms]: loss scale / weight over all ranks."""
        inverse = tf.constant([1 / totals[term] for term in self.loss_terms], self.dtype)
        return inverse if self._loss_scale is None else inverse * tf.cast(self._loss_scale.value[0], self.dtype)

    @property
    def scales_loss(self) -> bool:
        return self._loss_scale is not None

    @property
    def loss_scale(self) -> float:
        """The factor that keeps small float16 gradients from becoming 0; 1 without `scales_loss`."""
        return 1.0 if self._loss_scale is None else float(self._loss_scale.numpy()[0])

    def update(self, total: Vector, weights: Mapping[str, float]) -> StepResult:
        """Checks, clips and applies a summed vector; a gradient that is not finite is skipped on every rank."""
        return self.result(self._compiled_update(total), weights)

    def result(self, numbers: tf.Tensor, weights: Mapping[str, float]) -> StepResult:
        return StepResult(numbers, {term: weights[term] for term in self.loss_terms})

    def sum_and_apply(
        self,
        gradients: Sequence,
        loss_sums: Mapping[str, tf.Tensor],
        inverse_weights: tf.Tensor,
        before: tf.Tensor | None,
    ) -> tf.Tensor:
        """The rest of a step, in the graph of the backward pass. Returns the numbers of `StepResult`.

        `before` is the buffer of earlier micro-batches. The step is skipped unless `inverse_weights` are finite.
        The flat buffer costs two passes over memory; one rank with one micro-batch does without.
        """
        if self.world.size == 1 and before is None:
            pairs = zip(gradients, self.trainable, strict=True)
            gradients = [tf.zeros_like(v.value) if g is None else tf.convert_to_tensor(g) for g, v in pairs]
            sums = tf.stack([tf.cast(loss_sums[term], self.dtype) for term in self.loss_terms])
            half_square = tf.add_n([tf.nn.l2_loss(gradient) for gradient in gradients])
        else:
            if self.world.size > 1:
                flat = self.sum_in_buckets(gradients, loss_sums, before)
            else:
                flat = self.flatten(gradients, loss_sums) + before
            gradients, sums = self.unflatten(flat)
            half_square = self.layout.half_square(flat)
        is_valid = tf.reduce_all(tf.math.is_finite(inverse_weights))
        return self.apply(gradients, sums, tf.where(is_valid, half_square, tf.constant(np.nan, self.dtype)))

    def _update(self, total: Vector) -> tf.Tensor:
        gradients, sums = self.unflatten(total)
        if isinstance(total, list):
            return self.apply(gradients, sums, tf.add_n([tf.nn.l2_loss(gradient) for gradient in gradients]))
        return self.apply(gradients, sums, self.layout.half_square(total))

    def apply(self, gradients: Sequence[tf.Tensor], sums: tf.Tensor, half_square: tf.Tensor) -> tf.Tensor:
        """Checks, clips and applies gradients that are summed over ranks. Returns the numbers of `StepResult`.

        `sums` are those of the loss terms, `half_square` is half the sum of the squares of all gradients.
        """
        rate = tf.cast(self.optimizer.learning_rate, self.dtype)
        scale = tf.ones([], self.dtype)
        if self._loss_scale is not None:
            scale /= tf.cast(self._loss_scale.value[0], self.dtype)
        norm = tf.sqrt(2.0 * half_square) * scale
        finite = tf.math.is_finite(norm)
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

    def broadcast_variables(self) -> None:
        """Gives every rank rank 0's trainable variables and optimizer state."""
        broadcast_variables([*self.trainable, *self.state().values()], self.collectives, self.world)

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


def broadcast_variables(variables: Sequence[keras.Variable], collectives: Collectives, world: World) -> None:
    """Gives every rank rank 0's values."""
    with world.operation("the broadcast of the variables"):
        for variable in variables:
            variable.assign(collectives.broadcast(tf.convert_to_tensor(variable.value)))
