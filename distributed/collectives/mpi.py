"""Sums over MPI, through host memory.

The ranks of a machine sum in shared memory (machine_memory.py). If they cannot share memory, MPI's Allreduce sums
in pieces of 1 MiB, which stay in cache. That size is fixed, because with three or more ranks a different size may
round differently.

With several machines, each machine first sums its own ranks' buffers. Then one rank of each machine sends every
other machine its share, sums the shares that it receives and sends the result to all. So each value crosses the
network once each way, in the largest possible messages, however many ranks a machine has. Values may be sent as
bfloat16.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from distributed.collectives import LEAST_COMPRESSED
from distributed.collectives.machine_memory import MachineMemory, open_memory
from distributed.host import aligned, as_tensor, host_view
from distributed.world import World
from ringbase.errors import InputError

PIECE_BYTES = 1 << 20
LINE_BYTES = 64  # of the processor's cache


class Layout(NamedTuple):
    """Tensors side by side in memory that the ranks of a machine share, each at the start of a cache line."""

    starts: list[int]
    total: np.ndarray
    tensors: list[tf.Tensor]  # of the same memory


class MpiCollectives:
    """Sums with mpi4py's buffer calls; works with every MPI and every device."""

    name = "mpi"
    in_graph = False

    def __init__(
        self,
        comm,
        machine: int = 0,
        num_machines: int = 1,
        shares_memory: bool = True,
        world: World | None = None,
    ):
        """Called on all ranks of `comm`; `machine` is the number of this rank's machine among `num_machines`.

        The communicator of an elastic `world` may change between two calls; the backend is then opened on it.
        """
        self._shares_memory, self._world = shares_memory, world
        self._open(comm, machine, num_machines)

    def _open(self, comm, machine: int, num_machines: int) -> None:
        self._comm, self._num_machines = comm, num_machines
        self.compresses = num_machines > 1
        self._machine = self._split(machine)
        self._heads = self._split(self._machine.rank)  # on all machines, the ranks with this local rank
        self._buffers: dict[tuple[str, int, np.dtype], tuple[np.ndarray, tf.Tensor]] = {}
        self._memory: MachineMemory | None = None
        self._layouts: dict[tuple, Layout] = {}
        self.why_not_shared = ""  # the reason if the ranks of this machine cannot share memory
        if self._shares_memory and self._machine.size > 1:
            try:
                self._memory = open_memory(self._machine)
            except OSError as error:
                self.why_not_shared = str(error)

    def all_reduce_sum(self, tensors: Sequence[tf.Tensor], compresses: bool = False) -> list[tf.Tensor]:
        """What is compressed is rounded once per machine, and once more after the sum in float32."""
        self._follow_world()
        if self._num_machines == 1 and self._memory is not None:
            own = [host_view(tensor) for tensor in tensors]
            layout = self._layout_of(own)
            self._memory.sum([part.reshape(-1) for part in own], layout.starts, layout.total)
            return layout.tensors
        is_rounded = [
            compresses and self.compresses and tensor.shape.num_elements() >= LEAST_COMPRESSED
            for tensor in tensors
        ]
        sums: list[tf.Tensor] = [None] * len(tensors)
        for rounds in set(is_rounded):
            places = [place for place, is_one in enumerate(is_rounded) if is_one == rounds]
            flats = [tf.reshape(tensors[place], [-1]) for place in places]
            flat = flats[0] if len(flats) == 1 else tf.concat(flats, 0)
            total = self._sum(flat, rounds)
            # Another sum would overwrite the memory of this one.
            total = tf.identity(total) if len(set(is_rounded)) > 1 else total
            for place, part in zip(places, tf.split(total, [flat.shape[0] for flat in flats]), strict=True):
                sums[place] = tf.reshape(part, tensors[place].shape)
        return sums

    def _layout_of(self, arrays: Sequence[np.ndarray]) -> Layout:
        key = (arrays[0].dtype, *(array.shape for array in arrays))
        if key not in self._layouts:
            assert self._memory is not None
            line = LINE_BYTES // arrays[0].itemsize
            ends = np.cumsum([0, *(-(-array.size // line) * line for array in arrays)]).tolist()
            total = self._memory.vector("sum", ends[-1], arrays[0].dtype)
            tensors = [
                as_tensor(total[start : start + array.size].reshape(array.shape))
                for start, array in zip(ends, arrays, strict=False)
            ]
            self._layouts[key] = Layout(ends[:-1], total, tensors)
        return self._layouts[key]

    def _follow_world(self) -> None:
        """Opens the backend anew on the ranks that an elastic world has after a death. All of them come here."""
        if self._world is not None and self._world.comm is not self._comm:
            self._open(self._world.comm, self._world.node, self._world.num_nodes)

    def _sum(self, flat: tf.Tensor, is_rounded: bool) -> tf.Tensor:
        size = flat.shape[0]
        if self._num_machines == 1:
            return self._added(flat)
        if not is_rounded and size * flat.dtype.size <= PIECE_BYTES:
            return self._all_reduced(self._comm, flat)
        own = self._added(flat)
        share = -(-size // self._num_machines)
        kind = np.dtype(np.uint16) if is_rounded else np.dtype(flat.dtype.as_numpy_dtype)
        total, shared = self._buffer("total", share * self._num_machines, kind)
        if self._machine.rank == 0:
            if total.size > size:
                own = tf.pad(own, [[0, total.size - size]])
            received, received_tensor = self._buffer("received", total.size, kind, is_shared=False)
            self._heads.Alltoall(host_view(_rounded(own) if is_rounded else own), received)
            shares = tf.reshape(received_tensor, [-1, share])
            added = _rounded(tf.reduce_sum(_widened(shares), 0)) if is_rounded else tf.reduce_sum(shares, 0)
            self._heads.Allgather(host_view(added), total)
        if self._memory:
            self._machine.Barrier()
        elif self._machine.size > 1:
            self._machine.Bcast(total)
        result = tf.cast(_widened(shared), flat.dtype) if is_rounded else shared
        return result if total.size == size else result[:size]

    def _added(self, flat: tf.Tensor) -> tf.Tensor:
        """The sum over the ranks of this machine."""
        if self._machine.size == 1:
            return flat
        if self._memory is None:
            return self._all_reduced(self._machine, flat)
        own = host_view(flat)
        total, shared = self._buffer("sum", own.size, own.dtype)
        self._memory.sum([own], [0], total)
        return shared

    def _all_reduced(self, comm, flat: tf.Tensor) -> tf.Tensor:
        own = host_view(flat)
        received, shared = self._buffer("reduced", own.size, own.dtype, is_shared=False)
        piece = PIECE_BYTES // own.itemsize
        for start in range(0, own.size, piece):
            comm.Allreduce(own[start : start + piece], received[start : start + piece])
        return shared

    def _buffer(
        self, name: str, size: int, dtype: np.dtype, is_shared: bool = True
    ) -> tuple[np.ndarray, tf.Tensor]:
        """Memory that all calls reuse, as an array and as a tensor of the same memory.

        `is_shared`: whether the ranks of this machine share it, if they can.
        """
        if (name, size, dtype) not in self._buffers:  # a step uses two sizes: gradients, and losses alone
            memory = self._memory if is_shared else None
            array = memory.vector(name, size, dtype) if memory else aligned(size, dtype)
            self._buffers[name, size, dtype] = array, as_tensor(array)
        return self._buffers[name, size, dtype]

    def broadcast(self, value: tf.Tensor, root: int = 0) -> tf.Tensor:
        self._follow_world()
        buffer = np.array(value.numpy())  # a writable copy
        raw = buffer.reshape(-1).view(np.uint8)
        for start in range(0, raw.size, 64 * PIECE_BYTES):
            self._comm.Bcast(raw[start : start + 64 * PIECE_BYTES], root)
        return tf.convert_to_tensor(buffer)

    def _split(self, number: int):
        communicator = self._comm.Split(number)
        if self._world is not None:
            self._world.derived.append(communicator)
        return communicator

    def close(self) -> None:
        self._buffers.clear()
        self._layouts.clear()
        self._memory = None


def open(world: World, name: str) -> MpiCollectives:
    if world.comm is None:
        raise InputError("--backend mpi needs several ranks: start the program under mpirun or bert-launch")
    collectives = MpiCollectives(world.comm, world.node, world.num_nodes, world=world)
    if reason := next(filter(None, world.all_gather(collectives.why_not_shared)), None):
        world.say(f"warning: ranks of a machine share no memory ({reason}): MPI sums their gradients, more slowly")
    return collectives


def _rounded(values: tf.Tensor) -> tf.Tensor:
    """The bits of float32 values as bfloat16: uint16."""
    return tf.bitcast(tf.cast(values, tf.bfloat16), tf.uint16)


def _widened(bits: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.bitcast(bits, tf.bfloat16), tf.float32)
