"""What `init()` starts: the ranks, the backend that sums, and the meetings of all ranks before each call."""

import atexit
import itertools
import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from distributed.collectives import Collectives, open_collectives
from distributed.devices import DeviceSettings
from distributed.launcher import launched_rank
from distributed.watchdog import StallSettings
from distributed.world import World
from ringbase.errors import InputError, one_line
from ringbert.horovod.absent import Unsupported

BACKEND = "RINGBERT_BACKEND"  # auto, mpi, nccl, ring or local
ELASTIC = "RINGBERT_ELASTIC"
# Horovod's variables for its check of stalls, in seconds. It ends a job only when it is asked to.
STALLS = (("HOROVOD_STALL_CHECK_TIME_SECONDS", "60"), ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "0"))
# The watchdog's name for each call; a rank in `join` knows no other.
MEETING = "a sum or message of hvd, for which all ranks are needed"
ROUNDING = 1e-3  # larger differences of a sum, relative to the norm, are no rounding


class RanksDiffer(InputError, tf.errors.FailedPreconditionError):
    """The ranks call different things, or the same with other shapes; of the type that Horovod raises."""

    def __init__(self, message: str):
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)


@dataclass(frozen=True)
class Call:
    """What all ranks do together, and must agree on: everything but the values.

    Attributes:
      what: the function of hvd.
      name: the name that the user gave it, or what it is for.
      kind: options, and dtype and shape of each tensor.
      facts: name, sum and norm of variables, which should be equal, and of gradients, whose name is "".
    """

    what: str
    name: Any = ""
    kind: tuple = ()
    facts: Sequence[tuple[str, float, float]] = field(default=(), compare=False)


@dataclass(eq=False)
class Session:
    """The ranks and the backend.

    Attributes:
      collectives, host: what sums gradients in a graph, and what sums tensors on the host; the same with MPI. A
        collective operation of TensorFlow cannot run inside a py_function, which holds the thread that it needs.
      num_active: how many ranks had not joined (`join`) at the last meeting.
      num_calls: how many meetings there were, the same on all ranks.
      num_sums: how many sums of gradients there were, by the ids of their variables.
      averaged: gradients that a tape has averaged, by their id, which an optimizer does not average again.
    """

    world: World
    collectives: Collectives
    host: Collectives
    num_active: int = 1
    num_calls: int = 0
    num_sums: Counter = field(default_factory=Counter)
    averaged: Any = field(default_factory=weakref.WeakValueDictionary)
    _one_meets: Any = field(default_factory=threading.Lock, repr=False)  # TensorFlow may run two calls at once

    def meet(self, call: Call, action: Callable[[], Any] = lambda: None) -> Any:
        """Calls `action`, which exchanges messages with all ranks. RanksDiffer: not all make this call."""
        if self.world.size == 1:
            return action()
        with self._one_meets, self.world.operation(MEETING):
            self._exchanged(call)
            return action()

    def join(self, take_part: Callable[[Call], None]) -> int:
        """Takes part, by `take_part`, in the calls of the other ranks until all have joined.

        Returns the rank that joined last.
        """
        rounds = 0
        while self.world.size > 1:
            with self.world.operation(MEETING):
                call = self._exchanged(None)
                if call is None:
                    waited = self.world.all_gather(rounds)
                    return max(range(len(waited)), key=lambda rank: (-waited[rank], rank))
                take_part(call)
                rounds += 1
        return 0

    def _exchanged(self, call: Call | None) -> Call | None:
        """The call that all ranks make that have not joined; these send None."""
        calls = self.world.comm.allgather(call)
        different = {call for call in calls if call is not None}
        if len(different) > 1:
            raise RanksDiffer(difference(calls))
        self.num_calls += 1
        self.num_active = len(calls) - calls.count(None)
        facts = [call.facts for call in calls if call is not None and call.facts]
        if len(facts) > 1:
            compare(self.world, facts)
        return next(iter(different), None)


def compare(world: World, facts: Sequence[Sequence[tuple[str, float, float]]]) -> None:
    """Raises InputError if a variable differs among the ranks. A note says if no gradient does, as they should."""
    names = [name for name, *_ in facts[0]]
    sums, norms = np.array([[numbers for _, *numbers in of_rank] for of_rank in facts]).transpose(2, 0, 1)
    differs = np.ptp(sums, axis=0) > ROUNDING * np.max(norms, axis=0)
    for name in (name for name, is_other in zip(names, differs, strict=True) if name and is_other):
        raise InputError(
            f"{name} has different values on the ranks at its second gradient: use hvd.callbacks."
            "BroadcastGlobalVariablesCallback(0), or hvd.broadcast_variables when all variables exist"
        )
    if not any(differs) and np.any(norms[:, names.index("") :]):
        world.say(
            "note: all ranks have the same gradients, so they probably train on the same data: give each rank "
            "its part, such as dataset.shard(hvd.size(), hvd.rank()) or x[hvd.rank()::hvd.size()]"
        )


def difference(calls: Sequence[Call | None]) -> str:
    """What each rank calls, in a few words: of the same function with other tensors the first that differs."""
    texts = ["hvd.join" if call is None else f"{call.what} {call.name}".strip() for call in calls]
    if len(set(texts)) == 1:
        parts = itertools.zip_longest(*(call.kind for call in calls if call), fillvalue="missing")
        place, differing = next((n, part) for n, part in enumerate(parts) if len(set(part)) > 1)
        texts = [f"{text} with part {place} {part}" for text, part in zip(texts, differing, strict=True)]
    ranks = {text: [str(rank) for rank, other in enumerate(texts) if other == text] for text in texts}
    places = [f"rank{'s' * (len(at) > 1)} {','.join(at)}: {text}" for text, at in ranks.items()]
    message = f"the ranks do different things: {'; '.join(places)}"
    if all("gradient of" in text for text in texts):
        return f"{message}: put the tape inside the tf.function, which keeps the order of gradients"
    return (
        f"{message}. Either their models or optimizers differ, or one rank ended earlier: give all ranks the same "
        "number of steps (steps_per_epoch, .repeat()), or call hvd.join() where the data of a loop end"
    )


_session: Session | None = None
_ended: Session | None = None  # after `shutdown`: MPI can be joined once


def current() -> Session:
    """The session. Raises InputError before `init` and after `shutdown`."""
    if _session is None:
        raise InputError("hvd.init() must be called first: after the imports, before the first use of hvd")
    return _session


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the other ranks. Call it first: before TensorFlow computes anything.

    TensorFlow then uses this rank's GPU, or its share of the machine's cores, and no others. The environment
    variable RINGBERT_BACKEND chooses what sums: "mpi", "nccl", "ring" or "auto", which is NCCL where each rank has
    its own GPU, else MPI.

    `comm` is an mpi4py communicator of the processes to join, instead of all.

    Raises InputError if the ranks cannot be joined, or for a list of ranks or `process_sets`.
    """
    global _session
    if isinstance(comm, Sequence) or process_sets is not None:
        raise Unsupported("hvd.init(): all ranks always work together; comm can be an mpi4py communicator")
    if _session is not None:
        return
    if os.environ.get(ELASTIC, "0") != "0":
        raise InputError(
            "bert-launch --elastic is for RingBERT's programs: start a script with hvd by bert-launch --restarts"
        )
    if keras.backend.backend() != "tensorflow":
        raise InputError(f"hvd needs KERAS_BACKEND=tensorflow, but Keras uses {keras.backend.backend()}")
    _session = _started(comm) if comm is not None else _ended or _started(None)


def _started(comm: Any) -> Session:
    is_late = context.context()._context_handle is not None
    if is_late and tf.config.list_physical_devices("GPU"):
        raise InputError(
            "hvd.init() must come before TensorFlow computes, or makes a dataset: it gives ranks their GPUs"
        )
    warning, timeout = (float(os.environ.get(*variable)) for variable in STALLS)
    device = None if is_late else DeviceSettings()
    # An OSError of the user's script keeps its traceback.
    stalls = StallSettings(stall_warning=warning, stall_timeout=timeout)
    world = World.join(device, None, (InputError,), stalls, saves_on_signals=False, comm=comm)
    if is_late and world.size > 1:
        world.say(
            "note: TensorFlow was used before hvd.init(), so each rank uses as many threads as the machine has "
            "cores: call hvd.init() first"
        )
    atexit.register(_at_exit, world)
    try:
        collectives = open_collectives(world, os.environ.get(BACKEND, "auto"))
        is_host = collectives.name in ("mpi", "local")
        return Session(world, collectives, collectives if is_host else open_collectives(world, "mpi"))
    except InputError as error:
        world.fail(error)
        raise


_show_traceback = sys.excepthook
_has_failed = False


def _on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An uncaught exception ends all ranks; an InputError is shown as one line."""
    global _has_failed
    _has_failed = True
    if _session is not None and (isinstance(error, InputError) or _session.world.comm is not None):
        _session.world.fail(error)
    if not isinstance(error, InputError):
        _show_traceback(kind, error, trace)
    elif launched_rank() == "0":
        print(f"{Path(sys.argv[0]).name}: error: {one_line(error)}", file=sys.stderr)


def _at_exit(world: World) -> None:
    """A rank that ends without an exception waits for the others."""
    if _has_failed:
        return
    if _session is not None:
        try:  # another rank may still be in a sum, which the barrier of `leave` would mistake for its own
            _session.meet(Call("the end of the script"))
        except InputError as error:
            world.fail(error)
    world.leave()


sys.excepthook = _on_exception


def shutdown() -> None:
    """Waits for all ranks and ends the session."""
    global _session, _ended
    if _session is not None:
        _session.meet(Call("shutdown"))
        _session, _ended = None, _session


def is_initialized() -> bool:
    return _session is not None


def _of_world(attribute: str, what: str) -> Callable[[], int]:
    def value() -> int:
        return getattr(current().world, attribute)

    value.__doc__ = what
    return value


rank = _of_world("rank", "The number of this rank, from 0.")
size = _of_world("size", "How many ranks there are.")
local_rank = _of_world("local_rank", "The number of this rank among those of its machine.")
local_size = _of_world("local_size", "How many ranks this machine has.")
cross_rank = _of_world("node", "The number of this machine.")
cross_size = _of_world("num_nodes", "How many machines there are.")


def _as_tensor(number: Callable[[], int]) -> Callable[..., tf.Tensor]:
    return lambda *process_set_and_name, **options: tf.constant(number())


rank_op, size_op = _as_tensor(rank), _as_tensor(size)
local_rank_op, local_size_op = _as_tensor(local_rank), _as_tensor(local_size)


def is_homogeneous() -> bool:
    """Whether all machines have equally many ranks."""
    return len(set(current().world.all_gather(local_size()))) == 1
