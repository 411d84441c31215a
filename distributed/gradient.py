"""The gradient of a step: what a rank adds to the sum over ranks."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import keras
import numpy as np
import tensorflow as tf
from tensorflow import Tensor

from distributed.collectives import Sink
from distributed.optimizer import Tensors
from distributed.rows import Batch

# A way to compile a function of a batch and other arrays: `by_xla` or `traced_once`.
Compile = Callable[[Callable], Callable]
# Of a batch and a dropout key, int32 [2]: the sum of each loss term over the batch, not its mean.
Loss = Callable[[Batch, Tensor], Mapping[str, Tensor]]

by_xla = partial(tf.function, jit_compile=True, autograph=False)


class Gradient(Protocol):
    """What a step computes of its rows: a loss of one or several terms, each of them a sum over
    the rows of all ranks, divided by its weight."""

    @property
    def terms(self) -> Sequence[str]:
        """The names of the loss terms."""

    def weights(self, batch: Batch) -> Mapping[str, float]:
        """How much a batch has of each loss term: rows, masked tokens, …"""

    def sums(self, batches: Sequence[Batch], factors: Tensor, keys: Sequence, sink: Sink) -> Tensor:
        """Puts the sums over this rank's micro-batches into the sink: the gradient of each
        variable, by its index, of the loss terms times `factors` [terms]; and behind them the loss
        terms. `keys` are the dropout keys of the micro-batches, int32 [2] each. All ranks put
        their tensors in the same order. Returns the loss terms, [terms]."""

    def alone(self) -> "Gradient":
        """One that computes the same from a rank's own rows, whatever the others have."""


@dataclass(eq=False)
class LossGradient:
    """That of a loss which is a sum over rows. `variables` have one dtype."""

    loss: Loss
    weights: Callable[[Batch], Mapping[str, float]]
    terms: Sequence[str]
    variables: Sequence[keras.Variable]
    compiled: Compile

    def __post_init__(self) -> None:
        self._compiled = self.compiled(self.in_graph)

    def sums(self, batches: Sequence[Batch], factors: Tensor, keys: Sequence, sink: Sink) -> Tensor:
        own = self.of_batches(batches, factors, keys)
        put_all(own, sink)
        return own[-1]

    def of_batches(self, batches: Sequence[Batch], factors: Tensor, keys: Sequence) -> Tensors:
        """[*gradients, loss terms] summed over micro-batches; [] of none."""
        pairs = zip(batches, keys, strict=True)
        return summed(self._compiled(batch, factors, key) for batch, key in pairs)

    def in_graph(self, batch: Batch, factors: Tensor, key: Tensor) -> Tensors:
        """[*gradients, loss terms] of one batch."""
        (dtype,) = {variable.dtype for variable in self.variables}
        with tf.GradientTape() as tape:
            terms = self.loss(batch, key)
            in_order = [tf.cast(terms[term], dtype) for term in self.terms]
            sums = tf.stack(in_order)
            total = tf.reduce_sum(sums * factors)
        return [*gradients_of(tape, total, self.variables), sums]

    def alone(self) -> "LossGradient":
        return self


def gradients_of(
    tape: tf.GradientTape,
    target: Tensor,
    variables: Sequence[keras.Variable],
    slopes: Tensor | None = None,
) -> Tensors:
    """Those of the target with respect to the variables, for these gradients of the target; sparse
    ones become dense."""
    values = [variable.value for variable in variables]
    gradients = tape.gradient(target, values, slopes, unconnected_gradients="zero")
    return [*map(tf.convert_to_tensor, gradients)]


def put_all(tensors: Tensors, sink: Sink) -> None:
    """Puts [*gradients, loss terms] into a sink, in the order of the backward pass: from the loss
    to the first layer."""
    for index in reversed(range(len(tensors))):
        sink.put(index, tensors[index])


@tf.function(autograph=False)
def added(some: Tensors, more: Tensors) -> Tensors:
    """The sums of tensors in pairs."""
    return [a + b for a, b in zip(some, more, strict=True)]


def summed(parts: Iterable[Tensors]) -> Tensors:
    """The sum of lists of tensors; [] of none. While one is computed the sum alone is kept."""
    total: Tensors = []
    for part in parts:
        total = added(total, part) if total else part
        del part  # else it would live while the next one is computed
    return total


def traced_once(function: Callable) -> Callable:
    """`function(batch, *others)` as a graph for batches of any size, with the arrays of the first
    one; `others` are arrays or lists of arrays, of fixed shapes."""
    traced = None

    def of_any_size(array):
        return tf.TensorSpec([None] * array.ndim, array.dtype)

    def of_this_size(array):
        return tf.TensorSpec(array.shape, array.dtype)

    def call(batch, *others):
        nonlocal traced
        if traced is None:
            fixed = tf.nest.map_structure(of_this_size, others)
            specs = [tf.nest.map_structure(of_any_size, batch), *fixed]
            traced = tf.function(function, input_signature=specs, autograph=False)
        return traced(batch, *others)

    return call


@contextmanager
def graphs_as_traced() -> Iterator[None]:
    """TensorFlow's graph optimizer (Grappler), which takes seconds when a function is first called,
    is off within the block: docs/log/2026-11.md."""
    choose = tf.config.optimizer.set_experimental_options
    choose({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        choose({"disable_meta_optimizer": False})


def dropout_key(seed: int, step: int, micro_batch: int, rank: int) -> np.ndarray:
    """int32 [2], a hash of the arguments: the random seed of one forward pass."""
    sequence = np.random.SeedSequence([seed, step, micro_batch, rank])
    return sequence.generate_state(2, np.uint32).view(np.int32)
