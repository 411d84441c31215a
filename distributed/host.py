"""Tensors in host memory as NumPy arrays, and the other way round."""

import sys

import numpy as np
import tensorflow as tf

ALIGNMENT_BYTES = 64  # TensorFlow aborts on a DLPack buffer with a smaller alignment
MOST_KEPT = 4  # arrays
UNUSED = 3  # references to an array in use by nobody: the list's, the local variable's and getrefcount's


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


class ReusedMemory:
    """Arrays that become tensors, and are handed out again when nothing uses the tensor any more.

    The operating system gives out fresh memory page by page, which takes longer than to sum what is in it.
    """

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []

    def array(self, size: int, dtype: np.dtype) -> np.ndarray:
        """An array [size], zeros when it is new; write it only before the tensor of `as_tensor` exists."""
        for place in range(len(self._arrays)):
            kept = self._arrays[place]
            if kept.size == size and kept.dtype == dtype and sys.getrefcount(kept) == UNUSED:
                return kept
        self._arrays = [*self._arrays[-(MOST_KEPT - 1) :], aligned(size, dtype)]
        return self._arrays[-1]


def as_tensor(array: np.ndarray) -> tf.Tensor:
    """A tensor of the same memory, aligned to 64 bytes. It holds a reference to the array."""
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
