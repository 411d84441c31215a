"""How a buffer is summed over ranks: one file per way, found by the backend's name.

A backend's module has `open(world, name) -> Collectives`, called before the first TensorFlow operation, because
TensorFlow's own collectives must be configured by then. Control messages never come here (see `World`).
"""

import importlib
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import tensorflow as tf

    from distributed.world import World

# Name -> module in this folder.
BACKENDS = {"nccl": "tensorflow", "ring": "tensorflow", "mpi": "mpi", "local": "local"}


class Collectives(Protocol):
    """What a backend does. Every rank calls the same methods in the same order with equal shapes."""

    name: str

    def all_reduce_sum(self, flat: "tf.Tensor") -> "tf.Tensor":
        """The sum over ranks of a vector, the same bits on every rank; valid until the next call."""
        ...

    def broadcast(self, value: "tf.Tensor") -> "tf.Tensor":
        """Rank 0's value on every rank."""
        ...

    def close(self) -> None:
        """Releases what the backend holds; the last call."""
        ...


def open_collectives(world: "World", backend: str = "auto") -> Collectives:
    """The backend of that name; "auto" is "local" for one rank, "nccl" if each has its own GPU, else "mpi"."""
    if backend == "auto":
        backend = _fitting(world)
    return importlib.import_module(f"distributed.collectives.{BACKENDS[backend]}").open(world, backend)


def _fitting(world: "World") -> str:
    if world.size == 1:
        return "local"
    if world.device != "gpu":
        return "mpi"
    from distributed.collectives.tensorflow import own_gpus

    return "nccl" if own_gpus(world) else "mpi"
