"""Sums over ranks, with one module per backend (`BACKENDS`).

A backend's module has `open(world, name) -> Collectives`, called before the first TensorFlow
operation, because TensorFlow's own collectives must be configured by then. Control messages and
broadcasts use MPI instead.
"""

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, Protocol

from distributed.world import World
from ringbase.errors import InputError
from ringbase.settings import Settings, setting

# Name -> module in this folder. With "local" there is one rank, and nothing to send.
BACKENDS = {"nccl": "tensorflow", "ring": "tensorflow", "mpi": "mpi"}


class CollectiveSettings(Settings):
    """What sums over ranks."""

    backend: Literal[("auto", *BACKENDS, "local")] = setting(  # type: ignore[valid-type]
        "auto",
        "what sums the gradients over ranks; auto takes nccl if each rank has its own GPU,"
        " else mpi",
        "machine",
    )


class Sink(Protocol):
    """Takes the tensors of one step, each by its index, in an order that is the same on all ranks.
    It may begin to sum as soon as it has some."""

    def put(self, index: int, tensor: Any) -> None: ...

    def totals(self) -> list:
        """The sum over ranks of each tensor, in order of index, with the same bits on every rank.
        All have come."""


class JoinedSink:
    """One sum of all tensors, at the end."""

    def __init__(self, all_reduce_sum: Callable[[Sequence], list]):
        self._all_reduce_sum = all_reduce_sum
        self._tensors: dict[int, Any] = {}

    def put(self, index: int, tensor: Any) -> None:
        self._tensors[index] = tensor

    def totals(self) -> list:
        return self._all_reduce_sum([self._tensors[index] for index in sorted(self._tensors)])


class Collectives:
    """The backend for one rank, and what every backend has."""

    name = "local"
    compresses = False  # whether gradients can be sent in fewer bytes than they have
    in_graph = True  # whether a graph of TensorFlow can have its sums
    in_xla = True  # whether XLA can compile such a graph

    def all_reduce_sum(self, tensors: Sequence, compresses: bool = False) -> list:
        """The sum over ranks of each tensor, with the same bits on every rank; valid until the next
        call. All ranks call it in the same order, with tensors of one dtype and equal, known
        shapes. With `compresses`, large float32 tensors, but no loss sums, cross the network as
        bfloat16, if the backend can."""
        return list(tensors)

    def vector_sum(self, vector: Any, place: int) -> Any:
        """The sum over ranks of a vector, in a graph that has other sums beside it: `place` says
        which one it is, the same on all ranks. Only with `in_graph`. bfloat16 only with
        `in_xla`."""
        return vector

    def sink(self, compresses: bool = False) -> Sink:
        """What sums the tensors of one step."""
        return JoinedSink(partial(self.all_reduce_sum, compresses=compresses))


def open_collectives(world: World, backend: str = "auto") -> Collectives:
    """The backend of that name; "auto" is "local" for one rank, "nccl" if each has its own GPU,
    else "mpi"."""
    if backend == "auto" and world.size == 1:
        backend = "local"
    elif backend == "auto":
        backend = "nccl" if not world.ranks.is_elastic and own_gpus(world) else "mpi"
    if backend == "local" and world.size == 1:
        return Collectives()
    if backend == "local" or world.comm is None:
        needed = "several ranks, which mpirun or bert-launch starts"
        if backend == "local":
            needed = "one rank"
        raise InputError(
            f"--backend {backend} needs {needed}, and there are {world.size}: use --backend auto"
        )
    if world.ranks.is_elastic and backend != "mpi":
        raise InputError(
            f"--elastic needs --backend mpi, got {backend}, which cannot lose a rank: use"
            " --restarts"
        )
    with world.operation(f"the start of the backend {backend}"):
        return importlib.import_module(f"distributed.collectives.{BACKENDS[backend]}").open(
            world, backend
        )


def own_gpus(world: World) -> bool:
    """Whether every rank computes on a card of its own; NCCL also refuses two instances (MIG) of
    one card."""
    return (
        world.device.is_gpu
        and len(set(world.all_gather((world.node, world.device.bus_id)))) == world.size
    )
