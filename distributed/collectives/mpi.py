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

from distributed.arrays import ALIGNMENT_BYTES, aligned, as_tensor, host_view
from distributed.collectives import Collectives
from distributed.collectives.machine_memory import MachineMemory
from distributed.world import World

LEAST_COMPRESSED = 1024  # numbers in a tensor that `--compression` rounds


class Layout(NamedTuple):
    """Tensors side by side in memory that all calls reuse, each at the start of a cache line.

    From `rounded` on lie those that are sent as bfloat16.
    """

    starts: tuple[int, ...]
    rounded: int
    total: np.ndarray
    tensors: list[tf.Tensor]  # of the same memory


class MpiCollectives(Collectives):
    """Sums with mpi4py's buffer calls; works with every MPI and every device.

    Made on all ranks of `world`. Its communicator may change after a death; the backend is then opened anew on it.
    """

    name = "mpi"
    in_graph = False

    def __init__(self, world: World):
        self._world = world
        self._open()

    def _open(self) -> None:
        world, self._comm, problem = self._world, self._world.comm, ""
        self._layouts: dict[tuple, Layout] = {}
        self._memory: MachineMemory | None = None
        self._machine = self._part_of(world.comm, world.node)
        if self._machine.size > 1:
            try:
                self._memory = MachineMemory(self._machine)
            except OSError as error:
                problem, self._machine = str(error), self._part_of(self._machine, self._machine.rank)
        if reason := next(filter(None, world.all_gather(problem)), None):
            world.say(f"warning: a machine's ranks share no memory ({reason}): MPI sums, more slowly")
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
        own = [host_view(tensor) for tensor in tensors]
        starts, rounded, total, sums = self._layout_of(own, compresses and self.compresses)
        parts = [part.reshape(-1) for part in own]
        if self._memory is not None:
            self._memory.sum(parts, starts, total)
        else:
            for start, part in zip(starts, parts, strict=True):
                total[start : start + part.size] = part
        if self._num_machines > 1:
            if self._machine.rank == 0:
                self._exchange(total[:rounded], np.asarray, np.asarray)
                self._exchange(total[rounded:], _rounded, _widened)
            self._machine.Barrier()
        return sums

    def _exchange(self, total: np.ndarray, pack: Any, unpack: Any) -> None:
        """Replaces each machine's sum by the sum over machines."""
        if total.size:
            sent = pack(total)
            received = np.empty_like(sent)
            self._heads.Alltoall(sent, received)
            added = unpack(received).reshape(self._num_machines, -1).sum(0, total.dtype)
            self._heads.Allgather(pack(added), received)
            total[:] = unpack(received)

    def _layout_of(self, parts: Sequence[np.ndarray], compresses: bool) -> Layout:
        key = (compresses, parts[0].dtype, *(part.shape for part in parts))
        if key not in self._layouts:
            line, starts, ends = ALIGNMENT_BYTES // parts[0].itemsize, [0] * len(parts), [0, 0]
            is_rounded = [compresses and part.size >= LEAST_COMPRESSED for part in parts]
            for rounds in (False, True):
                end = ends[0]
                for place in (place for place, each in enumerate(is_rounded) if each == rounds):
                    starts[place], end = end, end + -(-parts[place].size // line) * line
                unit = line * self._num_machines  # every machine gets an equal share
                ends[rounds] = -(-end // unit) * unit
            total = (self._memory.vector if self._memory else aligned)(ends[1], parts[0].dtype)
            tensors = [
                as_tensor(total[start : start + part.size].reshape(part.shape))
                for start, part in zip(starts, parts, strict=True)
            ]
            self._layouts[key] = Layout(tuple(starts), ends[0], total, tensors)
        return self._layouts[key]

    def close(self) -> None:
        self._layouts.clear()
        self._memory = None


def open(world: World, name: str) -> MpiCollectives:
    return MpiCollectives(world)


def _rounded(values: np.ndarray) -> np.ndarray:
    """The bits of float32 values as bfloat16: uint16."""
    with tf.device("CPU"):
        return tf.bitcast(tf.cast(values, tf.bfloat16), tf.uint16).numpy()


def _widened(bits: np.ndarray) -> np.ndarray:
    with tf.device("CPU"):
        return tf.cast(tf.bitcast(bits, tf.bfloat16), tf.float32).numpy()
