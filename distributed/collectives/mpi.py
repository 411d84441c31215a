"""Sums over MPI, through host memory.

The ranks of a machine sum in shared memory (machine_memory.py). If they cannot share memory, MPI's Allreduce sums
in pieces of 1 MiB, which stay in cache. That size is fixed, because with three or more ranks a different size may
round differently.

With several machines, one rank of each then sends every other machine its share of the machine's sum, adds up the
shares that it receives and sends the result to all. So each value crosses the network once each way, in large
messages, however many ranks a machine has. Values may be sent as bfloat16.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from distributed.collectives import places_by_rounding
from distributed.collectives.machine_memory import MachineMemory
from distributed.host import ALIGNMENT_BYTES, aligned, as_tensor, host_view
from distributed.joining import started
from distributed.world import World
from ringbase.errors import InputError

PIECE_BYTES = 1 << 20


class Layout(NamedTuple):
    """Tensors side by side in memory that all calls reuse, each at the start of a cache line."""

    starts: tuple[int, ...]
    total: np.ndarray
    tensors: list[tf.Tensor]  # of the same memory


class MpiCollectives:
    """Sums with mpi4py's buffer calls; works with every MPI and every device.

    Made on all ranks of `world`. Its communicator may change after a death; the backend is then opened anew on it.
    """

    name = "mpi"
    in_graph = False

    def __init__(self, world: World, shares_memory: bool = True):
        self._world, self._shares_memory = world, shares_memory
        self._open()

    def _open(self) -> None:
        world, self._comm, self._num_machines = self._world, self._world.comm, self._world.num_nodes
        self.compresses = self._num_machines > 1
        self._machine = world.comm.Split(world.node)
        self._heads = world.comm.Split(self._machine.rank)  # on all machines, the ranks with this local rank
        world.derived += [self._machine, self._heads]
        self._layouts: dict[tuple, Layout] = {}
        self._memory: MachineMemory | None = None
        self.why_not_shared = ""  # the reason if the ranks of this machine cannot share memory
        if self._shares_memory and self._machine.size > 1:
            try:
                self._memory = MachineMemory(self._machine)
            except OSError as error:
                self.why_not_shared = str(error)

    def all_reduce_sum(self, tensors: Sequence[tf.Tensor], compresses: bool = False) -> list[tf.Tensor]:
        """What is compressed is rounded once per machine, and once more after the sum in float32."""
        if self._world.comm is not self._comm:
            self._open()
        sums: dict[int, tf.Tensor] = {}
        for rounds, places in places_by_rounding(tensors, compresses and self.compresses).items():
            own = [host_view(tensors[place]) for place in places]
            sums.update(zip(places, self._sum(own, rounds), strict=True))
        return [sums[place] for place in range(len(tensors))]

    def _sum(self, own: list[np.ndarray], rounds: bool) -> list[tf.Tensor]:
        layout, parts = self._layout_of(own, rounds), [part.reshape(-1) for part in own]
        if self._memory is not None:
            self._memory.sum(parts, layout.starts, layout.total)
        else:
            for start, part in zip(layout.starts, parts, strict=True):
                layout.total[start : start + part.size] = part
            step = PIECE_BYTES // layout.total.itemsize
            for start in range(0, layout.total.size if self._machine.size > 1 else 0, step):
                self._machine.Allreduce(started().IN_PLACE, layout.total[start : start + step])
        if self._num_machines > 1 and self._machine.rank == 0:
            self._exchange(layout.total, rounds)
        if self._num_machines > 1 and self._memory is not None:
            self._machine.Barrier()
        elif self._num_machines > 1:
            self._machine.Bcast(layout.total)
        return layout.tensors

    def _exchange(self, total: np.ndarray, rounds: bool) -> None:
        """Replaces each machine's sum by the sum over machines."""
        sent = _rounded(total) if rounds else total
        received = np.empty_like(sent)
        self._heads.Alltoall(sent, received)
        shares = (_widened(received) if rounds else received).reshape(self._num_machines, -1)
        added = shares.sum(0, total.dtype)
        self._heads.Allgather(_rounded(added) if rounds else added, received)
        total[:] = _widened(received) if rounds else received

    def _layout_of(self, arrays: Sequence[np.ndarray], rounds: bool) -> Layout:
        key = (rounds, arrays[0].dtype, *(array.shape for array in arrays))
        if key not in self._layouts:
            line = ALIGNMENT_BYTES // arrays[0].itemsize
            ends = np.cumsum([0, *(-(-array.size // line) * line for array in arrays)]).tolist()
            size = -(-ends[-1] // self._num_machines) * self._num_machines
            total = (self._memory.vector if self._memory else aligned)(size, arrays[0].dtype)
            places = zip(ends, arrays, strict=False)
            tensors = [as_tensor(total[start : start + part.size].reshape(part.shape)) for start, part in places]
            self._layouts[key] = Layout(tuple(ends[:-1]), total, tensors)
        return self._layouts[key]

    def broadcast(self, value: tf.Tensor, root: int = 0) -> tf.Tensor:
        return broadcast(self._world.comm, value, root)

    def close(self) -> None:
        self._layouts.clear()
        self._memory = None


def open(world: World, name: str) -> MpiCollectives:
    if world.comm is None:
        raise InputError("--backend mpi needs several ranks: start the program under mpirun or bert-launch")
    collectives = MpiCollectives(world)
    if reason := next(filter(None, world.all_gather(collectives.why_not_shared)), None):
        world.say(f"warning: ranks of a machine share no memory ({reason}): MPI sums their gradients, more slowly")
    return collectives


def broadcast(comm: Any, value: tf.Tensor, root: int) -> tf.Tensor:
    """The value of the rank `root` on every rank."""
    buffer = np.array(value.numpy())  # a writable copy
    raw = buffer.reshape(-1).view(np.uint8)
    for start in range(0, raw.size, 64 * PIECE_BYTES):
        comm.Bcast(raw[start : start + 64 * PIECE_BYTES], root)
    return tf.convert_to_tensor(buffer)


def _rounded(values: np.ndarray) -> np.ndarray:
    """The bits of float32 values as bfloat16: uint16."""
    with tf.device("CPU"):
        return tf.bitcast(tf.cast(values, tf.bfloat16), tf.uint16).numpy()


def _widened(bits: np.ndarray) -> np.ndarray:
    with tf.device("CPU"):
        return tf.cast(tf.bitcast(bits, tf.bfloat16), tf.float32).numpy()
