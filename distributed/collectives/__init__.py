"""How a buffer is summed over ranks: one file per backend, found by its name.

A backend module has `open(world) -> Collectives`, called before the first TensorFlow operation, because
TensorFlow's own collectives must be configured by then. Control messages never come here (see `World`).
"""

import importlib
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import tensorflow as tf

    from distributed.world import World

BACKENDS = ("mpi", "local")


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
    """The backend of that name; "auto" is "local" for one rank, else "mpi"."""
    if backend == "auto":
        backend = "local" if world.size == 1 else "mpi"
    return importlib.import_module(f"distributed.collectives.{backend}").open(world)
