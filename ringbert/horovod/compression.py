"""How gradients are sent between machines."""

from typing import Any

import tensorflow as tf


class Compressor:
    """Makes a tensor smaller before it is sent. Subclasses of a user's own work as with Horovod."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """The tensor to send, and what `decompress` needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: tf.Tensor, context: Any) -> tf.Tensor:
        raise NotImplementedError


class NoneCompressor(Compressor):
    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, context: Any) -> tf.Tensor:
        return tensor


class _HalfCompressor(Compressor):
    half: tf.DType

    @classmethod
    def compress(cls, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return (tf.cast(tensor, cls.half), tensor.dtype) if tensor.dtype.is_floating else (tensor, None)

    @classmethod
    def decompress(cls, tensor: tf.Tensor, context: Any) -> tf.Tensor:
        return tensor if context is None else tf.cast(tensor, context)


class FP16Compressor(_HalfCompressor):
    half = tf.float16


class BF16Compressor(_HalfCompressor):
    half = tf.bfloat16


class Compression:
    """Compressors for the argument `compression`.

    `fp16` and `bf16` both send float32 values as bfloat16 between machines, which has the range of float32, and
    add in float32. Within a machine nothing is sent, and so nothing is rounded.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def rounds_on_the_way(compression: Any) -> bool:
    """Whether a backend's own sum in bfloat16 stands for this compressor."""
    return isinstance(compression, type) and issubclass(compression, _HalfCompressor)
