"""Sums over MPI, through host memory, in pieces that stay in cache.

One `Allreduce` of a whole gradient runs at memory speed several times over; pieces of 1 MiB are 3 to 6 times
faster. The piece size is fixed because another one may round differently at three ranks or more.
"""

import numpy as np
import tensorflow as tf

from distributed import InputError
from distributed.world import World

PIECE_BYTES = 1 << 20
ALIGNMENT_BYTES = 64  # TensorFlow aborts on a DLPack buffer that is aligned to less


class MpiCollectives:
    """Sums with mpi4py's buffer calls; works on every MPI and every device."""

    name = "mpi"

    def __init__(self, comm, piece_bytes: int = PIECE_BYTES):
        self._comm, self._piece_bytes = comm, piece_bytes
        self._received: np.ndarray = np.empty(0)
        self._shared: tf.Tensor | None = None

    def all_reduce_sum(self, flat: tf.Tensor) -> tf.Tensor:
        sent = _view(flat)
        if self._shared is None or self._received.shape != sent.shape or self._received.dtype != sent.dtype:
            self._received = _aligned(sent.size, sent.dtype)
            # TensorFlow reads this buffer in place: what a later sum writes, the same tensor shows.
            self._shared = tf.experimental.dlpack.from_dlpack(self._received.__dlpack__())
        piece = self._piece_bytes // sent.itemsize
        for start in range(0, sent.size, piece):
            self._comm.Allreduce(sent[start : start + piece], self._received[start : start + piece])
        return self._shared

    def broadcast(self, value: tf.Tensor) -> tf.Tensor:
        buffer = np.array(value.numpy())  # a copy that may be written
        raw = buffer.reshape(-1).view(np.uint8)
        for start in range(0, raw.size, 64 * PIECE_BYTES):
            self._comm.Bcast(raw[start : start + 64 * PIECE_BYTES], root=0)
        return tf.convert_to_tensor(buffer)

    def close(self) -> None:
        self._shared, self._received = None, np.empty(0)


def open(world: World, name: str) -> MpiCollectives:
    if world.comm is None:
        raise InputError("--backend mpi needs several ranks: start the program under mpirun or bert-launch")
    return MpiCollectives(world.comm)


def _view(tensor: tf.Tensor) -> np.ndarray:
    """The tensor's memory without a copy where it lies on the host."""
    if "GPU" in tensor.device:
        return tensor.numpy()
    return np.from_dlpack(tensor)


def _aligned(size: int, dtype: np.dtype) -> np.ndarray:
    raw = np.zeros(size * dtype.itemsize + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size * dtype.itemsize].view(dtype)
