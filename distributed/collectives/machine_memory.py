"""Memory that the ranks of one machine share, and the sum of their vectors in it.

MPI's Allreduce moves every number through main memory several times. Here each rank adds up its share of the
vector, the others hand it theirs through a few MiB that stay in cache, and the result is written once per machine:
main memory sees each rank read its vector once and write its share.
"""

import mmap
import os
import secrets

import numpy as np

SLOT_BYTES = 1 << 21  # what a rank hands to the others at once: it stays in cache until they have read it
TOKEN_BYTES = 16


class MachineMemory:
    """Made by `open_memory`. All ranks of the machine call the same methods in the same order."""

    def __init__(self, comm, slots: np.ndarray):
        self._comm = comm
        self._slots = slots  # uint8 [ranks, 2, SLOT_BYTES]
        self._vectors: dict[tuple[str, int, np.dtype], np.ndarray] = {}

    def vector(self, name: str, size: int, dtype: np.dtype) -> np.ndarray:
        """[size] that all ranks see; the same memory in each call with these arguments. Raises OSError as
        `open_memory`."""
        if (name, size, dtype) not in self._vectors:
            memory = _shared_bytes(self._comm, max(size * dtype.itemsize, 1))
            self._vectors[name, size, dtype] = memory[: size * dtype.itemsize].view(dtype)
        return self._vectors[name, size, dtype]

    def sum(self, own: np.ndarray, total: np.ndarray) -> None:
        """Adds up the ranks' vectors [n], in the order of the ranks, in `total`, a `vector` of their dtype."""
        comm, rank = self._comm, self._comm.rank
        step = SLOT_BYTES // own.itemsize
        for number, start in enumerate(range(0, own.size, step)):
            piece = own[start : start + step]
            first, last = (piece.size * share // comm.size for share in (rank, rank + 1))  # this rank's share
            # Of two slots in turn: one barrier tells that this piece is there and that the one before was read.
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
    """Memory of the ranks of `comm`, all on one machine, at least two.

    Raises OSError on every rank where they cannot share any: not on Linux, or each in a container of its own.
    """
    return MachineMemory(comm, _shared_bytes(comm, comm.size * 2 * SLOT_BYTES).reshape(comm.size, 2, SLOT_BYTES))


def _shared_bytes(comm, size: int) -> np.ndarray:
    """Zeros, uint8 [size], the same memory on every rank: without a name, so that nothing is left behind when the
    ranks are killed, and not limited by the size of /dev/shm. The operating system gives it out page by page."""
    descriptor, why, memory, whole = -1, "", None, size + TOKEN_BYTES
    try:
        if comm.rank == 0:
            descriptor = os.memfd_create("ringbert")
            os.truncate(descriptor, whole)
    except (OSError, AttributeError) as error:
        why = str(error)
    place, token = comm.bcast((f"/proc/{os.getpid()}/fd/{descriptor}", secrets.token_bytes(TOKEN_BYTES)))
    try:
        if not why:
            if comm.rank > 0:
                descriptor = os.open(place, os.O_RDWR)
            memory = np.frombuffer(mmap.mmap(descriptor, whole), np.uint8)
            if comm.rank == 0:
                memory[size:] = np.frombuffer(token, np.uint8)
    except (OSError, ValueError) as error:
        why = str(error)
    comm.Barrier()
    # In another container rank 0's number may be that of another process.
    if memory is not None and memory[size:].tobytes() != token:
        why = f"{place} is another process's"
    whys = [told for told in comm.allgather(why) if told]
    if descriptor >= 0:
        os.close(descriptor)
    if whys or memory is None:
        raise OSError(whys[0])
    return memory[:size]
