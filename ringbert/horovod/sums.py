"""Sums over ranks of tensors on the host: the one place that knows how a backend sums."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from distributed import arrays
from ringbert.horovod.session import Session

Average, Sum, Min, Max, Product = "average", "sum", "min", "max", "product"
MPI_NAMES = {Average: "SUM", Sum: "SUM", Min: "MIN", Max: "MAX", Product: "PROD"}
WIDE = {tf.float16: tf.float32, tf.bfloat16: tf.float32, tf.bool: tf.int32}  # MPI knows none of these


@dataclass(frozen=True)
class Compressor:
    """Makes tensors of numbers smaller. Others with these methods may be given too."""

    half: tf.DType | None = None

    def compress(self, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """The tensor to send, and what `decompress` needs."""
        if self.half is None or not tensor.dtype.is_floating:
            return tensor, None
        return tf.cast(tensor, self.half), tensor.dtype

    def decompress(self, tensor: tf.Tensor, context: Any) -> tf.Tensor:
        return tensor if context is None else tf.cast(tensor, context)


class Compression:
    """Compressors for the argument `compression`.

    `fp16` and `bf16` both send float32 values as bfloat16 between machines, which has the range of float32, and
    add in float32. Within a machine nothing is sent, and so nothing is rounded.
    """

    none, fp16, bf16 = Compressor(), Compressor(tf.float16), Compressor(tf.bfloat16)


@dataclass(frozen=True)
class Reduction:
    """What the ranks' values become: `postscale * op(prescale * value)`."""

    op: str
    prescale: float = 1.0
    postscale: float = 1.0
    is_half: bool = False  # float32 values may be sent in 16 bits between machines


def reduced(session: Session, tensors: Sequence[tf.Tensor], how: Reduction) -> list[tf.Tensor]:
    """Each tensor reduced over ranks, float ones in one sum. Averages are over the ranks that have not joined.

    Integers are multiplied by the factors in float64 and lose their fraction, and so do their averages.
    """
    results = [_scaled(tf.cast(value, WIDE.get(value.dtype, value.dtype)), how.prescale) for value in tensors]
    divisor = session.num_active if how.op == Average else 1
    for kind in {value.dtype: None for value in results}:
        places = [place for place, value in enumerate(results) if value.dtype == kind]
        own = [results[place] for place in places]
        if session.world.size > 1 and kind.is_floating and how.op in (Average, Sum):
            own = session.host.all_reduce_sum(own, how.is_half and kind == tf.float32)
        elif session.world.size > 1:
            own = [tf.constant(arrays.reduced(session.world.comm, x.numpy(), MPI_NAMES[how.op])) for x in own]
        divide = tf.truediv if kind.is_floating else tf.truncatediv  # into memory of their own
        for place, value in zip(places, own, strict=True):
            value = divide(_scaled(value, how.postscale), tf.cast(divisor, kind))
            results[place] = tf.cast(value, tensors[place].dtype)
    return results


def means_in_graph(session: Session, own: Sequence[tf.Tensor], op: str) -> list[tf.Tensor] | None:
    """The average or sum of float tensors over ranks as operations of a graph; None where the host sums."""
    if session.collectives is session.host or tf.executing_eagerly():
        return None
    wide = tf.float64 if any(value.dtype == tf.float64 for value in own) else tf.float32
    totals = session.collectives.all_reduce_sum([tf.cast(value, wide) for value in own])
    divisor = session.world.size if op == Average else 1
    return [tf.cast(total / divisor, value.dtype) for total, value in zip(totals, own, strict=True)]


def _scaled(value: tf.Tensor, factor: float) -> tf.Tensor:
    if factor == 1:
        return value
    wide = tf.cast(value, tf.float64) if value.dtype.is_integer else value
    return tf.cast(wide * tf.cast(factor, wide.dtype), value.dtype)
