"""Memory shared by the ranks of one machine, and the sum of their vectors in it.

MPI's Allreduce moves every value through main memory several times. Here each rank sums one share of the vector.
The other ranks pass it their values through a few MiB that stay in cache, and the result is written once per
machine. So each rank reads its vector from main memory once and writes its share once.

The ranks wait for each other after each piece. Where other programs use their cores, a rank may get its core only
some milliseconds later, in which it would have added many pieces. There the pieces are larger. Their size does not
change the sums, because every value is added in the order of the ranks.

A vector may also lie in several arrays, such as the gradients of a model's variables. Putting them into one vector
first would take longer than their sum.
"""

import itertools
import mmap
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

SLOT_BYTES = 1 << 24  # for one piece of a rank's vector
CACHED_BYTES = 1 << 21  # a piece that stays in cache until the others have read it
SLOW_S = 1e-3  # for such a piece: some rank waits for its core (2 ranks with a core each take 0.2 ms)
TRIED_EVERY = 16  # sums after which small pieces are tried again
ALIGNMENT = 64  # bytes of a cache line, of which the first 8 hold a number
TOKEN_BYTES = 16


class MachineMemory:
    """Created by `open_memory`. All ranks of the machine call the same methods in the same order."""

    def __init__(self, comm, memory: np.ndarray):
        """`memory`: zeros, uint8 [ALIGNMENT + (ranks + 1) * 2 * SLOT_BYTES], that all ranks share."""
        self._comm = comm
        slots = memory[ALIGNMENT:].reshape(comm.size + 1, 2, SLOT_BYTES)
        self._slots, self._sums = slots[:-1], slots[-1]  # of the ranks' values, and of sums
        self._large_left = memory[:8].view(np.int64)  # rank 0's: how many of the next sums have large pieces
        self._vectors: dict[tuple[str, int, np.dtype], np.ndarray] = {}

    def vector(self, name: str, size: int, dtype: np.dtype) -> np.ndarray:
        """An array [size] that all ranks share, the same in each call with these arguments.

        Raises OSError like `open_memory`.
        """
        if (name, size, dtype) not in self._vectors:
            memory = _shared_bytes(self._comm, max(size * dtype.itemsize, 1))
            self._vectors[name, size, dtype] = memory[: size * dtype.itemsize].view(dtype)
        return self._vectors[name, size, dtype]

    def sum(self, own: Sequence[np.ndarray], starts: Sequence[int], total: np.ndarray) -> None:
        """Adds up the ranks' vectors in order of rank.

        Args:
          own: the parts of this rank's vector, each of one dimension, all of one dtype.
          starts: where they begin in the vector and in `total`, in ascending order, the same on every rank.
          total: a `vector` of their dtype; what lies between the parts becomes 0 or stays what it is.
        """
        self._add(own, starts, lambda number, start, piece: total[start : start + piece.size])

    def mean(self, own: Sequence[np.ndarray], starts: Sequence[int], divisor: float, result: np.ndarray) -> None:
        """As `sum`, divided by `divisor`, into `result`, memory of this rank."""
        before: tuple[np.ndarray, np.ndarray] | None = None  # a piece of sums, and its place in the result

        def finish() -> None:
            if before is not None:
                np.divide(before[0], before[0].dtype.type(divisor), out=before[1])

        def sums(number: int, start: int, piece: np.ndarray) -> np.ndarray:
            nonlocal before
            finish()  # all ranks have added their shares of the piece before this one
            added = self._sums[number % 2, : piece.nbytes].view(piece.dtype)
            before = added, result[start : start + piece.size]
            return added

        self._add(own, starts, sums)
        finish()

    def _add(
        self,
        own: Sequence[np.ndarray],
        starts: Sequence[int],
        total_of: Callable[[int, int, np.ndarray], np.ndarray],
    ) -> None:
        """Adds up the ranks' vectors piece by piece, each into what `total_of(number, start, piece)` returns."""
        comm, rank = self._comm, self._comm.rank
        large_left, start_s = int(self._large_left[0]), time.perf_counter()
        step = (SLOT_BYTES if large_left else CACHED_BYTES) // own[0].itemsize
        for number, (start, piece) in enumerate(_pieces(own, starts, step)):
            first, last = (piece.size * share // comm.size for share in (rank, rank + 1))  # this rank's share
            # Two slots alternate: after the barrier this piece is complete, and the one before it has been read.
            slots = self._slots[:, number % 2, : piece.nbytes].view(piece.dtype)
            slots[rank, :first], slots[rank, last:] = piece[:first], piece[last:]
            comm.Barrier()
            parts = [(piece if other == rank else slots[other])[first:last] for other in range(comm.size)]
            added = total_of(number, start, piece)[first:last]
            np.add(parts[0], parts[1], out=added)
            for part in parts[2:]:
                np.add(added, part, out=added)
        num_bytes = sum(part.nbytes for part in own)
        if rank == 0 and num_bytes > CACHED_BYTES:  # after a barrier, before which all ranks have read it
            is_slow = time.perf_counter() - start_s > SLOW_S * num_bytes / CACHED_BYTES
            self._large_left[0] = large_left - 1 if large_left else TRIED_EVERY if is_slow else 0
        comm.Barrier()


def _pieces(own: Sequence[np.ndarray], starts: Sequence[int], step: int) -> Iterator[tuple[int, np.ndarray]]:
    """Pieces of at most `step` numbers of the vector whose parts begin at `starts`: (start, numbers).

    A piece is valid until the next one. Small parts are put together, with zeros between them.
    """
    scratch: np.ndarray | None = None
    together: list[int] = []  # small parts, by their places

    def small() -> Iterator[tuple[int, np.ndarray]]:
        nonlocal scratch
        if len(together) == 1:
            yield starts[together[0]], own[together[0]]
        elif together:
            scratch = np.empty(step, own[0].dtype) if scratch is None else scratch
            first, end = starts[together[0]], 0
            for place in together:
                start = starts[place] - first
                scratch[end:start] = 0
                end = start + own[place].size
                scratch[start:end] = own[place]
            yield first, scratch[:end]
        together.clear()

    for place, part in enumerate(own):
        if together and starts[place] + part.size - starts[together[0]] > step:
            yield from small()
        if part.size < step // 2:
            together.append(place)
            continue
        yield from small()
        num_pieces = -(-part.size // step)
        bounds = [part.size * number // num_pieces for number in range(num_pieces + 1)]
        yield from ((starts[place] + low, part[low:high]) for low, high in itertools.pairwise(bounds))
    yield from small()


def open_memory(comm) -> MachineMemory:
    """Shared memory for the ranks of `comm`, which are at least two, all on one machine.

    Raises OSError on every rank if they cannot share memory: not on Linux, or in different containers.
    """
    return MachineMemory(comm, _shared_bytes(comm, ALIGNMENT + (comm.size + 1) * 2 * SLOT_BYTES))


def _shared_bytes(comm, size: int) -> np.ndarray:
    """Zeros, uint8 [size], the same memory on every rank.

    It has no name, so nothing is left when the ranks are killed, and the size of /dev/shm does not limit it. The
    operating system allocates it page by page.
    """
    descriptor, problem, memory, total_size = -1, "", None, size + TOKEN_BYTES
    try:
        if comm.rank == 0:
            descriptor = os.memfd_create("ringbert")
            os.truncate(descriptor, total_size)
    except (OSError, AttributeError) as error:
        problem = str(error)
    place, token = comm.bcast((f"/proc/{os.getpid()}/fd/{descriptor}", secrets.token_bytes(TOKEN_BYTES)))
    try:
        if not problem:
            if comm.rank > 0:
                descriptor = os.open(place, os.O_RDWR)
            memory = np.frombuffer(mmap.mmap(descriptor, total_size), np.uint8)
            if comm.rank == 0:
                memory[size:] = np.frombuffer(token, np.uint8)
    except (OSError, ValueError) as error:
        problem = str(error)
    comm.Barrier()
    # In another container, rank 0's process id may belong to another process.
    if memory is not None and memory[size:].tobytes() != token:
        problem = f"{place} belongs to another process"
    problems = [reason for reason in comm.allgather(problem) if reason]
    if descriptor >= 0:
        os.close(descriptor)
    if problems or memory is None:
        raise OSError(problems[0])
    return memory[:size]
