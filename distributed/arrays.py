"""Tensors in host memory as NumPy arrays, and MPI's operations on arrays, which all ranks call
alike."""

import functools
import hashlib
import math
from collections.abc import Iterable, Sequence

import google_crc32c
import numpy as np
import tensorflow as tf
from numpy import ndarray

from distributed.joining import started

PIECE_BYTES = 1 << 26  # MPI counts bytes in 32 bits


def host_view(tensor: tf.Tensor | tf.Variable) -> ndarray:
    """A tensor as a NumPy array; of a variable in host memory the same memory, which its next
    update changes."""
    tensor = tf.convert_to_tensor(tensor)
    return tensor.numpy() if "GPU" in tensor.device else np.from_dlpack(tensor)


def digest_of(tensors: Iterable[tf.Tensor | tf.Variable]) -> str:
    """A short digest of the bits of tensors."""
    total = hashlib.sha256()
    for tensor in tensors:
        raw = host_view(tensor).reshape(-1).view(np.uint8)
        total.update(google_crc32c.value(raw).to_bytes(4, "little"))
    return total.hexdigest()[:24]


def reduced(comm, values: ndarray, operation: str) -> ndarray:
    """The "SUM", "PROD", "MIN" or "MAX" over ranks of each element; MPI knows no float16 and
    bfloat16."""
    values = np.asarray(values, order="C")
    result = np.empty_like(values)
    comm.Allreduce(values, result, getattr(started(), operation))
    return result


def broadcast(comm, values: ndarray, root: int) -> ndarray:
    """The array of rank `root`: there the same array if it is contiguous, elsewhere in memory of
    its own."""
    if comm.rank == root:
        result = np.asarray(values, order="C")
    else:
        result = np.empty(values.shape, values.dtype)
    raw = _bytes_of(result)
    for start in range(0, raw.size, PIECE_BYTES):
        comm.Bcast(raw[start : start + PIECE_BYTES], root)
    return result


def gathered(comm, values: ndarray) -> tuple[ndarray, list[int]]:
    """The arrays [rows of a rank, …] of all ranks one after the other, and how many rows each rank
    has."""
    rows = comm.allgather(len(values))
    result = np.empty((sum(rows), *values.shape[1:]), values.dtype)
    comm.Allgatherv(_in_rows(values, len(values)), _in_rows(result, rows))
    return result, rows


def exchanged(comm, values: ndarray, rows_to: Sequence[int]) -> tuple[ndarray, list[int]]:
    """The rows that the ranks send to this one, in order of rank, and how many each sends. `values`
    are [sum of rows_to, …]: first those for rank 0."""
    rows_from = comm.alltoall(list(rows_to))
    result = np.empty((sum(rows_from), *values.shape[1:]), values.dtype)
    comm.Alltoallv(_in_rows(values, rows_to), _in_rows(result, rows_from))
    return result, rows_from


def _bytes_of(values: ndarray) -> ndarray:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def _in_rows(values: ndarray, rows) -> list:
    """An array of any dtype for MPI, which counts in 32 bits: `rows` are how many rows for each
    rank."""
    row_size = math.prod(values.shape[1:])
    return [_bytes_of(values), rows, _row_of(row_size * values.dtype.itemsize)]


@functools.cache
def _row_of(num_bytes: int):
    return started().BYTE.Create_contiguous(num_bytes).Commit()
