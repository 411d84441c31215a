"""Sums over MPI, through host memory.

The ranks of a machine sum in shared memory (machine_memory.py). With several machines, one rank of each then sends
every other machine its share of the machine's sum, adds up the shares that it receives and sends the result to
all. So each value crosses the network once each way, in large messages, however many ranks a machine has. Values
may be sent as bfloat16. Ranks that share no memory count as machines.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from distributed import arrays
from distributed.arrays import ALIGNMENT_BYTES, aligned, as_tensor, host_view
from distributed.collectives.machine_memory import MachineMemory
from distributed.world import World

LEAST_COMPRESSED = 1024  # numbers in a tensor that `--compression` rounds


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

    def __init__(self, world: World):
        self._world = world
        self._open()

    def _open(self) -> None:
        world, self._comm = self._world, self._world.comm
        self._layouts: dict[tuple, Layout] = {}
        self._memory: MachineMemory | None = None
        self.why_not_shared = ""  # the reason if the ranks of this machine cannot share memory
        self._machine = self._part_of(world.comm, world.node)
        if self._machine.size > 1:
            try:
                self._memory = MachineMemory(self._machine)
            except OSError as error:
                self.why_not_shared = str(error)
                self._machine = self._part_of(self._machine, self._machine.rank)
        self._heads = self._part_of(world.comm, self._machine.rank)  # with this local rank, on all machines
        self._num_machines = self._machine.bcast(self._heads.size)
        self.compresses = self._num_machines > 1

    def _part_of(self, comm: Any, color: int) -> Any:
        part = comm.Split(color)
        self._world.derived.append(part)
        return part

    def all_reduce_sum(self, tensors: Sequence[tf.Tensor], compresses: bool = False) -> list[tf.Tensor]:
        """What is compressed is rounded once per machine, and once more after the sum in float32."""
        if self._world.comm is not self._comm:
            self._open()
        own, sums = [host_view(tensor) for tensor in tensors], list(tensors)
        is_rounded = [compresses and self.compresses and part.size >= LEAST_COMPRESSED for part in own]
        for rounds in sorted(set(is_rounded)):
            places = [place for place, each in enumerate(is_rounded) if each == rounds]
            for place, total in zip(places, self._sum([own[place] for place in places], rounds), strict=True):
                sums[place] = total
        return sums

    def _sum(self, own: list[np.ndarray], rounds: bool) -> list[tf.Tensor]:
        layout, parts = self._layout_of(own, rounds), [part.reshape(-1) for part in own]
        if self._memory is not None:
            self._memory.sum(parts, layout.starts, layout.total)
        else:
            for start, part in zip(layout.starts, parts, strict=True):
                layout.total[start : start + part.size] = part
        if self._num_machines > 1:
            if self._machine.rank == 0:
                self._exchange(layout.total, rounds)
            self._machine.Barrier()
        return layout.tensors

    def _exchange(self, total: np.ndarray, rounds: bool) -> None:
        """Replaces each machine's sum by the sum over machines."""
        pack, unpack = (_rounded, _widened) if rounds else (np.asarray, np.asarray)
        sent = pack(total)
        received = np.empty_like(sent)
        self._heads.Alltoall(sent, received)
        added = unpack(received).reshape(self._num_machines, -1).sum(0, total.dtype)
        self._heads.Allgather(pack(added), received)
        total[:] = unpack(received)

    def _layout_of(self, parts: Sequence[np.ndarray], rounds: bool) -> Layout:
        key = (rounds, parts[0].dtype, *(part.shape for part in parts))
        if key not in self._layouts:
            line = ALIGNMENT_BYTES // parts[0].itemsize
            *starts, end = np.cumsum([0, *(-(-part.size // line) * line for part in parts)]).tolist()
            size = -(-end // self._num_machines) * self._num_machines
            total = (self._memory.vector if self._memory else aligned)(size, parts[0].dtype)
            tensors = [
                as_tensor(total[start : start + part.size].reshape(part.shape))
                for start, part in zip(starts, parts, strict=True)
            ]
            self._layouts[key] = Layout(tuple(starts), total, tensors)
        return self._layouts[key]

    def broadcast(self, value: tf.Tensor, root: int = 0) -> tf.Tensor:
        return tf.convert_to_tensor(arrays.broadcast(self._world.comm, value.numpy(), root))

    def close(self) -> None:
        self._layouts.clear()
        self._memory = None


def open(world: World, name: str) -> MpiCollectives:
    collectives = MpiCollectives(world)
    if reason := next(filter(None, world.all_gather(collectives.why_not_shared)), None):
        world.say(f"warning: ranks of a machine share no memory ({reason}): MPI sums their gradients, more slowly")
    return collectives


def _rounded(values: np.ndarray) -> np.ndarray:
    """The bits of float32 values as bfloat16: uint16."""
    with tf.device("CPU"):
        return tf.bitcast(tf.cast(values, tf.bfloat16), tf.uint16).numpy()


def _widened(bits: np.ndarray) -> np.ndarray:
    with tf.device("CPU"):
        return tf.cast(tf.bitcast(bits, tf.bfloat16), tf.float32).numpy()
