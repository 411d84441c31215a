"""Tensors in host memory as NumPy arrays, and the other way round."""

import numpy as np
import tensorflow as tf

ALIGNMENT_BYTES = 64  # TensorFlow aborts on a DLPack buffer with a smaller alignment


def host_view(tensor: tf.Tensor) -> np.ndarray:
    """A tensor as a NumPy array, without a copy if it is in host memory: use it before the variable changes
    again."""
    if "GPU" in tensor.device:
        return tensor.numpy()
    return np.from_dlpack(tensor)


def aligned(size: int, dtype: np.dtype) -> np.ndarray:
    """Zeros [size] that TensorFlow can use as a tensor."""
    raw = np.zeros(size * dtype.itemsize + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size * dtype.itemsize].view(dtype)


def as_tensor(array: np.ndarray) -> tf.Tensor:
    """A tensor of the same memory, aligned to 64 bytes. It holds a reference to the array."""
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
