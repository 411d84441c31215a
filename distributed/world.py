"""The ranks of a job: they join MPI, exchange messages, check that they agree, and fail together.

Control messages (objects, barriers, agreement, the weights of a step) and the end of the job always
use MPI, whichever backend sums the gradients. A program creates one `World` at its start and passes
it down.
"""

import contextlib
import itertools
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from distributed import launcher
from distributed.devices import Device, DeviceSettings, own_cores, use_device
from distributed.joining import communicator, place_in, started, starting
from distributed.watchdog import StallError, StallSettings, Watchdog, by_value
from ringbase.errors import InputError, Preempted, one_line

T = TypeVar("T")
PAUSE_S = 0.001  # of a rank that waits in a barrier

MESSAGE_BYTES = 1 << 28  # at most, of a message of pickled values, those of all ranks together
FAULT = 70  # exit status after a fault that is not the user's: EX_SOFTWARE of <sysexits.h>


class FirstRankError(Exception):
    """`World.on_first` failed on rank 0, which reports it and ends the job."""


@dataclass(eq=False, repr=False)
class World:
    """This process among the ranks of a job; `World()` is alone. `elastic.py` changes it after a
    death."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # its number among the ranks that share this machine's memory
    local_size: int = 1
    node: int = 0  # the number of this machine
    num_nodes: int = 1
    # mpi4py's communicator of the ranks; None for one rank
    comm: Any = None
    device: Device = field(default_factory=Device)
    program: str = "python"
    # a user's own: OSErrors keep their traceback; alone, it keeps its signals' handlers
    is_script: bool = False
    stop_wanted: threading.Event = field(default_factory=threading.Event)
    # what a request to stop leads to while a training or a prediction runs; "" elsewhere
    on_stop: str = ""
    watchdog: Watchdog = field(default_factory=Watchdog)
    launched_size: int = 1  # how many ranks there were at the start
    # of the living ranks at the start; only if the job goes on without those that die
    names: tuple[str, ...] = ()
    derived: list = field(default_factory=list)  # communicators made from `comm`
    _requests: launcher.Requests = field(default_factory=launcher.Requests)
    _has_asked: bool = False  # a signal, for a stop that is made or has been

    def __str__(self) -> str:
        ranks = f"{self.size} rank{'s' * (self.size > 1)}"
        machines = f"{self.num_nodes} machine{'s' * (self.num_nodes > 1)}"
        return f"{ranks} on {machines}, {self.device.kind}, {self.device.threads} threads per rank"

    @classmethod
    def join(
        cls,
        device: DeviceSettings | None = DeviceSettings(),  # noqa: B008 — it is frozen
        program: str | None = None,
        stalls: StallSettings | None = StallSettings(),  # noqa: B008
        is_script: bool = False,
        comm=None,
    ) -> "World":
        """Joins MPI and gives each local rank its GPU and cores; call it before the first
        TensorFlow operation.

        An exception or a `sys.exit` with an error that leaves its `with` block on any rank ends all
        ranks. With `device` None TensorFlow is not imported, and with `stalls` None there is no
        watchdog. `comm` is an mpi4py communicator of a part of the processes. Raises InputError if
        MPI sees one of several processes that a launcher started, or if a rank can get no GPU.
        """
        comm, problem = communicator() if comm is None else (comm, "")
        facts: dict = {"program": program or Path(sys.argv[0]).name}
        facts |= {"is_script": is_script, "watchdog": Watchdog(stalls)}
        if comm and comm.size > 1:
            with starting():
                facts |= place_in(comm) | {"comm": comm, "launched_size": comm.size}
                world = cls(**facts)
                # what follows can hang too: a driver, an import from a file server
                world.watchdog.start(comm, world.fail)
        else:
            world = cls(**facts)
        with contextlib.ExitStack() as failing:
            failing.push(world)
            if problem:
                raise InputError(problem)
            if not is_script:  # whose signals are its own
                world._handle_signals()
            threading.excepthook = world._fail_in_thread
            world.device = own_cores(world) if device is None else use_device(world, device)
            failing.pop_all()
        world._tell("joined")
        return world

    @property
    def is_elastic(self) -> bool:
        return bool(self.names)

    @property
    def place(self) -> str:
        """Which rank this is, for messages."""
        return f"rank {self.rank} of {self.size}"

    @property
    def share(self) -> tuple[int, int]:
        """This rank's part of work that all ranks share, and the number of parts."""
        return self.rank, self.size

    # -- messages between ranks --------------------------------------------------------------------

    def operation(self, name: str) -> contextlib.AbstractContextManager[None]:
        """A `with` block that waits for all ranks, which all enter it; `name` is for messages."""
        return self.watchdog.operation(name)

    def barrier(self) -> None:
        """Waits for all ranks without keeping a core busy."""
        if self.comm is None:
            return
        with self.operation("a barrier"):
            request = self.comm.Ibarrier()
            while not request.Test():
                time.sleep(PAUSE_S)

    def broadcast(self, value: T) -> T:
        """Rank 0's value on every rank (pickled)."""
        if self.comm is None:
            return value
        parts = self._exchanged("bcast", value if self.rank == 0 else None)
        return pickle.loads(b"".join(parts))

    def gather(self, value: T) -> list[T] | None:
        """Every rank's value on rank 0, in order of rank; None elsewhere (pickled)."""
        if self.comm is None:
            return [value]
        parts = self._exchanged("gather", value)
        return _of_each_rank(parts) if self.rank == 0 else None

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value on every rank, in order of rank (pickled)."""
        return [value] if self.comm is None else _of_each_rank(self._exchanged("allgather", value))

    def _exchanged(self, method: str, value) -> list[Any]:
        """What a method of MPI returns for the pickled value, piece by piece: MPI counts the bytes
        of a message, of all ranks together, in 32 bits."""
        raw = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        piece_bytes = MESSAGE_BYTES // self.size
        with self.operation(f"an MPI {method}"):
            self.barrier()
            exchange = getattr(self.comm, method)
            longest = np.array([len(raw)])
            try:
                # Not `allreduce`, for which mpi4py makes a communicator that nobody could revoke.
                self.comm.Allreduce(started().IN_PLACE, longest, started().MAX)
                starts = range(0, int(longest[0]), piece_bytes)
                return [exchange(raw[start : start + piece_bytes]) for start in starts]
            finally:
                self.refuse_after_death()

    def all_reduce_sum(self, values: ArrayLike, name: str = "a sum") -> np.ndarray:
        """The sum over ranks of a small float64 array; `name` is for messages."""
        total = np.array(values, np.float64)
        if self.comm is not None:
            with self.operation(name):
                self.comm.Allreduce(started().IN_PLACE, total)
            self.refuse_after_death()
        return total

    def knows_of_death(self) -> bool:
        """Whether this rank has heard that one of them died."""
        if not self.is_elastic:
            return False
        failed = self.comm.Get_failed()
        num_failed = failed.size
        failed.Free()
        return num_failed > 0 or self.comm.Is_revoked()

    def refuse_after_death(self) -> None:
        """Raises MPI's exception if this rank knows of a death. An exchange that it cut short can
        return garbage as a success in Open MPI 5.0."""
        if self.knows_of_death():
            raise started().Exception(started().ERR_PROC_FAILED)

    def on_first(self, function: Callable[..., T], *args) -> T:
        """Calls `function(*args)` on rank 0 only. Every rank returns its result, or raises if it
        failed."""
        result: Any = None
        failure, reason = None, ""
        with self.operation(f"the work of rank 0 ({getattr(function, '__name__', '')})"):
            if self.rank == 0:
                try:
                    with self.watchdog.working():
                        result = function(*args)
                except BaseException as error:
                    failure, reason = error, f"{type(error).__name__}: {error}"
            result, reason = self.broadcast((result, reason))
        if reason:
            raise failure or FirstRankError(reason)
        return result

    def on_each_machine(self, function: Callable[..., T], *args) -> T:
        """Calls `function` on rank 0, then on the first rank of every other machine, which on a
        shared file system finds the files already written. Returns the result of the first rank
        here."""
        work = getattr(function, "__name__", "")
        with self.operation(f"the work of each machine's first rank ({work})"):
            result = self.on_first(function, *args)
            if self.local_rank == 0 and self.rank > 0:
                with self.watchdog.working():
                    result = function(*args)
            return self.on_node(result)[0]

    def split(self, *colors: int) -> list[Any]:
        """For each color a communicator of the ranks that give the same one; all ranks call it
        alike. A death ends what waits in them too."""
        parts = []
        for color in colors:
            parts.append(self.comm.Split(color))
            self.derived.append(parts[-1])
        # Until all have them: whoever could not make one, because of a death, cannot revoke it.
        self.barrier()
        self.refuse_after_death()
        return parts

    def on_node(self, value: T) -> list[T]:
        """The values of this machine's ranks, in order of local rank."""
        return [other for node, other in self.all_gather((self.node, value)) if node == self.node]

    def agree(self, facts: Mapping[str, object]) -> None:
        """Raises InputError on every rank unless all have the same facts: name -> anything with a
        stable `str`."""
        own = {name: str(value) for name, value in facts.items()}
        with self.operation("a comparison of the ranks"):
            everyone = self.all_gather(own)
        for name in dict.fromkeys(itertools.chain(*everyone)):
            values = [facts_of_rank.get(name, "nothing") for facts_of_rank in everyone]
            if len(set(values)) > 1:
                by_rank = dict(enumerate(values))
                raise InputError(f"the ranks disagree about {name}: {by_value(by_rank)}")

    def say(self, text: str, file: TextIO | None = None) -> None:
        """Prints a line to a file, or to standard error, once for the whole job."""
        if self.rank == 0:
            print(text, file=file or sys.stderr, flush=True)

    # -- the end -----------------------------------------------------------------------------------

    def __enter__(self) -> "World":
        return self

    def __exit__(self, kind, error, trace) -> Literal[False]:
        status: Any = error.code if isinstance(error, SystemExit) else error
        if isinstance(error, Preempted) or not status:
            self.leave(status or 0)
        elif self.comm is not None:
            self.fail(error)
        elif self._is_of_user(error):
            # Under another MPI's launcher each process is alone and fails in the same way, and one
            # is enough: the launcher ends the others meanwhile. Else only this host has the error.
            if launcher.reports():
                self._report(error)
            elif launcher.is_of_mpirun():
                time.sleep(launcher.FIRST_RANK_S)
                self._report(error, f" on {socket.gethostname()}")
            else:
                time.sleep(1)
            raise SystemExit(1) from None
        return False

    def stop_soon(self, then: str) -> None:
        """From now on a signal that asks for a stop is noted, for the next step or prediction,
        instead of ending the process at once. `then`: what it leads to."""
        if not self.on_stop:
            self._tell("stops")
        self.on_stop = then

    @contextlib.contextmanager
    def stopping(self, then: str) -> Iterator[None]:
        """A `with` block of which the same is true."""
        before = self.on_stop
        self.stop_soon(then)
        try:
            yield
        finally:
            self.on_stop = before
            if not before:
                self._tell("runs")

    def _tell(self, record: str) -> None:
        if self.rank == 0:
            launcher.tell(record)

    def _handle_signals(self) -> None:
        """Signals that ask for a stop: SIGUSR1, as bert-launch and batch systems send it, SIGTERM,
        as they send it to the ranks themselves, and to a process alone what a terminal sends."""
        numbers = [signal.SIGUSR1, signal.SIGTERM]
        if self.size == 1:
            numbers += [signal.SIGINT, signal.SIGHUP]
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN and signal.SIGHUP in numbers:
            numbers.remove(signal.SIGHUP)  # under nohup
        for number in numbers:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        is_second = self._requests.is_second(number)
        if number == signal.SIGUSR1:
            self.stop_wanted.set()
        elif is_second or not (self.on_stop or self._has_asked):
            self._end_by(number)
        else:
            # mpirun sends SIGTERM also to the ranks that are left when one has failed
            if self.size == 1 and not self.stop_wanted.is_set():
                self._print(f"{signame(number)}: {self.on_stop}; send it again to end at once")
            self._has_asked = True
            self.stop_wanted.set()

    def _end_by(self, number: int) -> None:
        """Ends this process by a signal."""
        if self.size == 1:
            self._print(f"ended by {signame(number)}")
            raise SystemExit(128 + number)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _print(self, text: str) -> None:
        print(f"{self.program}: {text}", file=sys.stderr, flush=True)

    def leave(self, status: int = 0) -> None:
        """Waits for all ranks, so that one which leaves too early is noticed."""
        has_all = self.size == self.launched_size
        try:
            with self.operation("the end of the program"):
                self.barrier()
                if self.rank > 0:
                    self.watchdog.stop()
                self.barrier()  # until then rank 0 takes the others' last messages
        except Exception:
            if not self.is_elastic:
                raise
            has_all = False
        self.watchdog.stop()
        if self.rank == 0:
            launcher.tell_end(int(status))
        if not has_all:  # MPI_Finalize, which Python would call next, can wait for the dead
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def fail(self, error: BaseException) -> None:
        """Reports the error once and ends all ranks; does not return. For errors outside of the
        `with` block."""
        # the lowest rank that fails reports, and its abort ends the others while they wait
        if self.rank > 0:
            time.sleep(8 if isinstance(error, FirstRankError) else min(0.5 + 0.5 * self.rank, 7))
        status = self._report(error)
        sys.stdout.flush()
        if self.comm is None:
            os._exit(status)
        # lets ranks that fail at the same time get here too, so that they show no stack trace
        time.sleep(0.2)
        self.comm.Abort(status)

    def _fail_in_thread(self, failed: threading.ExceptHookArgs) -> None:
        """What `threading.excepthook` does: an uncaught exception in a thread ends the job."""
        error = failed.exc_value
        if error is not None and not isinstance(error, SystemExit):
            self.fail(error)

    def _is_of_user(self, error: BaseException) -> bool:
        """Whether one line says all about it."""
        return isinstance(error, InputError) or (isinstance(error, OSError) and not self.is_script)

    def _report(self, error: BaseException, place: str = "") -> int:
        """Prints the error, and where it is if that matters, and returns the exit status."""
        status = FAULT
        if isinstance(error, StallError) or self._is_of_user(error):
            text = f"error{place}: {one_line(error)}"
            if not isinstance(error, StallError):
                status = 1
        elif isinstance(error, SystemExit):
            status = error.code if isinstance(error.code, int) else 1
            text = f"{self.place} exits: {error.code}"
        else:
            text = f"failed on {self.place}\n{''.join(traceback.format_exception(error))}"
        print(f"{self.program}: {text}", file=sys.stderr, flush=True)
        launcher.tell_end(status)
        return status


def signame(number: int) -> str:
    return signal.Signals(number).name


def _of_each_rank(pieces):
    """The values of the ranks, from all pieces of their pickles."""
    return [pickle.loads(b"".join(of_rank)) for of_rank in zip(*pieces, strict=True)]
