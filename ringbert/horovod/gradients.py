"""The mean of gradients over ranks, in one sum.

Each rank's gradient is that of a mean over its own examples. Where the numbers of examples are known (`examples`),
ranks with more of them weigh more, so that the result is the gradient of the mean over all examples.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from distributed import arrays
from ringbase.errors import InputError
from ringbert.horovod.compression import Compression, NoneCompressor, rounds_on_the_way
from ringbert.horovod.host import on_host
from ringbert.horovod.operations import Average, Sum, allreduce, grouped_allreduce, sparse_allreduce
from ringbert.horovod.session import Call, Session, current

SUM_NAME = "the sum of the gradients"
# Sparse gradients of a variable up to this size are summed dense: the memory does not grow with the ranks.
MOST_DENSE_BYTES = 1 << 26
COMPARISON = "the comparison of the variables"
SAMPLE = 1 << 14  # how many values of each variable are compared
ROUNDING = 1e-3  # larger differences, relative to the largest value, are no rounding
WIRE = {tf.float16: tf.float32, tf.bfloat16: tf.float32, tf.float32: tf.float32, tf.float64: tf.float64}


@dataclass
class Examples:
    """How many examples the gradients in a `with examples(…)` block are means over; None if it is not known."""

    count: Any = None


_examples = Examples()


@contextlib.contextmanager
def examples(count: Any) -> Iterator[None]:
    """Gradients that are averaged in this block are those of the mean over `count` examples on this rank.

    `count` is a number or a scalar tensor; it may differ among the ranks.
    """
    before, _examples.count = _examples.count, count
    try:
        yield
    finally:
        _examples.count = before


@dataclass(eq=False)
class GradientMean:
    """Averages lists of gradients over ranks.

    Args:
      op: `Average`, or `Sum`, which does not divide.
      compression: a compressor (compression.py).
      sparse_as_dense: make sparse gradients dense however large they are.
      scales_local: divide the gradients of `local` by the number of ranks, because an average does so to a part of
        the loss that only one rank has.
      local: variables whose gradients stay on their rank, by their id.
      facts: what all ranks must have in common, as name -> value: the optimizer.
    """

    op: str = Average
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    scales_local: bool = True
    local: dict[int, Any] = field(default_factory=dict, repr=False)
    facts: dict[str, str] = field(default_factory=dict, repr=False)
    _sums_of: dict[tuple, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.op not in (Average, Sum):
            raise InputError(f"gradients can be averaged or summed (op=hvd.Average or hvd.Sum), got op={self.op}")

    def weight(self) -> Any:
        """What this rank's gradients count; None if all ranks' count the same."""
        return _examples.count if self.op == Average else None

    def __call__(self, gradients: Sequence, variables: Sequence) -> list:
        """The means over ranks of gradients of `variables`; None stays None.

        Raises InputError if the gradients differ in shape or dtype among the ranks, or if the variables have
        different values when they get their second gradient: by then they should have been broadcast.
        """
        return self._means(gradients, variables, 1, self.weight())

    def of_products(self, products: Sequence, variables: Sequence, weight: Any) -> list:
        """The means of gradients that are multiplied by this rank's weight already."""
        return self._means(products, variables, weight, None)

    def _means(self, gradients: Sequence, variables: Sequence, number: Any, weight: Any) -> list:
        """The shared means, and this rank's own gradients of the variables that are `local`."""
        if not self.local:
            return self._shared_means(gradients, variables, number, weight)
        factor = 1 / current().world.size if self.scales_local else 1.0
        own = times(gradients, factor if self.op == Sum else factor / number)
        shared = [place for place, variable in enumerate(variables) if id(variable) not in self.local]
        given, of = [gradients[place] for place in shared], [variables[place] for place in shared]
        for place, mean in zip(shared, self._shared_means(given, of, number, weight), strict=True):
            own[place] = mean
        return own

    def _shared_means(self, gradients: Sequence, variables: Sequence, number: Any, weight: Any) -> list:
        """The sums of gradients times weight, divided by the sum of number times weight."""
        session, means = current(), list(gradients)
        if session.world.size == 1:
            means = [self._without_repeats(*pair) for pair in zip(means, variables, strict=True)]
            return means if self.op == Sum or isinstance(number, int) else times(means, 1 / number)
        sparse: dict[int, tf.IndexedSlices] = {}
        dense: dict[tf.DType, list[int]] = {}
        for place, gradient in enumerate(means):
            if gradient is None:
                continue
            if isinstance(gradient, tf.IndexedSlices) and not self._becomes_dense(gradient, variables[place]):
                sparse[place] = gradient
                continue
            means[place] = tf.convert_to_tensor(gradient)
            if means[place].dtype not in WIRE:
                raise InputError(f"gradient {place} is {means[place].dtype.name}: it must be of a float type")
            dense.setdefault(WIRE[means[place].dtype], []).append(place)
        self._compare(session, means, variables)
        for place, slices in sparse.items():
            means[place] = self._mean_of_slices(slices, number, weight, f"gradient {place}")
        for dtype, places in sorted(dense.items(), key=lambda item: item[0].name):
            tensors = [tf.cast(means[place], dtype) for place in places]
            same = [variables[place] for place in places]
            whole = self._mean(session, tensors, same, tf.cast(number, dtype), weight)
            for place, mean in zip(places, whole, strict=True):
                means[place] = tf.cast(mean, means[place].dtype)
        return means

    def _becomes_dense(self, slices: tf.IndexedSlices, variable: Any) -> bool:
        num_bytes = int(np.prod(variable.shape)) * slices.values.dtype.size
        return self.sparse_as_dense or num_bytes <= MOST_DENSE_BYTES

    def _without_repeats(self, gradient: Any, variable: Any) -> Any:
        """What one rank does with a gradient, so that it is what several ranks would get."""
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if self._becomes_dense(gradient, variable):
            return tf.convert_to_tensor(gradient)
        return without_repeats(gradient)

    def _mean_of_slices(self, slices: tf.IndexedSlices, number: Any, weight: Any, name: str) -> tf.IndexedSlices:
        total = without_repeats(sparse_allreduce(times([slices], weight)[0], Sum, name))
        if self.op == Sum:
            return total
        share = tf.cast(number, slices.dtype) * tf.cast(1 if weight is None else weight, slices.dtype)
        return times([total], 1 / allreduce(share, op=Sum, name=f"weight of {name}"))[0]

    def _mean(
        self, session: Session, tensors: list[tf.Tensor], variables: list, number: tf.Tensor, weight: Any
    ) -> list[tf.Tensor]:
        """One sum of [tensors | number], which is divided by the sum of the numbers."""
        rounds = rounds_on_the_way(self.compression)
        if not rounds and self.compression is not NoneCompressor:
            return self._by_users_compressor(times(tensors, weight), times([number], weight)[0])
        compresses = rounds and session.collectives.compresses
        if session.collectives.in_graph and not tf.executing_eagerly():
            *totals, divisor = session.collectives.all_reduce_sum(
                [*times(tensors, weight), *times([number], weight)], compresses
            )
            return [total / divisor for total in totals] if self.op == Average else totals

        key, kind = tuple(map(id, variables)), number.dtype
        shapes = [tuple(tensor.shape) for tensor in tensors]

        def compare() -> None:
            self._sums_of[key] = self._sums_of.get(key, 0) + 1
            if self._sums_of[key] == 2:
                compare_values(session, variables)

        def mean_now(number: tf.Tensor, weight: tf.Tensor, *own: tf.Tensor) -> list[tf.Tensor]:
            means = mean_of_ranks(session, own, kind, float(number), float(weight), self.op, compresses)
            if self.op == Average and self._sums_of[key] == 2:
                note_equal_data(session, own, means)
            return means

        def kind_of(*_: tf.Tensor) -> tuple:
            return kind.name, self.op, compresses, *shapes

        counts = [tf.cast(number, tf.float64), tf.cast(1.0 if weight is None else weight, tf.float64)]
        specs = [tf.TensorSpec(shape, kind) for shape in shapes]
        inputs, name = [*counts, *tensors], f"{len(tensors)} tensors"
        means, _ = on_host(SUM_NAME, name, kind_of, mean_now, inputs, specs, compare)
        return means

    def _by_users_compressor(self, tensors: list[tf.Tensor], weight: tf.Tensor) -> list[tf.Tensor]:
        pairs = [self.compression.compress(tensor) for tensor in tensors]
        *totals, weights = grouped_allreduce([*(sent for sent, _ in pairs), weight], op=Sum, name=SUM_NAME)
        whole = [self.compression.decompress(total, c) for total, (_, c) in zip(totals, pairs, strict=True)]
        return whole if self.op == Sum else [total / tf.cast(weights, total.dtype) for total in whole]

    def _compare(self, session: Session, gradients: Sequence, variables: Sequence) -> None:
        """Compares the ranks' gradients before their first sum, and when they belong to other variables."""
        key = (None, *map(id, variables))
        if key in self._sums_of or session.world.size == 1:
            return
        self._sums_of[key] = 0
        kinds = ["none" if g is None else f"{g.dtype.name} {list(g.shape)}" for g in gradients]
        facts = {"the number of gradients": len(kinds)} | {f"gradient {n}": kind for n, kind in enumerate(kinds)}
        facts |= self.facts
        session.meet(Call("the comparison of the models"), lambda: session.world.agree(facts))


def without_repeats(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Slices whose indices differ. Keras 3 takes the square of each slice for the square of their sum."""
    indices, places = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, places, tf.size(indices))
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def times(gradients: Sequence, factor: Any) -> list:
    """Gradients multiplied by a scalar; None and sparse ones stay what they are."""
    if factor is None:
        return list(gradients)
    return [
        gradient
        if gradient is None
        else tf.IndexedSlices(
            gradient.values * tf.cast(factor, gradient.dtype), gradient.indices, gradient.dense_shape
        )
        if isinstance(gradient, tf.IndexedSlices)
        else gradient * tf.cast(factor, gradient.dtype)
        for gradient in gradients
    ]


def mean_of_ranks(
    session: Session,
    own: Sequence[tf.Tensor],
    kind: tf.DType,
    number: float,
    weight: float,
    op: str,
    compresses: bool,
) -> list[tf.Tensor]:
    """The sum over ranks of each of `own` times `weight`.

    For `Average` it is divided by the sum of number times weight. A rank without data has the number 0.
    """
    counts = np.array(session.world.comm.allgather((number, weight)))
    weights = counts[counts[:, 0] > 0, 1]
    if np.all(weights == weights[:1]):  # the usual case, which needs no product
        counts[:, 1] = 1
    elif number > 0:
        own = times(own, weight)
    divisor = float(np.sum(counts[:, 0] * counts[:, 1])) if op == Average else 1.0
    totals = session.collectives.all_reduce_sum(own, compresses and kind == tf.float32)
    return [total / tf.cast(divisor, kind) for total in totals]  # in memory of their own


def note_equal_data(session: Session, own: Sequence[tf.Tensor], means: Sequence[tf.Tensor]) -> None:
    """A note if the ranks have the same gradients: probably they were given the same data."""
    if session.world.rank == 0 and session.world.size > 1:
        pairs = [(gradient.numpy(), mean.numpy()) for gradient, mean in zip(own, means, strict=True)]
        is_zero = not any(np.any(gradient) for gradient, _ in pairs)
        if not is_zero and all(np.allclose(*pair, rtol=1e-6, atol=0) for pair in pairs):
            session.world.say(
                "note: all ranks have the same gradients, so they probably train on the same data: give each rank "
                "its part, such as dataset.shard(hvd.size(), hvd.rank()) or x[hvd.rank()::hvd.size()]"
            )


def add_nothing(session: Session, call: Call) -> None:
    """What a rank that has joined adds: zeros, which weigh nothing."""
    if call.what == COMPARISON:
        arrays.reduced(session.world.comm, np.full(call.kind, -np.inf), "MAX")
        return
    name, op, compresses, *shapes = call.kind
    kind = tf.as_dtype(name)
    mean_of_ranks(session, [tf.zeros(shape, kind) for shape in shapes], kind, 0.0, 0.0, op, compresses)


def compare_values(session: Session, variables: Sequence) -> None:
    """Raises InputError unless the variables have about the same values on all ranks, as far as a sample shows."""
    if session.world.size == 1:
        return
    own = [np.ravel(tf.convert_to_tensor(variable).numpy()).astype(np.float64) for variable in variables]
    samples = [values[:: max(1, values.size // SAMPLE)] for values in own]
    extremes = np.concatenate([*samples, *(-sample for sample in samples)])
    most = session.meet(
        Call(COMPARISON, kind=(extremes.size,)), lambda: arrays.reduced(session.world.comm, extremes, "MAX")
    )
    largest, smallest = np.split(most, 2)
    ends = np.cumsum([0, *(sample.size for sample in samples)])
    for variable, start, end in zip(variables, ends, ends[1:], strict=False):
        high, low = largest[start:end], -smallest[start:end]
        if np.any(high - low > ROUNDING * np.maximum(abs(high), abs(low)).max(initial=0)):
            raise InputError(
                f"{getattr(variable, 'path', variable.name)} has different values on the ranks at its second "
                "gradient: use hvd.callbacks.BroadcastGlobalVariablesCallback(0), or hvd.broadcast_variables when "
                "all variables exist"
            )
