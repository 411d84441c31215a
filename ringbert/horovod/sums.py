"""Sums over ranks of tensors on the host: the one place that knows how a backend sums."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from distributed import arrays
from distributed.flat import FlatLayout
from ringbert.horovod.session import Session

Average, Sum, Min, Max, Product = "average", "sum", "min", "max", "product"
MPI_NAMES = {Average: "SUM", Sum: "SUM", Min: "MIN", Max: "MAX", Product: "PROD"}
WIDE = {tf.float16: tf.float32, tf.bfloat16: tf.float32, tf.bool: tf.int32}  # MPI knows none of these


def reduced(
    session: Session, tensors: Sequence[tf.Tensor], op: str, prescale: float, postscale: float
) -> list[tf.Tensor]:
    """Each tensor reduced over ranks, float ones in one sum. Averages are over the ranks that have not joined.

    Integers are multiplied by the factors in float64 and lose their fraction, and so do their averages.
    """
    results = [_scaled(tf.cast(value, WIDE.get(value.dtype, value.dtype)), prescale) for value in tensors]
    divisor = session.num_active if op == Average else 1
    for kind in sorted({value.dtype for value in tensors}, key=lambda kind: kind.name):
        places = [place for place, value in enumerate(tensors) if value.dtype == kind]
        own = [results[place] for place in places]
        if session.world.size > 1 and kind.is_floating and op in (Average, Sum):
            own = _means(session, own, divisor, compresses=kind in WIDE)
        elif session.world.size > 1:
            own = [tf.constant(arrays.reduced(session.world.comm, x.numpy(), MPI_NAMES[op])) for x in own]
        for place, value in zip(places, own, strict=True):
            value = _scaled(value, postscale)
            value = value if kind.is_floating else tf.truncatediv(value, divisor)
            results[place] = tf.cast(value, kind)
    return results


def _means(session: Session, own: Sequence[tf.Tensor], divisor: int, compresses: bool) -> list[tf.Tensor]:
    """Sums of tensors of one dtype, divided. `compresses`: they have 16 bits, and need no more between machines."""
    layout, sums = FlatLayout([value.shape for value in own], 1, own[0].dtype.name), session.collectives
    if sums.mean_of_parts is not None:
        flat = sums.mean_of_parts(own, layout.starts, layout.ends[-1], float(divisor))
    else:
        vector = layout.flatten(own, [tf.zeros([])])
        add = sums.all_reduce_sum_bf16 if compresses and sums.compresses else sums.all_reduce_sum
        flat = add(vector) / divisor  # in memory of its own: the sum is valid until the next call
    return layout.unflatten(flat)[0]


def means_in_graph(session: Session, own: Sequence[tf.Tensor], op: str) -> list[tf.Tensor] | None:
    """The same as operations of a graph, which XLA can compile; None where the backend cannot do it (MPI)."""
    add = session.collectives.sum_in_graph
    if add is None or tf.executing_eagerly():
        return None
    layout = FlatLayout([value.shape for value in own], 1, own[0].dtype.name)
    total = layout.sum_in_buckets(own, [tf.zeros([])], None, lambda part, place, _: add(part, place, False))
    return layout.unflatten(total / session.world.size if op == Average else total)[0]


def _scaled(value: tf.Tensor, factor: float) -> tf.Tensor:
    if factor == 1:
        return value
    wide = tf.cast(value, tf.float64) if value.dtype.is_integer else value
    return tf.cast(wide * tf.cast(factor, wide.dtype), value.dtype)
