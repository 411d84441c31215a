"""The ranks of a script: `init` joins them and opens the backend, and before each call all of them meet."""

import atexit
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from tensorflow.python.eager import context

from distributed.collectives import Collectives, open_collectives
from distributed.devices import DeviceSettings
from distributed.watchdog import StallSettings
from distributed.world import World
from ringbase.errors import InputError

# The watchdog's name for each call; a rank in `join` knows no other.
MEETING = "a sum or message of hvd, for which all ranks are needed"
as_written = tf.autograph.experimental.do_not_convert  # by AutoGraph
ROUNDING = 1e-3  # larger differences of a sum, relative to the norm, are no rounding


class Unsupported(InputError, NotImplementedError):
    """A use that has no counterpart. Horovod raises NotImplementedError, which is a RuntimeError."""


class RanksDiffer(InputError, tf.errors.FailedPreconditionError):
    """The ranks call different things, or the same with other shapes; of the type that Horovod raises."""

    def __init__(self, message: str):
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)


class Call(NamedTuple):
    """What all ranks do together, and must agree on: everything but the values."""

    what: str  # the function of hvd
    name: str = ""  # which the user gave it, or what it is for
    kind: tuple = ()  # options, and dtype and shape of each tensor

    def __str__(self) -> str:
        return f"{self.what} {self.name}".strip()


# Name, sum and norm of variables, which should be equal on all ranks, and of gradients, whose name is "".
Facts = Sequence[tuple[str, float, float]]


@dataclass(eq=False)
class Session:
    """The ranks and the backend.

    `collectives` sums gradients in a graph, `host` sums tensors on the host; the same with MPI. A collective
    operation of TensorFlow cannot run inside a py_function, which holds the thread that it needs. At the last of
    `num_calls` meetings `num_active` ranks had not joined (`join`). `num_sums` counts the sums of gradients by the
    ids of their variables.
    """

    world: World
    collectives: Collectives
    host: Collectives
    num_active: int = 1
    num_calls: int = 0
    num_sums: Counter = field(default_factory=Counter)
    _one_meets: Any = field(default_factory=threading.Lock, repr=False)  # TensorFlow may run two calls at once

    def meet(
        self, call: Call | None, action: Callable[[Call | None], Any] = lambda call: None, facts: Facts = ()
    ) -> Any:
        """What `action` returns, which exchanges messages with all ranks.

        It gets the call that all ranks make. None is for a rank that has joined: it makes that of the others.
        Raises RanksDiffer if not all make this call, and InputError if their `facts` say that variables differ.
        """
        if self.world.size == 1:
            return action(call)
        with self._one_meets, self.world.operation(MEETING):
            everyone = self.world.comm.allgather((call, facts))
            made = [other for other, _ in everyone if other is not None]
            if len(set(made)) > 1:
                refuse(self.world, call or Call("hvd.join"), all("gradient of" in other.name for other in made))
            self.num_calls += 1
            self.num_active = len(made)
            if len(known := [own for _, own in everyone if own]) > 1:
                compare(self.world, known)
            return action(made[0] if made else None)


def refuse(world: World, call: Call, are_gradients: bool) -> None:
    """Raises RanksDiffer, with what each rank does, or the first tensor that differs."""
    advice = (
        "Either their models or optimizers differ, or one rank ended earlier: give all ranks the same number of "
        "steps (steps_per_epoch, .repeat()), or call hvd.join() where the data of a loop end"
    )
    if are_gradients:
        advice = "Put the tape inside the tf.function, which keeps the order of gradients"
    try:
        world.agree({"the next call": call} | {f"part {n} of {call}": part for n, part in enumerate(call.kind)})
    except InputError as error:
        raise RanksDiffer(f"{error}. {advice}") from None


def compare(world: World, facts: Sequence[Facts]) -> None:
    """Raises InputError if a variable differs among the ranks. A note says if no gradient does, as they should."""
    for of_tensor in zip(*facts, strict=True):
        names, sums, norms = zip(*of_tensor, strict=True)
        if max(sums) - min(sums) > ROUNDING * max(norms):
            if not names[0]:  # a gradient
                return
            raise InputError(
                f"{names[0]} has different values on the ranks at its second gradient: use hvd.callbacks."
                "BroadcastGlobalVariablesCallback(0), or hvd.broadcast_variables when all variables exist"
            )
    if any(norm for name, _, norm in facts[0] if not name):
        world.say(
            "note: all ranks have the same gradients, so they probably train on the same data: give each rank "
            "its part, such as dataset.shard(hvd.size(), hvd.rank()) or x[hvd.rank()::hvd.size()]"
        )


_session: Session | None = None
_ended: Session | None = None  # after `shutdown`: MPI can be joined once


def current() -> Session:
    """The session. Raises InputError before `init` and after `shutdown`."""
    if _session is None:
        raise InputError("hvd.init() must be called first: after the imports, before the first use of hvd")
    return _session


def is_initialized() -> bool:
    return _session is not None


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the other ranks. Call it first: before TensorFlow computes anything.

    TensorFlow then uses this rank's GPU, or its share of the machine's cores, and no others. The environment
    variable RINGBERT_BACKEND chooses what sums: "mpi", "nccl", "ring" or "auto", which is NCCL where each rank has
    its own GPU, else MPI. `comm` is an mpi4py communicator of the processes to join, instead of all.

    Raises InputError if the ranks cannot be joined, or for a list of ranks or `process_sets`.
    """
    global _session
    if isinstance(comm, Sequence) or process_sets is not None:
        raise Unsupported("hvd.init(): all ranks always work together; comm can be an mpi4py communicator")
    if _session is None:
        _session = _started(comm) if comm is not None else _ended or _started(None)


def _started(comm: Any) -> Session:
    if os.environ.get("RINGBERT_ELASTIC", "0") != "0":
        raise InputError(
            "bert-launch --elastic is for RingBERT's programs: start a script with hvd by bert-launch --restarts"
        )
    if keras.backend.backend() != "tensorflow":
        raise InputError(f"hvd needs KERAS_BACKEND=tensorflow, but Keras uses {keras.backend.backend()}")
    is_late = context.context()._context_handle is not None
    if is_late and tf.config.list_physical_devices("GPU"):
        raise InputError(
            "hvd.init() must come before TensorFlow computes, or makes a dataset: it gives ranks their GPUs"
        )
    stalls = StallSettings(  # as Horovod: a job ends only when this is asked for
        stall_warning=float(os.environ.get("HOROVOD_STALL_CHECK_TIME_SECONDS", 60)),
        stall_timeout=float(os.environ.get("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0)),
    )
    world = World.join(None if is_late else DeviceSettings(), None, stalls, is_script=True, comm=comm)
    if is_late and world.size > 1:
        world.say(
            "note: TensorFlow was used before hvd.init(), so each rank uses as many threads as the machine has "
            "cores: call hvd.init() first"
        )
    atexit.register(_at_exit, world)
    collectives = open_collectives(world, os.environ.get("RINGBERT_BACKEND", "auto"))
    is_host = collectives.name in ("mpi", "local")
    return Session(world, collectives, collectives if is_host else open_collectives(world, "mpi"))


def shutdown() -> None:
    """Waits for all ranks and ends the session."""
    global _session, _ended
    if _session is not None:
        _session.meet(Call("shutdown"))
        _session, _ended = None, _session


def _at_exit(world: World) -> None:
    """A rank that ends without an exception waits for the others."""
    if _session is not None:
        try:  # another rank may still be in a sum, which the barrier of `leave` would mistake for its own
            _session.meet(Call("the end of the script"))
        except InputError as error:
            world.fail(error)
    world.leave()


def _on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An uncaught exception ends all ranks; an InputError is shown as one line."""
    atexit.unregister(_at_exit)
    world = _session.world if _session else World(program=Path(sys.argv[0]).name, is_script=True)
    world.__exit__(kind, error, trace)  # returns on a single rank, if the error is no InputError
    _show_traceback(kind, error, trace)


_show_traceback, sys.excepthook = sys.excepthook, _on_exception


def _number(attribute: str, what: str) -> tuple[Callable[[], int], Callable[..., tf.Tensor]]:
    """A function that returns this number of the world, and one that returns it as a tensor."""

    def number() -> int:
        return getattr(current().world, attribute)

    number.__doc__ = what
    return number, lambda *process_set_and_name, **options: tf.constant(number())


rank, rank_op = _number("rank", "The number of this rank, from 0.")
size, size_op = _number("size", "How many ranks there are.")
local_rank, local_rank_op = _number("local_rank", "The number of this rank among those of its machine.")
local_size, local_size_op = _number("local_size", "How many ranks this machine has.")
cross_rank, _ = _number("node", "The number of this machine.")
cross_size, _ = _number("num_nodes", "How many machines there are.")


def is_homogeneous() -> bool:
    """Whether all machines have equally many ranks."""
    return len(set(current().world.all_gather(local_size()))) == 1


@as_written
def barrier() -> None:
    """Waits for all ranks."""
    current().meet(Call("hvd.barrier"))


@as_written
def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """The object of rank `root_rank` on every rank (pickled)."""
    check_rank(root_rank)
    own, call = obj if rank() == root_rank else None, Call("hvd.broadcast_object", name or "", (root_rank,))
    return current().meet(call, lambda _: current().world.all_gather(own)[root_rank])


@as_written
def allgather_object(obj: Any, name: str | None = None) -> list:
    """The objects of all ranks (pickled), in order of rank."""
    return current().meet(Call("hvd.allgather_object", name or ""), lambda _: current().world.all_gather(obj))


def check_rank(root_rank: int) -> None:
    if not 0 <= root_rank < size():
        raise InputError(f"root_rank must be from 0 to {size() - 1}, got {root_rank}")
