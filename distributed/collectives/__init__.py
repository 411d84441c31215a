"""Sums over ranks, with one module per backend (`BACKENDS`).

A backend's module has `open(world, name) -> Collectives`, called before the first TensorFlow operation, because
TensorFlow's own collectives must be configured by then. Control messages use `World` instead.
"""

import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from ringbase.errors import InputError
from ringbase.settings import Settings, setting

if TYPE_CHECKING:
    import tensorflow as tf

    from distributed.world import World

# Name -> module in this folder.
BACKENDS = {"nccl": "tensorflow", "ring": "tensorflow", "mpi": "mpi", "local": "local"}
TRIAL_SIZE = 1 << 22  # 16 MiB of float32
LEAST_COMPRESSED = 1024  # numbers in a tensor that `--compression` rounds


@dataclass(frozen=True, kw_only=True)
class BackendSettings(Settings):
    """The backend that sums over ranks."""

    backend: Literal["auto", "mpi", "nccl", "ring", "local"] = setting(
        "auto",
        "what sums the gradients over ranks; auto takes nccl if each rank has its own GPU, else mpi",
        "machine",
    )


@dataclass(frozen=True, kw_only=True)
class CollectivesSettings(Settings):
    """How gradients are summed over ranks."""

    compression: Literal["none", "bf16"] = setting(
        "none", "bf16 sends gradients between machines in 2 bytes per number, for slow networks", "machine"
    )


class Collectives(Protocol):
    """The methods of a backend. Every rank calls the same methods in the same order, with equal shapes.

    Attributes:
      compresses: whether gradients can be sent in fewer bytes than they have.
      in_graph: whether XLA can compile a function that calls `all_reduce_sum`.
    """

    name: str
    compresses: bool
    in_graph: bool

    def all_reduce_sum(self, tensors: "Sequence[tf.Tensor]", compresses: bool = False) -> "list[tf.Tensor]":
        """The sum over ranks of each tensor, with the same bits on every rank; valid until the next call.

        All tensors have one dtype and a known shape. With `compresses`, large float32 tensors cross the network as
        bfloat16, in half the bytes; those below `LEAST_COMPRESSED` numbers, such as loss sums, never do.
        """
        ...

    def broadcast(self, value: "tf.Tensor", root: int = 0) -> "tf.Tensor":
        """The value of the rank `root` on every rank."""
        ...

    def close(self) -> None:
        """Releases the backend's resources; no other call may follow."""
        ...


def open_collectives(world: "World", backend: str = "auto") -> Collectives:
    """The backend of that name; "auto" is "local" for one rank, "nccl" if each has its own GPU, else "mpi"."""
    if backend == "auto":
        backend = _fitting(world)
    if world.is_elastic and BACKENDS[backend] == "tensorflow":
        raise InputError(f"--elastic needs --backend mpi, got {backend}, which cannot lose a rank: use --restarts")
    with world.operation(f"the start of the backend {backend}"):
        return importlib.import_module(f"distributed.collectives.{BACKENDS[backend]}").open(world, backend)


def compression_note(world: "World", collectives: Collectives) -> str:
    """How long a sum takes with and without `compression`, with a warning if it is not faster."""
    import tensorflow as tf

    if collectives.name == "nccl":
        return "note: --compression bf16 changes nothing with nccl: TensorFlow's NCCL does not sum bfloat16"
    if not collectives.compresses:
        return "note: --compression bf16 changes nothing: no gradients travel between machines"

    values, seconds = tf.zeros([TRIAL_SIZE]), []
    for compresses in (False, True):
        times = []
        for _ in range(3):
            world.barrier()
            start = time.perf_counter()
            with world.operation("a sum on trial"):
                collectives.all_reduce_sum([values], compresses)[0][:1].numpy()  # waits for a GPU
            times.append(max(world.all_gather(time.perf_counter() - start)))
        seconds.append(min(times))
    plain, compressed = seconds
    note = f"--compression bf16: 16 MiB of gradients take {compressed * 1e3:.3g} ms, {plain * 1e3:.3g} ms without"
    return f"warning: {note}: the network is faster than the conversion" if compressed >= plain else note


def _fitting(world: "World") -> str:
    if world.size == 1:
        return "local"
    if not world.device.is_gpu or world.is_elastic:
        return "mpi"
    from distributed.collectives.tensorflow import own_gpus, why_open
    from distributed.socket_filter import OPEN_VARIABLE

    if not own_gpus(world):
        return "mpi"
    if reason := why_open(world):
        world.say(
            f"note: NCCL's ports cannot be closed to strangers ({reason}), so --backend auto is mpi; "
            f"{OPEN_VARIABLE}=1 allows open ports"
        )
        return "mpi"
    return "nccl"
