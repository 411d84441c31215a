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
from distributed.optimizer import AllreduceOptimizer, StepResult, Tensors
from distributed.state import START, State
from ringbase.errors import InputError

Loss = Callable[[dict[str, tf.Tensor], tf.Tensor], Mapping[str, tf.Tensor]]
Weights = Callable[[Batch], Mapping[str, float]]


class OutOfMemory(InputError):
    """The device has not enough memory for a micro-batch."""


class TrainingStep:
    """The steps of a training, and in `state` how far it is.

    Args:
      loss: (batch, dropout key int32 [2]) -> the sum of each loss term over the batch, not its mean.
      weights: batch -> the weight of each loss term (rows, masked tokens, …).
      seed: of dropout.
      is_fixed: XLA compiles the whole gradient, for each shape of batch.
      as_traced: as in `graphs_as_traced`.
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
        self.state: State = START  # what the variables of model and optimizer are the result of
        self._loss, self._weights = loss, weights
        self._gradient: Callable | None = None

    def take(
        self, batches: Sequence[Batch], number: int, requests: Sequence[bool], clock: StepClock
    ) -> tuple[StepResult, list[bool]]:
        """The step after `number` others, on this rank's micro-batches. All ranks take it together and end it with
        bit-identical weights. Returns its result, and which of `requests` any rank makes. Raises OutOfMemory.

        If a rank of an elastic world dies in it, each survivor has either taken the whole step or none of it.
        """
        weights, wanted = self.optimizer.reduce_weights(self.own_weights(batches), requests)
        with graphs_as_traced() if self.as_traced else nullcontext():
            return self.compute(batches, weights, self.keys(number, len(batches)), clock), wanted

    def compute(
        self, batches: Sequence[Batch], weights: Mapping[str, float], keys: Sequence, clock: StepClock
    ) -> StepResult:
        """The large part of a step."""
        own = self.gradient(batches, self.optimizer.inverse_weights(weights), keys)
        clock.mark("compute_s", own[-1])
        total = self.optimizer.all_reduce(own)
        clock.mark("reduce_s", total[-1])
        result = self.optimizer.update(total, weights)
        clock.mark("apply_s", result.numbers)
        return result

    def own_weights(self, batches: Sequence[Batch]) -> dict[str, float]:
        """The weight of each loss term over all micro-batches of this rank."""
        each = [self._weights(batch) for batch in batches]
        return {term: sum(weights[term] for weights in each) for term in self.optimizer.loss_terms}

    def keys(self, number: int, num_batches: int) -> list[np.ndarray]:
        """The dropout key of each micro-batch of a step."""
        return [dropout_key(self.seed, number, piece, self.optimizer.world.rank) for piece in range(num_batches)]

    def gradient(self, batches: Sequence[Batch], inverse_weights: tf.Tensor, keys: Sequence) -> Tensors:
        """[*gradients, loss sums] over this rank's micro-batches."""
        if self._gradient is None:  # traced with unknown dimensions, so that one trace serves every shape
            terms = tf.TensorSpec([len(self.optimizer.loss_terms)], self.optimizer.dtype)
            options: dict[str, Any] = {"jit_compile": True}
            if not self.is_fixed:
                options = {"input_signature": [batch_signature(batches[0]), terms, tf.TensorSpec([2], tf.int32)]}
            self._gradient = tf.function(self.backward, autograph=False, **options)
        total: Tensors | None = None
        for batch, key in zip(batches, keys, strict=True):
            with naming_memory(batch):
                part = self._gradient(batch, inverse_weights, key)
                total = part if total is None else added(total, part)
        assert total is not None
        return total

    def backward(self, batch: dict[str, tf.Tensor], inverse_weights: tf.Tensor, key: tf.Tensor) -> Tensors:
        """[*gradients, loss sums] of one batch, in the graph."""
        optimizer = self.optimizer
        with tf.GradientTape() as tape:
            sums = self._loss(batch, key)
            terms = [tf.cast(sums[term], optimizer.dtype) for term in optimizer.loss_terms]
            total = tf.reduce_sum(tf.stack(terms) * inverse_weights)
        return optimizer.listed(tape.gradient(total, [v.value for v in optimizer.trainable]), sums)

    def compile(self, batches_of_shapes: Iterable[Batch], num_batches: int) -> int:
        """Compiles what steps of `num_batches` micro-batches need for these batches, one of each shape; in the
        middle of a run all ranks would wait for it. Returns the number of shapes. Raises OutOfMemory."""
        batches, keys = list(batches_of_shapes), self.keys(0, num_batches)
        inverse_weights = tf.fill([len(self.optimizer.loss_terms)], tf.constant(np.nan, self.optimizer.dtype))
        for batch in batches:
            self._compiled([batch] * num_batches, inverse_weights, keys).numpy()  # memory runs out here or never
        return len(batches)

    def _compiled(self, batches: Sequence[Batch], inverse_weights: tf.Tensor, keys: Sequence) -> tf.Tensor:
        """Calls what is compiled. It changes nothing if the weights are not finite."""
        return self.gradient(batches, inverse_weights, keys)[-1]

    def restart(self, seed: int) -> None:
        """Begins another training, with what is traced and compiled for this one. The caller gives the model its
        values, and the optimizer its schedule."""
        self.seed, self.state = seed, START
        self.optimizer.reset()

    def synchronize(self) -> State:
        """Gives all ranks the variables and the state of the rank that is furthest. Returns the state.

        An update is deterministic and follows a complete sum. So after a death a survivor that has applied step n
        holds a valid state n, also if the others have not.
        """
        states = self.optimizer.world.all_gather(self.state)
        root = max(range(len(states)), key=lambda rank: (*states[rank].progress, -rank))
        self.optimizer.broadcast_variables(root)
        self.optimizer.check_replicas()
        self.state = states[root]
        return self.state


class WholeStep(TrainingStep):
    """Gradient, sum over ranks and update are one function that XLA compiles, for each shape of batch.

    It is for a rank that is alone on its GPU, or for a backend with `in_graph`.
    """

    def __init__(self, loss: Loss, weights: Weights, optimizer: AllreduceOptimizer, seed: int = 0):
        super().__init__(loss, weights, optimizer, seed, is_fixed=True)
        self._whole = tf.function(self.in_graph, jit_compile=True, autograph=False)

    def compute(
        self, batches: Sequence[Batch], weights: Mapping[str, float], keys: Sequence, clock: StepClock
    ) -> StepResult:
        numbers = self._compiled(batches, self.optimizer.inverse_weights(weights), keys)
        for part in ("compute_s", "reduce_s", "apply_s"):
            clock.mark(part, numbers)
        return StepResult(numbers, weights)

    def _compiled(self, batches: Sequence[Batch], inverse_weights: tf.Tensor, keys: Sequence) -> tf.Tensor:
        before = self.gradient(batches[:-1], inverse_weights, keys[:-1]) if len(batches) > 1 else None
        with naming_memory(batches[-1]), self.optimizer.world.operation("a step with its sum over ranks"):
            return self._whole(batches[-1], inverse_weights, keys[-1], before)

    def in_graph(
        self, batch: Batch, inverse_weights: tf.Tensor, key: tf.Tensor, before: Tensors | None
    ) -> tf.Tensor:
        """The step of a last micro-batch, after the sum of those `before`. Returns the numbers of `StepResult`."""
        own = self.backward(batch, inverse_weights, key)
        total = self.optimizer.all_reduce(own if before is None else added(before, own))
        return self.optimizer.apply(total, tf.reduce_all(tf.math.is_finite(inverse_weights)))


@tf.function(autograph=False)
def added(some: Tensors, more: Tensors) -> Tensors:
    """The sums of tensors in pairs."""
    return [a + b for a, b in zip(some, more, strict=True)]


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
