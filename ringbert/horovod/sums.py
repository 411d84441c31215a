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


def reduced(session: Session, tensors: Sequence[tf.Tensor], op: str, is_half: bool) -> list[tf.Tensor]:
    """Each tensor, of a dtype that MPI knows, reduced over ranks; float ones in one sum.

    Averages are over the ranks that have not joined, those of integers without their fraction. With `is_half`,
    float32 values may be sent in 16 bits between machines.
    """
    results = list(tensors)
    divisor = session.num_active if op == Average else 1
    for kind in {value.dtype: None for value in tensors}:
        places = [place for place, value in enumerate(tensors) if value.dtype == kind]
        own = [tensors[place] for place in places]
        if kind.is_floating and op in (Average, Sum):
            totals = session.host.all_reduce_sum(own, is_half and kind == tf.float32)
        else:
            comm, name = session.world.comm, MPI_NAMES[op]
            totals = [tf.constant(arrays.reduced(comm, value.numpy(), name)) for value in own]
        divide = tf.truediv if kind.is_floating else tf.truncatediv  # into memory of their own
        for place, total in zip(places, totals, strict=True):
            results[place] = divide(total, tf.cast(divisor, kind))
    return results


def means_in_graph(session: Session, own: Sequence[tf.Tensor], op: str) -> list[tf.Tensor] | None:
    """The average or sum of float tensors over ranks as operations of a graph; None where the host sums."""
    if session.collectives is session.host or tf.executing_eagerly():
        return None
    wide = tf.float64 if any(value.dtype == tf.float64 for value in own) else tf.float32
    totals = session.collectives.all_reduce_sum([tf.cast(value, wide) for value in own])
    divisor = session.world.size if op == Average else 1
    return [tf.cast(total / divisor, value.dtype) for total, value in zip(totals, own, strict=True)]
