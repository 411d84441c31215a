"""Memory shared by the ranks of one machine, and the sum of their vectors in it.

MPI's Allreduce moves every value through main memory several times. Here the ranks pass each other their values
through a few MiB that stay in cache, each adds up one share of them, and the result is written once per machine.

The ranks wait for each other after each piece. Where other programs use their cores, a rank may get its core only
some milliseconds later, in which it would have added many pieces. There larger pieces are two to four times as
fast. Their size does not change the sums, because every value is added in the order of the ranks.

The vector lies in several arrays, such as the gradients of a model's variables. Putting them into one first would
take longer than their sum.
"""

import functools
import mmap
import os
import secrets
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

SLOT_BYTES = 1 << 24  # for one piece of a rank's vector
CACHED_BYTES = 1 << 21  # a piece that stays in cache until the others have read it
SLOW_S = 1e-3  # for such a piece: some rank waits for its core (2 ranks with a core each take 0.2 ms)
TRIED_EVERY = 16  # sums after which small pieces are tried again
COUNTER_BYTES = 64  # a cache line


class MachineMemory:
    """Memory for the ranks of `comm`, at least two on one machine, which call the same methods in the same order.

    Raises OSError on every rank if they cannot share memory, as in different containers.
    """

    def __init__(self, comm: Any):
        memory = shared_bytes(comm, COUNTER_BYTES + comm.size * 2 * SLOT_BYTES)
        self._comm, self._slots = comm, memory[COUNTER_BYTES:].reshape(comm.size, 2, SLOT_BYTES)
        self._large_left = memory[:8].view(np.int64)  # rank 0's: how many of the next sums have large pieces

    def vector(self, size: int, dtype: np.dtype) -> np.ndarray:
        """Zeros [size] that all ranks share. Raises OSError like the constructor."""
        return shared_bytes(self._comm, max(size * dtype.itemsize, 1))[: size * dtype.itemsize].view(dtype)

    @np.errstate(all="ignore")  # between the parts lies anything
    def sum(self, own: Sequence[np.ndarray], starts: tuple[int, ...], total: np.ndarray) -> None:
        """Adds up the ranks' vectors in order of rank.

        Args:
          own: the parts of this rank's vector, each of one dimension, all of one dtype.
          starts: where they begin in the vector and in `total`, the same on every rank.
          total: a `vector` of their dtype.
        """
        comm, rank = self._comm, self._comm.rank
        large_left, start_s = int(self._large_left[0]), time.perf_counter()
        step = (SLOT_BYTES if large_left else CACHED_BYTES) // total.itemsize
        sizes = tuple(part.size for part in own)
        for number, (start, segments) in enumerate(pieces_of(starts, sizes, total.size, step)):
            # Two slots alternate: after the barrier this piece is complete, and the one before it has been read.
            slots, piece = self._slots[:, number % 2].view(total.dtype), total[start : start + step]
            for place, low, high, at in segments:
                slots[rank, at : at + high - low] = own[place][low:high]
            comm.Barrier()
            share = slice(piece.size * rank // comm.size, piece.size * (rank + 1) // comm.size)
            np.add(slots[0, share], slots[1, share], out=piece[share])
            for other in slots[2:, share]:
                np.add(piece[share], other, out=piece[share])
        if rank == 0 and total.nbytes > CACHED_BYTES:  # after a barrier, before which all ranks have read it
            is_slow = time.perf_counter() - start_s > SLOW_S * total.nbytes / CACHED_BYTES
            self._large_left[0] = large_left - 1 if large_left else TRIED_EVERY if is_slow else 0
        comm.Barrier()


@functools.lru_cache(maxsize=64)
def pieces_of(
    starts: tuple[int, ...], sizes: tuple[int, ...], end: int, step: int
) -> list[tuple[int, list[tuple[int, int, int, int]]]]:
    """Where each piece of `step` numbers of a vector begins, and the segments of its parts in it: which part, from
    where to where in it, and where in the piece."""
    return [
        (
            piece,
            [
                (place, max(piece - start, 0), min(piece + step - start, size), max(start - piece, 0))
                for place, (start, size) in enumerate(zip(starts, sizes, strict=True))
                if start < piece + step and piece < start + size
            ],
        )
        for piece in range(0, end, step)
    ]


def shared_bytes(comm: Any, size: int) -> np.ndarray:
    """Zeros, uint8 [size], the same memory on every rank.

    No file system knows its name, so nothing is left when the ranks are killed, and the size of /dev/shm does not
    limit it. The operating system allocates it page by page.
    """
    name, descriptor, problem, memory = f"ringbert-{secrets.token_hex(8)}", -1, "", None
    if comm.rank == 0:
        descriptor = os.memfd_create(name)
        os.truncate(descriptor, size)
    place, name = comm.bcast((f"/proc/{os.getpid()}/fd/{descriptor}", name))
    try:
        if name not in os.readlink(place):  # in another container, rank 0's process id may be another process's
            raise OSError(f"{place} belongs to another process")
        with open(place, "r+b", buffering=0) as file:
            memory = np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
    except OSError as error:
        problem = str(error)
    problems = list(filter(None, comm.allgather(problem)))
    if comm.rank == 0:
        os.close(descriptor)
    if problems or memory is None:
        raise OSError(problems[0])
    return memory
