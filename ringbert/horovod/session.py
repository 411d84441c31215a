"""The ranks of a script and their calls, which run in Python on the host, now or as an operation of
a graph."""

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from tensorflow import Tensor
from tensorflow.python.eager import context
from tensorflow.python.ops import control_flow_util  # there is no public name for what it tells

from distributed.collectives import Collectives, open_collectives
from distributed.devices import DeviceSettings
from distributed.ranks import Ranks
from distributed.watchdog import StallSettings
from distributed.world import World
from ringbase.errors import InputError

PAGE = "docs/horovod.md"  # that says what is here instead
as_written = tf.autograph.experimental.do_not_convert  # by AutoGraph


class Unsupported(InputError, NotImplementedError):
    """A use that has no counterpart. Horovod raises NotImplementedError, which is a
    RuntimeError."""


class RanksDiffer(InputError, tf.errors.FailedPreconditionError):
    """The ranks call different things, or the same with other shapes; of the type that Horovod
    raises."""

    def __init__(self, message: str):
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)


class WrongValue(InputError, tf.errors.InvalidArgumentError):
    """A tensor or number that cannot be used, of the type that Horovod raises."""

    def __init__(self, message: str):
        tf.errors.InvalidArgumentError.__init__(self, None, None, message)


class Call(NamedTuple):
    """What all ranks do together, and must agree on: everything but the values."""

    what: str  # the function of hvd
    name: str | None = None  # which the user gave it, or what it is for
    kind: tuple = ()  # options, and dtype and shape of each tensor

    def __str__(self) -> str:
        return f"{self.what} {self.name or ''}".strip()


@dataclass(eq=False)
class Session:
    """The ranks and the backend.

    `collectives` sums gradients in a graph, `host` sums tensors on the host; the same with MPI. A
    collective operation of TensorFlow cannot run inside a py_function, which holds the thread that
    it needs. At the last of `num_calls` meetings `num_active` ranks had not joined (`join`).
    """

    world: World
    collectives: Collectives
    host: Collectives
    place: str = ""  # which ranks these are, for messages, if they are not all
    num_active: int = 1
    num_calls: int = 0
    # of the session of all ranks, by their numbers (`process_sets`)
    process_sets: dict[int, Any] = field(default_factory=dict)
    # TensorFlow may run two calls at once
    _one_meets: Any = field(default_factory=threading.Lock)

    @contextmanager
    def meeting(self, call: Call | None) -> Iterator[Call | None]:
        """A `with` block in which all ranks exchange messages, when they all make this call. It
        gets the call.

        None is for a rank that has joined: it makes the call of the others. Raises RanksDiffer if
        the ranks make different calls.
        """
        if self.world.size == 1:
            yield call
            return
        # A rank in `join` knows no other name for the call.
        name = "a sum or message of hvd, for which all ranks are needed"
        with self._one_meets, self.world.operation(name):
            made = [other for other in self.world.comm.allgather(call) if other is not None]
            if len(set(made)) > 1:
                self._refuse(call or Call("hvd.join"))
            self.num_calls += 1
            self.num_active = len(made)
            yield made[0] if made else None

    def _refuse(self, call: Call) -> None:
        """Raises RanksDiffer, with what each rank does, or the first tensor that differs."""
        facts = {"the next call": call}
        for number, part in enumerate(call.kind):
            facts[f"part {number} of {call}"] = part
        try:
            self.world.agree(facts)
        except InputError as error:
            raise RanksDiffer(
                f"{error}{self.place}. Give all ranks the same model, optimizer and steps"
                " (steps_per_epoch, .repeat()), call hvd.join() where the data of a loop end, and"
                " put a tape inside the tf.function"
            ) from None


# the operations of each graph
_made: Any = weakref.WeakKeyDictionary()
_session: Session | None = None
_ended: Session | None = None  # after `shutdown`: MPI can be joined once


def current() -> Session:
    """The session. Raises InputError before `init` and after `shutdown`."""
    if _session is None:
        raise InputError(
            "hvd.init() must be called first: after the imports, before the first use of hvd"
        )
    return _session


def is_initialized() -> bool:
    return _session is not None


def start(comm=None) -> None:
    """Joins the other ranks, unless this rank has joined them: what `init` does for a script."""
    global _session
    if isinstance(comm, Sequence):
        raise Unsupported(
            "hvd.init(comm=…) needs an mpi4py communicator of the ranks; hvd.ProcessSet(ranks) are"
            f" some of them ({PAGE})"
        )
    if _session is None:
        _session = _ended if _ended and comm is None else _started(comm)


def with_part(ranks: Ranks, place: str) -> Session:
    """The session of some of the ranks, which work together without the others. Nothing watches
    over their calls: the watchdog counts those of all ranks."""
    whole = current().world
    world = World(ranks, whole.device, whole.program, is_script=True)
    collectives = open_collectives(world, "mpi" if world.size > 1 else "local")
    return Session(world, collectives, collectives, place)


def _started(comm) -> Session:
    if os.environ.get("RINGBERT_ELASTIC", "0") != "0":
        raise InputError(
            "a script with hvd cannot lose ranks: start it by bert-launch --restarts, not --elastic"
        )
    if keras.backend.backend() != "tensorflow":
        raise InputError(
            f"hvd needs KERAS_BACKEND=tensorflow, but Keras uses {keras.backend.backend()}"
        )
    is_late = context.context()._context_handle is not None
    if is_late and tf.config.list_physical_devices("GPU"):
        raise InputError(
            "hvd.init() gives ranks their GPUs: call it before TensorFlow computes or makes"
            " datasets"
        )
    # as Horovod: a job ends only when this is asked for
    warning_s = float(os.environ.get("HOROVOD_STALL_CHECK_TIME_SECONDS", 60))
    timeout_s = float(os.environ.get("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0))
    stalls = StallSettings(stall_warning=warning_s, stall_timeout=timeout_s)
    device = None if is_late else DeviceSettings()
    world = World.join(device, None, stalls, is_script=True, comm=comm)
    if is_late and world.size > 1:
        world.say(
            "note: TensorFlow was used before hvd.init(), so each rank has a thread for every core"
        )
    atexit.register(_at_exit, world)
    collectives = host = open_collectives(world, os.environ.get("RINGBERT_BACKEND", "auto"))
    if collectives.name not in ("mpi", "local"):
        host = open_collectives(world, "mpi")
    return Session(world, collectives, host)


def shutdown() -> None:
    """Waits for all ranks and ends the session."""
    global _session, _ended
    if _session is not None:
        with _session.meeting(Call("shutdown")):
            pass
        for process_set in _session.process_sets.values():
            if process_set.session:
                process_set.session.world.release()
        _session.process_sets.clear()
        _session, _ended = None, _session


def _at_exit(world: World) -> None:
    """A rank that ends without an exception waits for the others."""
    if _session is not None:
        # another rank may still be in a sum, which the barrier of `leave` would mistake for its own
        try:
            with _session.meeting(Call("the end of the script")):
                pass
        except InputError as error:
            world.fail(error)
    world.leave()


def _on_exception(*raised) -> None:
    """An uncaught exception ends all ranks; an InputError is shown as one line."""
    atexit.unregister(_at_exit)
    world = _session.world if _session else World(program=Path(sys.argv[0]).name, is_script=True)
    world.__exit__(*raised)  # returns on a single rank, if the error is no InputError
    _show_traceback(*raised)


_show_traceback, sys.excepthook = sys.excepthook, _on_exception


def collective(
    call: Call,
    function: Callable,
    gradient: Callable,
    tensors: Sequence[Tensor],
    session: Session,
    resizes: bool = False,
) -> list[Tensor]:
    """The results of `function(*tensors)` on all ranks of a session, cast to the tensors' dtypes.

    One rank alone keeps its tensors. The ranks meet for `call` first: its kind are the options, to
    which dtype and shape of the tensors are added. `gradient(name, results, *upstream)` are the
    gradients of the tensors; `name` is for its own calls. With `resizes` the first dimensions may
    differ among the ranks, and those of results from the tensors'.
    """
    is_eager = tf.executing_eagerly()

    def meet(*values):
        kinds = ((value.dtype.name, tuple(value.shape[int(resizes) :])) for value in values)
        try:
            complete = Call(call.what, call.name, (*call.kind, *kinds))
            with session.meeting(complete):
                results = function(*values)
            return [tf.cast(own, value.dtype) for own, value in zip(results, values, strict=True)]
        except InputError as error:
            if not is_eager:  # TensorFlow would wrap it into its own error of many lines
                current().world.fail(error)
            raise

    @tf.custom_gradient
    def run(*own):
        number = 0
        if session.world.size == 1:
            results = [tf.identity(value) for value in own]
        elif is_eager:
            results, number = meet(*own), session.num_calls
        else:
            results, number = _in_graph(meet, own, call.what)
            for result, value in zip(results, own, strict=True):
                result.set_shape([None, *value.shape[1:]] if resizes else value.shape)

        def backward(*upstream):
            # In another order the ranks' names differ.
            name = f"gradient of {call.name or call.what}, call {number}"
            return gradient(name, results, *upstream)

        return results, backward

    return list(run(*tensors)) if tensors else []


def _in_graph(function: Callable, tensors: Sequence[Tensor], what: str) -> tuple[list[Tensor], int]:
    """The results of `function(*tensors)`, as one operation of a graph on the CPU, and its number
    in the graph.

    Each graph runs all of these in the order in which they were traced, so that all ranks do the
    same: TensorFlow sees to that in the functions that it traces, but not in a backward function
    that it builds for a tape outside.
    """
    graph = tf.compat.v1.get_default_graph()
    # of an exception TensorFlow would make many lines
    if control_flow_util.GraphOrParentsInXlaContext(graph):
        reason = (
            f"{what}: jit_compile=True needs NCCL: leave it out, and call DistributedOptimizer"
            " before compile"
        )
        current().world.fail(InputError(reason))
    made = _made.setdefault(graph, [])
    latest = [graph.get_operation_by_name(name) for name in made[-1:]]
    with tf.device("/CPU:0"), tf.control_dependencies(latest):
        results = tf.py_function(function, tensors, [value.dtype for value in tensors])
    made.append(results[0].op.name)
    if isinstance(graph, tf.__internal__.FuncGraph) and graph.experimental_acd_manager is None:
        graph.control_outputs.append(results[0].op)
    return results, len(made)
