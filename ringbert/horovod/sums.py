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


class NoneCompressor:
    """Sends tensors as they are. Subclasses of a user's own make them smaller, as with Horovod."""

    @classmethod
    def compress(cls, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """The tensor to send, and what `decompress` needs."""
        return tensor, None

    @classmethod
    def decompress(cls, tensor: tf.Tensor, context: Any) -> tf.Tensor:
        return tensor if context is None else tf.cast(tensor, context)


class FP16Compressor(NoneCompressor):
    half: tf.DType = tf.float16

    @classmethod
    def compress(cls, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return (tf.cast(tensor, cls.half), tensor.dtype) if tensor.dtype.is_floating else (tensor, None)


class BF16Compressor(FP16Compressor):
    half = tf.bfloat16


class Compression:
    """Compressors for the argument `compression`.

    `fp16` and `bf16` both send float32 values as bfloat16 between machines, which has the range of float32, and
    add in float32. Within a machine nothing is sent, and so nothing is rounded.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


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
    for kind in sorted({value.dtype for value in results}, key=lambda kind: kind.name):
        places = [place for place, value in enumerate(results) if value.dtype == kind]
        own = [results[place] for place in places]
        if session.world.size > 1 and kind.is_floating and how.op in (Average, Sum):
            own = _means(session, own, divisor, how.is_half and kind == tf.float32)
        elif session.world.size > 1:
            own = [tf.constant(arrays.reduced(session.world.comm, x.numpy(), MPI_NAMES[how.op])) for x in own]
        for place, value in zip(places, own, strict=True):
            value = _scaled(value, how.postscale)
            value = value if kind.is_floating else tf.truncatediv(value, tf.cast(divisor, kind))
            results[place] = tf.cast(value, tensors[place].dtype)
    return results


def _means(session: Session, own: Sequence[tf.Tensor], divisor: int, is_half: bool) -> list[tf.Tensor]:
    """Sums of tensors of one dtype, divided, in memory of their own."""
    totals = session.collectives.all_reduce_sum(own, is_half)
    return [total / tf.cast(divisor, total.dtype) for total in totals]


def means_in_graph(session: Session, own: Sequence[tf.Tensor], op: str) -> list[tf.Tensor] | None:
    """The average or sum of float tensors over ranks as operations of a graph; None where the host sums (MPI)."""
    if not session.collectives.in_graph or session.world.size == 1 or tf.executing_eagerly():
        return None
    wide = tf.float64 if any(value.dtype == tf.float64 for value in own) else tf.float32
    totals = session.collectives.all_reduce_sum([tf.cast(value, wide) for value in own])
    divisor = session.world.size if op == Average else 1
    return [tf.cast(total / divisor, value.dtype) for total, value in zip(totals, own, strict=True)]


def sums_in_xla(session: Session) -> bool:
    """Whether XLA can compile a step with its sum."""
    return session.collectives.name in ("nccl", "local")


def _scaled(value: tf.Tensor, factor: float) -> tf.Tensor:
    if factor == 1:
        return value
    wide = tf.cast(value, tf.float64) if value.dtype.is_integer else value
    return tf.cast(wide * tf.cast(factor, wide.dtype), value.dtype)
