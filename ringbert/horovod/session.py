"""What `init()` starts: the ranks, the backend that sums, and the meetings of all ranks before each call."""

import atexit
import os
import sys
import threading
import weakref
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from distributed.arrays import reduced
from distributed.collectives import Collectives, open_collectives
from distributed.devices import DeviceSettings
from distributed.environment import launched_rank
from distributed.watchdog import StallSettings
from distributed.world import World
from ringbase.errors import InputError, one_line
from ringbert.horovod.calls import Call, described

T = TypeVar("T")
BACKEND = "RINGBERT_BACKEND"  # auto, mpi, nccl, ring or local
ELASTIC = "RINGBERT_ELASTIC"
# Horovod's variables for its check of stalls, in seconds. It ends a job only when it is asked to.
STALL_WARNING, STALL_TIMEOUT = "HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
# The watchdog's name for each call; a rank in `join` knows no other.
MEETING = "a sum or message of hvd, for which all ranks are needed"
NOBODY = int(np.iinfo(np.int64).min) + 1


@dataclass(eq=False)
class Session:
    """The ranks and the backend.

    Attributes:
      num_active: how many ranks had not joined (`join`) at the last meeting.
      num_calls: how many meetings there were, the same on all ranks.
      means_of_tapes: the averages of `DistributedGradientTape`, by their options; a tape lives for one step.
      averaged: gradients that a tape has averaged, by their id, which an optimizer does not average again.
    """

    world: World
    collectives: Collectives
    num_active: int = 1
    num_calls: int = 0
    means_of_tapes: dict = field(default_factory=dict)
    averaged: Any = field(default_factory=weakref.WeakValueDictionary)
    _one_meets: Any = field(default_factory=threading.Lock, repr=False)  # TensorFlow may run two calls at once

    def meet(self, call: Call, action: Callable[[], T]) -> T:
        """Calls `action`, which exchanges messages with all ranks, if all ranks make the same call.

        Raises InputError on every rank if they make different calls. While a graph is built it ends the job
        instead, because TensorFlow would turn the error into one of many lines.
        """
        if self.world.size == 1:
            return action()
        try:
            return self._met(call, action)
        except InputError as error:
            if tf.executing_eagerly() and not tf.inside_function():
                raise
            self.world.fail(error)
            raise

    def _met(self, call: Call, action: Callable[[], T]) -> T:
        with self._one_meets, self.world.operation(MEETING):
            numbers, has_joined = self._exchanged(zlib.crc32(str(call).encode()))
            if len(numbers) > 1:
                raise InputError(self._difference(call))
            self.num_active = self._count_active(self.world.all_gather(call)) if has_joined else self.world.size
            return action()

    def join(self, take_part: Callable[[Call], None]) -> int:
        """Takes part, by `take_part`, in the calls of the other ranks until all have joined.

        Returns the rank that joined last.
        """
        rounds = 0
        while self.world.size > 1:
            with self.world.operation(MEETING):
                numbers, _ = self._exchanged(NOBODY)
                if numbers == {NOBODY}:
                    return (
                        min((waited, -rank) for rank, waited in enumerate(self.world.all_gather(rounds)))[1] * -1
                    )
                if len(numbers) > 1:
                    raise InputError(self._difference(None))
                calls: list[Call | None] = self.world.all_gather(None)
                self.num_active = self._count_active(calls)
                take_part(next(call for call in calls if call is not None))
                rounds += 1
        return 0

    def _exchanged(self, number: int) -> tuple[set[int], bool]:
        """The least and the largest number of a rank that has not joined, and whether some rank has (`NOBODY`)."""
        self.num_calls += 1
        has_joined = number == NOBODY
        header = np.array([number, NOBODY if has_joined else -number, has_joined], np.int64)
        largest, negated_least, any_joined = reduced(self.world.comm, header, "MAX").tolist()
        return {largest, NOBODY if largest == NOBODY else -negated_least}, bool(any_joined)

    def _count_active(self, calls: Sequence[Call | None]) -> int:
        return sum(call is not None for call in calls)

    def _difference(self, call: Call | None) -> str:
        calls = self.world.all_gather(call)
        texts = described(calls)
        ranks = {text: [str(rank) for rank, other in enumerate(texts) if other == text] for text in texts}
        places = [f"rank{'s' * (len(at) > 1)} {','.join(at)}: {text}" for text, at in ranks.items()]
        found = f"the ranks do different things: {'; '.join(places)}"
        if all("gradient of" in text for text in texts):
            return f"{found}: put the tape inside the tf.function, which keeps the order of gradients"
        return (
            f"{found}. Either their models or optimizers differ, or one rank ended earlier: give all ranks the "
            "same number of steps (steps_per_epoch, .repeat()), or call hvd.join() where the data of a loop end"
        )


_session: Session | None = None
_ended: Session | None = None  # after `shutdown`: MPI can be joined once


def current() -> Session:
    """The session. Raises InputError before `init` and after `shutdown`."""
    if _session is None:
        _show_in_one_line()
        raise InputError("hvd.init() must be called first: after the imports, before the first use of hvd")
    return _session


def _show_in_one_line() -> None:
    """An InputError that nothing catches is shown without its traceback, once for a job without ranks yet."""
    before = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, InputError):
            before(kind, error, trace)
        elif launched_rank() == "0":
            print(f"{Path(sys.argv[0]).name}: error: {one_line(error)}", file=sys.stderr)

    sys.excepthook = show


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
        raise InputError(
            "hvd.init(): a list of ranks and process_sets are not supported: all ranks always work together; comm "
            "can be an mpi4py communicator"
        )
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
    device = None if is_late else DeviceSettings()
    # An OSError of the user's script keeps its traceback.
    world = World.join(device, None, (InputError,), _stall_settings(), saves_on_signals=False, comm=comm)
    if is_late and world.size > 1:
        world.say(
            "note: TensorFlow was used before hvd.init(), so each rank uses as many threads as the machine has "
            "cores: call hvd.init() first"
        )
    _end_together(world)
    try:
        return Session(world, open_collectives(world, os.environ.get(BACKEND, "auto")))
    except InputError as error:
        world.fail(error)
        raise


def _stall_settings() -> StallSettings:
    values = {}
    for name, default in ((STALL_WARNING, 60.0), (STALL_TIMEOUT, 0.0)):
        try:
            values[name] = float(os.environ.get(name, default))
        except ValueError:
            raise InputError(f"{name} must be a number of seconds, got {os.environ[name]}") from None
    return StallSettings(stall_warning=values[STALL_WARNING], stall_timeout=values[STALL_TIMEOUT])


def _end_together(world: World) -> None:
    """An uncaught exception ends all ranks; a rank that ends without one waits for the others at the end."""
    before = sys.excepthook
    failed = False

    def on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        nonlocal failed
        failed = True
        if isinstance(error, InputError) or world.comm is not None:
            world.fail(error)
        before(kind, error, trace)

    def at_exit() -> None:
        if not failed and _session is not None:
            try:  # another rank may still be in a sum, which the barrier of `leave` would mistake for its own
                _session.meet(Call("the end of the script"), lambda: None)
            except InputError as error:
                world.fail(error)
        if not failed:
            world.leave()

    sys.excepthook = on_exception
    atexit.register(at_exit)


def shutdown() -> None:
    """Waits for all ranks and ends the session."""
    global _session, _ended
    if _session is not None:
        session, _session = _session, None
        session.meet(Call("shutdown"), session.world.barrier)
        _ended = session


def is_initialized() -> bool:
    return _session is not None


def rank() -> int:
    """The number of this rank, from 0."""
    return current().world.rank


def size() -> int:
    """How many ranks there are."""
    return current().world.size


def local_rank() -> int:
    """The number of this rank among those of its machine."""
    return current().world.local_rank


def local_size() -> int:
    """How many ranks this machine has."""
    return current().world.local_size


def cross_rank() -> int:
    """The number of this machine."""
    return current().world.node


def cross_size() -> int:
    """How many machines there are."""
    return current().world.num_nodes


def is_homogeneous() -> bool:
    """Whether all machines have equally many ranks."""
    return len(set(current().world.all_gather(local_size()))) == 1


def rank_op(name: str | None = None) -> tf.Tensor:
    """`rank()` as a tensor."""
    return tf.constant(rank(), tf.int32)


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """`size()` as a tensor."""
    return tf.constant(size(), tf.int32)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """`local_rank()` as a tensor."""
    return tf.constant(local_rank(), tf.int32)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """`local_size()` as a tensor."""
    return tf.constant(local_size(), tf.int32)
