"""The training step: weights, gradient (compiled), sum over ranks (in plain sight), update (compiled).

    step = TrainingStep(loss, weights, optimizer, seed)
    result, wanted = step.take(micro_batches, number, requests, clock)

`WholeStep` takes the same step as one function that XLA compiles.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

from distributed.feed import Batch
from distributed.log import StepClock
from distributed.optimizer import LOSS_SCALE, AllreduceOptimizer, Tensors
from distributed.state import START, State
from distributed.step_result import StepResult
from ringbase.errors import InputError

Loss = Callable[[dict[str, tf.Tensor], tf.Tensor], Mapping[str, tf.Tensor]]
Weights = Callable[[Batch], Mapping[str, float]]


class OutOfMemory(InputError):
    """The device has not enough memory for a micro-batch."""


class TrainingStep:
    """The steps of a training, and how far it is.

    Args:
      loss: (batch, dropout key int32 [2]) -> the sum of each loss term over the batch, not its mean.
      weights: batch -> the weight of each loss term (rows, masked tokens, …).
      seed: of dropout.
      is_fixed: XLA compiles the whole gradient, for each shape of batch.
      as_traced: as in `graphs_as_traced`.

    Attributes:
      state: what the variables of model and optimizer are the result of.
    """

    def __init__(
        self,
        loss: Loss,
        weights: Weights,
        optimizer: AllreduceOptimizer,
        seed: int = 0,
        is_fixed: bool = False,
        as_traced: bool = False,
    ):
        self.optimizer, self.seed, self.is_fixed, self.as_traced = optimizer, seed, is_fixed, as_traced
        self.state: State = START
        self._loss, self._weights = loss, weights
        self._gradient: Callable | None = None
        self._added = tf.function(
            lambda total, more: [a + b for a, b in zip(total, more, strict=True)], autograph=False
        )

    def take(
        self, batches: Sequence[Batch], number: int, requests: Sequence[bool], clock: StepClock
    ) -> tuple[StepResult, list[bool]]:
        """The step after `number` others, on this rank's micro-batches. All ranks take it together and end it with
        bit-identical weights. Returns its result, and which of `requests` any rank makes.

        If a rank of an elastic world dies in it, each survivor has either taken the whole step or none of it.
        """
        optimizer = self.optimizer
        weights, wanted = optimizer.reduce_weights(self.own_weights(batches), requests)
        with graphs_as_traced() if self.as_traced else nullcontext():
            own = self.gradient(batches, optimizer.inverse_weights(weights), self.keys(number, len(batches)))
            clock.mark("compute_s", own[-1])
            total = optimizer.all_reduce(own)
            clock.mark("reduce_s", total[-1])
            result = optimizer.update(total, weights)
            clock.mark("apply_s", result.numbers)
        return result, wanted

    def own_weights(self, batches: Sequence[Batch]) -> dict[str, float]:
        """The weight of each loss term over all micro-batches of this rank."""
        each = [self._weights(batch) for batch in batches]
        return {term: sum(weights[term] for weights in each) for term in self.optimizer.loss_terms}

    def keys(self, number: int, num_batches: int) -> list[np.ndarray]:
        """The dropout key of each micro-batch of a step."""
        return [dropout_key(self.seed, number, piece, self.optimizer.world.rank) for piece in range(num_batches)]

    def gradient(self, batches: Sequence[Batch], inverse_weights: tf.Tensor, keys: Sequence) -> Tensors:
        """[*gradients, loss sums] over this rank's micro-batches. Raises OutOfMemory."""
        self._gradient = self._gradient or self._compiled(None if self.is_fixed else batches[0])
        total: Tensors | None = None
        for batch, key in zip(batches, keys, strict=True):
            with naming_memory(batch):
                part = self._gradient(batch, inverse_weights, key)
                total = part if total is None else self._added(total, part)
        assert total is not None
        return total

    def compile(self, batches_of_shapes: Iterable[Batch], num_batches: int) -> int:
        """Compiles what steps of `num_batches` micro-batches need for these batches, one of each shape; in the
        middle of a run all ranks would wait for it. Returns the number of shapes. Raises OutOfMemory."""
        terms, dtype = len(self.optimizer.loss_terms), self.optimizer.dtype
        inverse_weights = tf.fill([terms], tf.constant(np.nan, dtype))  # so that no variable changes
        num_shapes = 0
        for batch in batches_of_shapes:
            with naming_memory(batch):
                self._compile(batch, num_batches, inverse_weights)
            num_shapes += 1
        return num_shapes

    def _compile(self, batch: Batch, num_batches: int, inverse_weights: tf.Tensor) -> None:
        keys = self.keys(0, num_batches)
        self.gradient([batch] * num_batches, inverse_weights, keys)[-1].numpy()  # memory runs out here or never

    def synchronize(self) -> State:
        """Gives all ranks the variables and the state of the rank that is furthest. Returns the state.

        An update is deterministic and follows a complete sum. So after a death a survivor that has applied step n
        holds a valid state n, also if the others have not.
        """
        world = self.optimizer.world
        states = world.all_gather(self.state)
        root = max(range(world.size), key=lambda rank: (*states[rank].progress, -rank))
        self.optimizer.broadcast_variables(root)
        self.optimizer.check_replicas()
        self.state = states[root]
        return self.state

    def _compiled(self, example: Batch | None) -> Callable:
        """(batch, 1 / weights, dropout key) -> [*gradients, loss sums]. It is traced with unknown dimensions, so
        that one trace serves every shape; without `example` XLA compiles it for each shape."""
        if example is None:
            return tf.function(self.backward, jit_compile=True, autograph=False)
        terms = tf.TensorSpec([len(self.optimizer.loss_terms)], self.optimizer.dtype)
        signature = [batch_signature(example), terms, tf.TensorSpec([2], tf.int32)]
        return tf.function(self.backward, input_signature=signature, autograph=False)

    def backward(self, batch: dict[str, tf.Tensor], inverse_weights: tf.Tensor, key: tf.Tensor) -> Tensors:
        """[*gradients, loss sums] of one batch, in the graph."""
        optimizer = self.optimizer
        with tf.GradientTape() as tape:
            sums = self._loss(batch, key)
            terms = [tf.cast(sums[term], optimizer.dtype) for term in optimizer.loss_terms]
            total = tf.reduce_sum(tf.stack(terms) * inverse_weights)
        return optimizer.listed(tape.gradient(total, [v.value for v in optimizer.trainable]), sums)


class WholeStep(TrainingStep):
    """Gradient, sum over ranks and update are one function that XLA compiles, for each shape of batch.

    It is for a rank that is alone on its GPU, or for a backend with `in_graph`.
    """

    def __init__(self, loss: Loss, weights: Weights, optimizer: AllreduceOptimizer, seed: int = 0):
        super().__init__(loss, weights, optimizer, seed, is_fixed=True)
        self._whole = tf.function(self.in_graph, jit_compile=True, autograph=False)

    def take(
        self, batches: Sequence[Batch], number: int, requests: Sequence[bool], clock: StepClock
    ) -> tuple[StepResult, list[bool]]:
        optimizer = self.optimizer
        weights, wanted = optimizer.reduce_weights(self.own_weights(batches), requests)
        numbers = self._step(batches, optimizer.inverse_weights(weights), self.keys(number, len(batches)))
        for part in ("compute_s", "reduce_s", "apply_s"):
            clock.mark(part, numbers)
        return optimizer.result(numbers, weights), wanted

    def _step(self, batches: Sequence[Batch], inverse_weights: tf.Tensor, keys: Sequence) -> tf.Tensor:
        before = self.gradient(batches[:-1], inverse_weights, keys[:-1]) if len(batches) > 1 else None
        with naming_memory(batches[-1]), self.optimizer.world.operation("a step with its sum over ranks"):
            return self._whole(batches[-1], inverse_weights, keys[-1], before)

    def in_graph(
        self,
        batch: dict[str, tf.Tensor],
        inverse_weights: tf.Tensor,
        key: tf.Tensor,
        before: Tensors | None = None,
    ) -> tf.Tensor:
        """The step of a last micro-batch, after the sum of those `before`. Returns the numbers of `StepResult`."""
        own = self.backward(batch, inverse_weights, key)
        if before is not None:
            own = [a + b for a, b in zip(before, own, strict=True)]
        total = self.optimizer.collectives.all_reduce_sum(own, self.optimizer.compresses)
        return self.optimizer.apply(total, tf.reduce_all(tf.math.is_finite(inverse_weights)))

    def _compile(self, batch: Batch, num_batches: int, inverse_weights: tf.Tensor) -> None:
        loss_scale = self.optimizer.state().get(LOSS_SCALE)
        kept = None if loss_scale is None else loss_scale.numpy()
        self._step([batch] * num_batches, inverse_weights, self.keys(0, num_batches)).numpy()
        if loss_scale is not None:
            loss_scale.assign(kept)


def batch_signature(example: Batch) -> dict[str, Any]:
    """The types of a batch's arrays, every dimension unknown."""
    return tf.nest.map_structure(lambda array: tf.TensorSpec([None] * array.ndim, array.dtype), example)


def dropout_key(seed: int, step: int, micro_batch: int, rank: int) -> np.ndarray:
    """int32 [2], a hash of the arguments: the random seed of one forward pass."""
    return np.random.SeedSequence([seed, step, micro_batch, rank]).generate_state(2, np.uint32).view(np.int32)


@contextmanager
def naming_memory(batch: Batch) -> Iterator[None]:
    """Turns TensorFlow's error for too little memory into OutOfMemory, which names the shape of the batch."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        shape, reason = next(iter(batch.values())).shape, str(error).splitlines()[0]
        raise OutOfMemory(f"out of memory with a micro-batch of shape {shape} ({reason})") from error


@contextmanager
def graphs_as_traced() -> Iterator[None]:
    """TensorFlow's graph optimizer (Grappler) does not change the functions that are called within the block.

    It takes seconds when a function is first called with it: docs/measured.md.
    """
    before = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": before})
