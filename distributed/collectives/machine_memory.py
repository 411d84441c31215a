"""Memory shared by the ranks of one machine, and the sum of their vectors in it.

MPI's Allreduce moves every value through main memory several times. Here each rank sums one share of the vector.
The other ranks pass it their values through a few MiB that stay in cache, and the result is written once per
machine. So each rank reads its vector from main memory once and writes its share once.
"""

import mmap
import os
import secrets

import numpy as np

SLOT_BYTES = 1 << 21  # one piece of a rank's vector; it stays in cache until the others have read it
TOKEN_BYTES = 16


class MachineMemory:
    """Created by `open_memory`. All ranks of the machine call the same methods in the same order."""

    def __init__(self, comm, slots: np.ndarray):
        self._comm = comm
        self._slots = slots  # uint8 [ranks, 2, SLOT_BYTES]
        self._vectors: dict[tuple[str, int, np.dtype], np.ndarray] = {}

    def vector(self, name: str, size: int, dtype: np.dtype) -> np.ndarray:
        """An array [size] that all ranks share, the same in each call with these arguments.

        Raises OSError like `open_memory`.
        """
        if (name, size, dtype) not in self._vectors:
            memory = _shared_bytes(self._comm, max(size * dtype.itemsize, 1))
            self._vectors[name, size, dtype] = memory[: size * dtype.itemsize].view(dtype)
        return self._vectors[name, size, dtype]

    def sum(self, own: np.ndarray, total: np.ndarray) -> None:
        """Adds up the ranks' vectors [n], in order of rank, into `total`, a `vector` of their dtype."""
        comm, rank = self._comm, self._comm.rank
        step = SLOT_BYTES // own.itemsize
        for number, start in enumerate(range(0, own.size, step)):
            piece = own[start : start + step]
            first, last = (piece.size * share // comm.size for share in (rank, rank + 1))  # this rank's share
            # Two slots alternate: after the barrier this piece is complete, and the one before it has been read.
            slots = self._slots[:, number % 2, : piece.nbytes].view(own.dtype)
            slots[rank, :first], slots[rank, last:] = piece[:first], piece[last:]
            comm.Barrier()
            parts = [(piece if other == rank else slots[other])[first:last] for other in range(comm.size)]
            added = total[start + first : start + last]
            np.add(parts[0], parts[1], out=added)
            for part in parts[2:]:
                np.add(added, part, out=added)
        comm.Barrier()


def open_memory(comm) -> MachineMemory:
    """Shared memory for the ranks of `comm`, which are at least two, all on one machine.

    Raises OSError on every rank if they cannot share memory: not on Linux, or in different containers.
    """
    return MachineMemory(comm, _shared_bytes(comm, comm.size * 2 * SLOT_BYTES).reshape(comm.size, 2, SLOT_BYTES))


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
