"""The gradient of a step's micro-batches, or the whole step: TensorFlow graph functions, which XLA can compile."""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any

import numpy as np
import tensorflow as tf

from distributed.feed import Batch, total_weights
from distributed.optimizer import LOSS_SCALE, AllreduceOptimizer, Vector
from ringbase.errors import InputError

Loss = Callable[[dict[str, tf.Tensor], tf.Tensor], Mapping[str, tf.Tensor]]
TRIALS = 3


class Ending(Enum):
    """What a compiled function does with the gradient of a step's last micro-batch."""

    GATHER = auto()  # returns it with the loss sums as `AllreduceOptimizer.gathered` does
    SUM = auto()  # sums that vector over ranks, while the gradients of the first layers are still being computed
    APPLY = auto()  # sums it over ranks if there are several, and updates the variables


class Gradient:
    """Micro-batches -> the vector [gradient | loss sums], summed over them, and over all ranks if `overlaps`.

    Args:
      loss: (batch, dropout key int32 [2]) -> the sum of each loss term over the batch, not its mean.
      is_fixed: XLA compiles the whole function for each shape; unless `applies`, the sum over ranks then waits for
        the end of the backward pass.
      memory_advice: what the user can do when memory runs out.
      applies: with `is_fixed`: XLA compiles the whole step, including the sum over ranks and the update. A call
        then returns the numbers of `StepResult`.
    """

    def __init__(
        self,
        optimizer: AllreduceOptimizer,
        loss: Loss,
        is_fixed: bool = False,
        memory_advice: str = "",
        applies: bool = False,
    ):
        self.overlaps = optimizer.overlaps and not is_fixed
        self.is_fixed, self.memory_advice, self.applies = is_fixed, memory_advice, applies
        self._ending = Ending.APPLY if applies else Ending.SUM if self.overlaps else Ending.GATHER
        self._optimizer, self._loss = optimizer, loss
        self._functions: dict[tuple[Ending, bool], Callable] = {}

    def __call__(self, batches: Sequence[Batch], inverse_weights: tf.Tensor, keys: Sequence) -> Vector:
        """`keys`: the dropout key of each micro-batch. Raises InputError when memory runs out."""
        total: Vector | None = None
        sums_over_ranks = self._optimizer.world.operation("the gradient with its sum over ranks")
        for number, (batch, key) in enumerate(zip(batches, keys, strict=True), 1):
            ending = self._ending if number == len(batches) else Ending.GATHER
            before = () if total is None or ending is Ending.GATHER else (total,)
            waits = contextlib.nullcontext() if ending is Ending.GATHER else sums_over_ranks
            with out_of_memory_is_input_error(batch, self.memory_advice), waits:
                part = self._function(batch, ending, bool(before))(batch, inverse_weights, key, *before)
                total = part if total is None or before else tf.nest.map_structure(tf.add, total, part)
        assert total is not None
        return total

    def compile(self, batches_of_shapes: Iterable[Batch], num_batches: int) -> None:
        """Compiles all functions that steps of `num_batches` micro-batches need, for these batches, one of each
        shape.

        The loss is weighted by NaN: such a step is skipped, and changes nothing but the loss scale.
        """
        loss_scale = self._optimizer.state().get(LOSS_SCALE)
        kept = None if loss_scale is None else loss_scale.numpy()
        inverse_weights = tf.fill([len(self._optimizer.loss_terms)], tf.constant(np.nan, self._optimizer.dtype))
        for batch in batches_of_shapes:
            batches = [batch] * num_batches
            output = self(batches, inverse_weights, [np.zeros(2, np.int32)] * num_batches)
            tf.nest.flatten(output)[-1][:1].numpy()  # waits, so that memory runs out here or never
        if loss_scale is not None:
            loss_scale.assign(kept)

    def _function(self, example: Batch, ending: Ending, follows: bool) -> Callable:
        if (ending, follows) not in self._functions:
            example_or_none = None if self.is_fixed else example
            function = gradient_function(self._optimizer, self._loss, example_or_none, ending, follows)
            self._functions[ending, follows] = function
        return self._functions[ending, follows]


def gradient_function(
    optimizer: AllreduceOptimizer,
    loss: Loss,
    example: Batch | None,
    ending: Ending = Ending.GATHER,
    follows: bool = False,
) -> Callable:
    """A compiled function (batch, 1 / weights, dropout key) -> vector [gradient | loss sums].

    It is traced with unknown dimensions, so that one trace serves every shape of batch.

    Args:
      example: a batch; None for a function that XLA compiles as a whole, separately for each shape.
      ending: with `Ending.APPLY`, the function updates the variables and returns the numbers of `StepResult`.
      follows: the function takes a fourth argument: the buffer of earlier micro-batches. Not with
        `Ending.GATHER`.
    """

    def gradient(batch, inverse_weights, key, before=None):
        with tf.GradientTape() as tape:
            sums = loss(batch, key)
            terms = [tf.cast(sums[term], optimizer.dtype) for term in optimizer.loss_terms]
            total = tf.reduce_sum(tf.stack(terms) * inverse_weights)
        gradients = tape.gradient(total, [variable.value for variable in optimizer.trainable])
        match ending:
            case Ending.GATHER:
                return optimizer.gathered(gradients, sums)
            case Ending.SUM:
                return optimizer.sum_in_buckets(gradients, sums, before)
            case Ending.APPLY:
                return optimizer.sum_and_apply(gradients, sums, inverse_weights, before)

    if example is None:
        return tf.function(gradient, jit_compile=True, autograph=False)
    signature = [
        batch_signature(example),
        tf.TensorSpec([len(optimizer.loss_terms)], optimizer.dtype),
        tf.TensorSpec([2], tf.int32),
    ]
    if follows:
        signature.append(tf.TensorSpec([None], optimizer.dtype))
    return tf.function(gradient, input_signature=signature, autograph=False)


def batch_signature(example: Batch) -> dict[str, Any]:
    """The types of a batch's arrays, every dimension unknown."""
    return tf.nest.map_structure(lambda array: tf.TensorSpec([None] * array.ndim, array.dtype), example)


def dropout_key(seed: int, step: int, micro_batch: int, rank: int) -> np.ndarray:
    """int32 [2], a hash of the arguments: the random seed of one forward pass."""
    return np.random.SeedSequence([seed, step, micro_batch, rank]).generate_state(2, np.uint32).view(np.int32)


def seconds_of(
    gradient: Gradient, optimizer: AllreduceOptimizer, weights: Callable, batches: list[Batch]
) -> float:
    """The time in seconds of the gradient of these micro-batches and its sum over ranks, on the slowest rank; the
    shortest of a few trials. Infinity if XLA runs out of memory."""
    world = optimizer.world
    totals, _ = optimizer.reduce_weights(total_weights(weights, batches, optimizer.loss_terms))
    keys = [dropout_key(0, 0, number, world.rank) for number in range(len(batches))]
    times = []
    for _ in range(1 + TRIALS):  # the first trial compiles
        world.barrier()
        start, failed = time.perf_counter(), False
        try:
            flat = gradient(batches, optimizer.inverse_weights(totals), keys)
        except InputError:  # out of memory
            if not gradient.is_fixed:
                raise
            failed = True
        if any(world.all_gather(failed)):
            return math.inf
        total = flat if gradient.overlaps else optimizer.all_reduce(flat)
        optimizer.unflatten(total)[1].numpy()  # waits for a GPU
        times.append(max(world.all_gather(time.perf_counter() - start)))
    return min(times[1:])


@contextlib.contextmanager
def out_of_memory_is_input_error(batch: Batch, advice: str) -> Iterator[None]:
    """Turns TensorFlow's error into an InputError that names the shape and gives the user `advice`."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        shape = next(iter(batch.values())).shape
        reason = str(error).splitlines()[0]
        raise InputError(f"out of memory with a micro-batch of shape {shape}: {advice} ({reason})") from error
