"""MPI's operations on NumPy arrays, for programs that call them by hand; a training step uses `collectives`.

All ranks call the same function with the same arguments, except for the values. MPI knows no float16 and
bfloat16: cast them before.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

PIECE_BYTES = 1 << 26  # MPI counts elements in 32 bits


def reduced(comm: Any, values: np.ndarray, operation: str) -> np.ndarray:
    """The sum, product, minimum or maximum over ranks of each element: "SUM", "PROD", "MIN" or "MAX"."""
    from mpi4py import MPI

    values = np.ascontiguousarray(values)
    result = np.empty_like(values)
    flat, total = values.reshape(-1), result.reshape(-1)
    piece = PIECE_BYTES // max(values.itemsize, 1)
    for start in range(0, flat.size, piece):
        comm.Allreduce(flat[start : start + piece], total[start : start + piece], getattr(MPI, operation))
    return result


def broadcast(comm: Any, values: np.ndarray, root: int) -> np.ndarray:
    """The array of rank `root`, in memory of its own."""
    result = np.array(values, order="C")
    raw = result.reshape(-1).view(np.uint8)
    for start in range(0, raw.size, PIECE_BYTES):
        comm.Bcast(raw[start : start + PIECE_BYTES], root)
    return result


def gathered(comm: Any, values: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """The arrays [rows of a rank, …] of all ranks one after the other, and how many rows each rank has."""
    rows = comm.allgather(len(values))
    result = np.empty((sum(rows), *values.shape[1:]), values.dtype)
    _exchange(comm, values, [len(values)] * comm.size, result, rows, is_same=True)
    return result, rows


def exchanged(comm: Any, values: np.ndarray, rows_to: Sequence[int]) -> tuple[np.ndarray, list[int]]:
    """The rows that the ranks send to this one, in order of rank, and how many each sends.

    `values` are [sum of rows_to, …]: first those for rank 0.
    """
    rows_from = comm.alltoall(list(rows_to))
    result = np.empty((sum(rows_from), *values.shape[1:]), values.dtype)
    _exchange(comm, values, rows_to, result, rows_from, is_same=False)
    return result, rows_from


def _exchange(comm, values, rows_to, result, rows_from, is_same: bool) -> None:
    """Point to point, because the vector collectives of MPI count bytes in 32 bits."""
    row_bytes = values.dtype.itemsize * int(np.prod(values.shape[1:]))
    sent = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    received = result.reshape(-1).view(np.uint8)
    ends = np.cumsum([0, *rows_from]) * row_bytes
    starts = np.zeros(comm.size + 1, int) if is_same else np.cumsum([0, *rows_to]) * row_bytes
    for step in range(comm.size):
        to, source = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        outgoing = sent[starts[to] : starts[to] + rows_to[to] * row_bytes]
        incoming = received[ends[source] : ends[source + 1]]
        if to == comm.rank:
            incoming[:] = outgoing
            continue
        pieces = range(0, max(outgoing.size, incoming.size), PIECE_BYTES)
        for place in (slice(start, start + PIECE_BYTES) for start in pieces):
            comm.Sendrecv(outgoing[place], to, recvbuf=incoming[place], source=source)
