"""Sums over MPI, through host memory.

MPI's Allreduce moves every value through main memory several times. Here the ranks of a machine
pass each other their values through a few MiB of shared memory that stay in cache, each adds up one
share of them, and the result is written once per machine. With several machines, one rank of each
then sends every other machine its share of the machine's sum, adds up the shares that it receives
and sends the result to all. So each value crosses the network once each way. Ranks that share no
memory count as machines.
"""

import functools
import mmap
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy import ndarray

from distributed.arrays import host_view
from distributed.collectives import Collectives
from distributed.joining import started
from distributed.world import World

ALIGNMENT_BYTES = 64  # a cache line; TensorFlow aborts on a DLPack buffer with a smaller alignment
LEAST_COMPRESSED = 1024  # numbers in a tensor that `--compression` rounds
# The ranks of a machine wait for each other after each piece. Where other programs use their cores,
# a rank may get its core only some milliseconds later: there large pieces are two to four times as
# fast, with the same sums.
SLOT_BYTES = 1 << 24  # for one piece of a rank's vector
CACHED_BYTES = 1 << 21  # a piece that stays in cache until the others have read it
# for such a piece: some rank waits for its core (2 ranks with a core each take 0.2 ms)
SLOW_S = 1e-3
# sets of shapes whose memory is kept: a training has a few, Horovod's scripts may have any number
MOST_LAYOUTS = 64
TRIED_EVERY = 16  # sums after which small pieces are tried again


class MpiCollectives(Collectives):
    """Sums with mpi4py's buffer calls; works with every MPI and every device. After a death it is
    opened anew, on the new communicator of the world."""

    name = "mpi"
    in_graph = False
    in_xla = False

    def __init__(self, world: World):
        self._world = world
        self._open()

    def _open(self) -> None:
        world, self._comm, problem = self._world, self._world.comm, ""
        self._layouts: dict = {}
        self._slots: Any = None  # two for each rank of this machine, uint8 [ranks, 2, SLOT_BYTES]
        (self._machine,) = world.split(world.node)
        size = self._machine.size
        if size > 1:
            try:
                memory = _shared_bytes(self._machine, ALIGNMENT_BYTES + size * 2 * SLOT_BYTES)
                self._slots = memory[ALIGNMENT_BYTES:].reshape(size, 2, SLOT_BYTES)
                self._large_left = memory[:8].view(np.int64)  # of the next sums have large pieces
            except OSError as error:
                problem = str(error)
                self._machine = started().COMM_SELF
        if reasons := list(filter(None, world.all_gather(problem))):
            world.say(
                f"warning: a machine's ranks share no memory ({reasons[0]}): MPI sums, more slowly"
            )
        # with this local rank, on all machines
        (self._heads,) = world.split(self._machine.rank)
        self._num_machines = self._machine.bcast(self._heads.size)
        self.compresses = self._num_machines > 1

    def all_reduce_sum(
        self, tensors: Sequence[tf.Tensor], compresses: bool = False
    ) -> list[tf.Tensor]:
        """What is compressed is rounded once per machine, and once more after the sum in
        float32."""
        if self._world.comm is not self._comm:
            self._open()
        own = [host_view(tensor) for tensor in tensors]
        starts, rounded, total, sums = self._layout_of(own, compresses and self.compresses)
        parts = [part.reshape(-1) for part in own]
        if self._machine.size > 1:
            self._sum_on_machine(parts, starts, total)
        else:
            for start, part in zip(starts, parts, strict=True):
                total[start : start + part.size] = part
        if self._num_machines > 1:
            if self._machine.rank == 0:
                # What a death cut short is passed on to nobody: the others may not know of it yet.
                self._world.ranks.refuse_after_death()
                self._exchange(total[:rounded], np.asarray, np.asarray)
                with tf.device("CPU"):
                    self._exchange(total[rounded:], _rounded, _widened)
                self._world.ranks.refuse_after_death()
            self._machine.Barrier()
        self._world.ranks.refuse_after_death()
        return list(sums)

    def _sum_on_machine(
        self, own: Sequence[ndarray], starts: tuple[int, ...], total: ndarray
    ) -> None:
        """Adds up the vectors of this machine's ranks, in order of rank. `own` are the parts of
        this rank's."""
        comm, rank = self._machine, self._machine.rank
        large_left, start_s = self._large_left[0], time.perf_counter()
        step = (SLOT_BYTES if large_left else CACHED_BYTES) // total.itemsize
        pieces = _pieces_of(starts, tuple(part.size for part in own), step, rank, comm.size)
        for number, (start, theirs, mine) in enumerate(pieces):
            # Two slots alternate: after the barrier this piece is complete, and the one before it
            # has been read.
            slots = self._slots[:, number % 2].view(total.dtype)
            for place, within, at in theirs:
                slots[rank, at] = own[place][within]
            comm.Barrier()
            for place, within, at in mine:
                parts = [*slots[:, at]]
                parts[rank] = own[place][within]
                added = np.add(parts[0], parts[1], out=total[start:][at])
                for part in parts[2:]:
                    np.add(added, part, out=added)
        # after a barrier, before which all ranks have read it
        if rank == 0 and total.nbytes > CACHED_BYTES:
            passed_s = time.perf_counter() - start_s
            if large_left:
                self._large_left[0] -= 1
            elif passed_s > SLOW_S * total.nbytes / CACHED_BYTES:
                self._large_left[0] = TRIED_EVERY
        comm.Barrier()

    def _exchange(self, total: ndarray, pack, unpack) -> None:
        """Replaces each machine's sum by the sum over machines."""
        if total.size:
            sent = pack(total)
            received = np.empty_like(sent)
            self._heads.Alltoall(sent, received)
            added = unpack(received).reshape(self._num_machines, -1).sum(0, total.dtype)
            self._heads.Allgather(pack(added), received)
            total[:] = unpack(received)

    def _layout_of(self, parts: Sequence[ndarray], compresses: bool) -> tuple:
        """How these arrays are parts of one vector: where each begins, at a cache line; where those
        begin that are sent as bfloat16; memory for the sum, which all calls reuse; and tensors of
        the same memory."""
        key = (compresses, parts[0].dtype, *(part.shape for part in parts))
        layout = self._layouts.pop(key, None)
        if layout is None:
            if len(self._layouts) == MOST_LAYOUTS:  # on all ranks the one that was not used longest
                del self._layouts[next(iter(self._layouts))]
            line = ALIGNMENT_BYTES // parts[0].itemsize
            starts, end = [0] * len(parts), 0
            for rounds in (False, True):
                exact_end = end
                for place, part in enumerate(parts):
                    if rounds == (compresses and part.size >= LEAST_COMPRESSED):
                        starts[place] = end
                        end = _multiple(end + part.size, line)
                end = _multiple(end, line * self._num_machines)  # every machine gets an equal share
            num_bytes = end * parts[0].itemsize
            total = _shared_bytes(self._machine, max(num_bytes, 1))[:num_bytes].view(parts[0].dtype)
            tensors = []
            for start, part in zip(starts, parts, strict=True):
                array = total[start : start + part.size].reshape(part.shape)
                tensors.append(tf.experimental.dlpack.from_dlpack(array.__dlpack__()))
            layout = tuple(starts), exact_end, total, tensors
        self._layouts[key] = layout
        return layout


def open(world: World, name: str) -> MpiCollectives:
    return MpiCollectives(world)


def _multiple(number, unit):
    """The first multiple of `unit` from a number."""
    return -(-number // unit) * unit


@functools.lru_cache(maxsize=64)
def _pieces_of(starts, sizes, step, rank, num_ranks):
    """Where each piece of `step` numbers begins, what this rank passes to the others, and what it
    adds itself: which parts, and the slices of them and of the piece."""

    def segments(piece, low, high):
        found = []
        for place, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            first, last = max(low - start, 0), min(high - start, size)
            if first < last:
                at = start + first - piece
                found.append((place, slice(first, last), slice(at, at + last - first)))
        return found

    pieces, end = [], np.add(starts, sizes).max()
    for start in range(0, end, step):
        length = min(step, end - start)
        first = start + length * rank // num_ranks
        last = start + length * (rank + 1) // num_ranks
        theirs = segments(start, start, first) + segments(start, last, start + length)
        pieces.append((start, theirs, segments(start, first, last)))
    return pieces


def _shared_bytes(comm, size):
    """Zeros, uint8 [size], the same memory on every rank of a machine. Raises OSError on every rank
    if they cannot share memory, as in different containers.

    No file system knows it, so nothing is left when the ranks are killed, and the size of /dev/shm
    is no limit.
    """
    name, descriptor, problem = f"ringbert-{secrets.token_hex(8)}", -1, ""
    if comm.rank == 0:
        descriptor = os.memfd_create(name)
        os.truncate(descriptor, size)
    place, name = comm.bcast((f"/proc/{os.getpid()}/fd/{descriptor}", name))
    try:
        # in another container, rank 0's process id may be another process's
        if name not in os.readlink(place):
            raise OSError(f"{place} belongs to another process")
        with Path(place).open("r+b", buffering=0) as file:
            memory = np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
    except OSError as error:
        problem = str(error)
    problems = list(filter(None, comm.allgather(problem)))
    if comm.rank == 0:
        os.close(descriptor)
    if problems:
        raise OSError(problems[0])
    return memory


def _rounded(values: ndarray) -> ndarray:
    """The bits of float32 values as bfloat16: uint16."""
    return tf.bitcast(tf.cast(values, tf.bfloat16), tf.uint16).numpy()


def _widened(bits: ndarray) -> ndarray:
    return tf.cast(tf.bitcast(bits, tf.bfloat16), tf.float32).numpy()
