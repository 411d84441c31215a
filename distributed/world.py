"""The ranks of a job: they join MPI, exchange messages, check that they agree, and fail together.

Control messages (objects, barriers, agreement, the weights of a step) and the end of the job always use MPI,
whichever backend sums the gradients. A program creates one `World` at its start and passes it down.
"""

import contextlib
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from distributed import records, signals
from distributed.affinity import cores_of_machine
from distributed.agreement import FirstRankError, check_agreement
from distributed.devices import DeviceSettings, with_cores, with_device
from distributed.driver import Gpu
from distributed.environment import check_launcher, launched_rank
from distributed.joining import communicator, place_in, wait_for
from distributed.watchdog import StallError, StallSettings, Watchdog
from ringbase.errors import InputError, Preempted, one_line

T = TypeVar("T")
FAULT = 70  # exit status after a fault that is not the user's: EX_SOFTWARE of <sysexits.h>


@dataclass(eq=False)
class World:
    """This process among the ranks of a job. After a loss `distributed.elastic` changes its place among them.

    Attributes:
      rank, size: the number of this rank, and how many ranks there are.
      local_rank, local_size: the same among the ranks that share this machine's memory.
      node, num_nodes: the number of this machine, and how many machines there are.
      device: "gpu" or "cpu".
      gpu: this rank's GPU, or None.
      may_share_gpus: the user allowed ranks to share GPUs.
      threads: how many threads this rank computes with.
      machine_cores: the cores that the ranks of this machine may use together.
      notes: one line for each decision that the user should know, the same on every rank of a machine.
      launched_size: how many ranks there were at the start.
      is_elastic: the job goes on without ranks that die.
      name, names: of this rank, and of all living ranks, with the numbers that they had at the start.
      exit_status: that of this process, when it ends without an error.
      derived: communicators made from `comm`, which a loss revokes too.
      program: the program's name, for messages.
      user_errors: types of errors to show as one line, without a traceback.
      stop_wanted: set by SIGUSR1; the next training step then saves and stops on all ranks.
      is_training: set while there is something to save.
      watchdog: notices when ranks wait in vain.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    node: int = 0
    num_nodes: int = 1
    device: str = "cpu"
    gpu: Gpu | None = None
    may_share_gpus: bool = False
    threads: int = 1
    machine_cores: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    comm: Any = field(default=None, repr=False)
    launched_size: int = 1
    is_elastic: bool = False
    name: str = "rank 0"
    names: tuple[str, ...] = ()
    exit_status: int = 0
    derived: list[Any] = field(default_factory=list, repr=False)
    program: str = "python"
    user_errors: tuple[type[BaseException], ...] = field(default=(InputError, OSError), repr=False)
    stop_wanted: threading.Event = field(default_factory=threading.Event, repr=False)
    is_training: threading.Event = field(default_factory=threading.Event, repr=False)
    watchdog: Watchdog = field(default_factory=Watchdog, repr=False)

    def __str__(self) -> str:
        machines = f" on {self.num_nodes} machine{'s' * (self.num_nodes > 1)}"
        return f"{self.size} rank{'s' * (self.size > 1)}{machines}, {self.device}, {self.threads} threads per rank"

    @classmethod
    def join(
        cls,
        device: DeviceSettings | None = DeviceSettings(),  # noqa: B008 — it is frozen
        program: str | None = None,
        user_errors: tuple[type[BaseException], ...] = (),
        stalls: StallSettings | None = StallSettings(),  # noqa: B008
        saves_on_signals: bool = True,
        comm: Any = None,
    ) -> "World":
        """Joins MPI and gives each local rank its GPU and cores; call it before the first TensorFlow operation.

        Use it as a context manager: if an exception or a `sys.exit` with an error leaves the block on any rank,
        all ranks end. InputError, OSError and `user_errors` are shown as one line, other errors with a traceback.
        With `device` None, for programs that compute nothing, TensorFlow is not imported. With `stalls` None there
        is no watchdog. With `saves_on_signals` False, a process that is alone keeps its handlers of signals.
        `comm` is an mpi4py communicator of a part of the processes, instead of all; the process's handlers of
        signals and of threads' exceptions then stay as they are.

        Raises InputError if a launcher started several processes but MPI sees one, or if a rank can get no GPU.
        """
        program = program or Path(sys.argv[0]).name
        is_part = comm is not None
        comm, why_alone = (comm if comm.size > 1 else None, "") if is_part else communicator()
        world = cls(comm=comm, program=program, user_errors=(InputError, OSError, *user_errors))
        world = world if comm is None else replace(world, **place_in(comm), launched_size=comm.size)
        with contextlib.ExitStack() as failing:
            failing.push(world)
            if not is_part:
                check_launcher(world.size, why_alone)
                if saves_on_signals or world.size > 1:
                    signals.install(program, world.size == 1, world.stop_wanted, world.is_training)
                threading.excepthook = lambda failed: world.fail(failed.exc_value)
            world = with_cores(world)
            world = world if device is None else with_device(world, device)
            failing.pop_all()
        if comm is not None and stalls is not None:
            world.watchdog.start(comm, stalls, program, world.fail)
        if world.rank == 0:
            records.tell("joined")
        return world

    # -- messages between ranks -------------------------------------------------------------------------------

    def operation(self, name: str) -> contextlib.AbstractContextManager[None]:
        """A `with` block that waits for all ranks, which all enter it; `name` is for messages."""
        return self.watchdog.operation(name)

    def barrier(self) -> None:
        """Waits for all ranks without keeping a core busy."""
        if self.comm is None:
            return
        with self.operation("a barrier"):
            wait_for(self.comm.Ibarrier())

    def broadcast(self, value: T) -> T:
        """Rank 0's value on every rank (pickled)."""
        if self.comm is None:
            return value
        with self.operation("a broadcast"):
            self.barrier()
            return self.comm.bcast(value, root=0)

    def gather(self, value: T) -> list[T] | None:
        """Every rank's value on rank 0, in order of rank; None elsewhere (pickled)."""
        if self.comm is None:
            return [value]
        with self.operation("a gather"):
            self.barrier()
            return self.comm.gather(value, root=0)

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value on every rank, in order of rank (pickled)."""
        if self.comm is None:
            return [value]
        with self.operation("an exchange"):
            self.barrier()
            return self.comm.allgather(value)

    def all_reduce_sum(self, values: np.ndarray, name: str = "a sum") -> np.ndarray:
        """The sum over ranks of a small float64 array; `name` is for messages."""
        values = np.ascontiguousarray(values, np.float64)
        if self.comm is None:
            return values
        total = np.empty_like(values)
        with self.operation(name):
            self.comm.Allreduce(values, total)
        return total

    def on_first(self, function: Callable[..., T], *args) -> T:
        """Calls `function(*args)` on rank 0 only. Every rank returns its result, or raises if it failed."""
        if self.size == 1:
            return function(*args)
        outcome: tuple[str, Any] = ("", None)
        error: BaseException | None = None
        with self.operation(f"the work of rank 0 ({name_of(function)})"):
            if self.rank == 0:
                try:
                    with self.watchdog.working():
                        outcome = ("value", function(*args))
                    pickle.dumps(outcome[1])
                except BaseException as caught:
                    error, outcome = caught, ("error", f"{type(caught).__name__}: {caught}")
            kind, content = self.broadcast(outcome)
        if error is not None:
            raise error
        if kind == "error":
            raise FirstRankError(content)
        return outcome[1] if self.rank == 0 else content

    def on_each_machine(self, function: Callable[..., T], *args) -> T:
        """Calls `function` on rank 0, then on the first rank of every other machine, while all others wait.

        For work that writes files: on a shared file system the other machines find them already done. Meanwhile
        the calling rank may use the cores of its machine's other ranks. Returns the result of the first rank here.
        """
        with self.operation(f"the work of each machine's first rank ({name_of(function)})"):
            work = cores_of_machine(self.machine_cores)(function)
            result = self.on_first(work, *args)
            if self.local_rank == 0 and self.rank > 0:
                with self.watchdog.working():
                    result = work(*args)
            return self.on_node(result)[0]

    def on_node(self, value: T) -> list[T]:
        """The values of this machine's ranks, in order of local rank."""
        return [other for node, other in self.all_gather((self.node, value)) if node == self.node]

    def agree(self, facts: Mapping[str, object]) -> None:
        """Checks that all ranks have the same facts (name -> anything with a stable `str`).

        Raises InputError on every rank otherwise; it names the first fact that differs and its value on each rank.
        """
        with self.operation("a comparison of the ranks"):
            everyone = self.all_gather({name: str(value) for name, value in facts.items()})
        check_agreement(everyone)

    def say(self, text: str) -> None:
        """Prints a line to standard error, once for the whole job."""
        if self.rank == 0:
            print(text, file=sys.stderr, flush=True)

    # -- the end ----------------------------------------------------------------------------------------------

    def __enter__(self) -> "World":
        return self

    def __exit__(self, kind, error, trace) -> Literal[False]:
        if error is None or isinstance(error, Preempted) or (isinstance(error, SystemExit) and not error.code):
            self.leave(is_preempted=isinstance(error, Preempted))
            return False
        if self.comm is None and isinstance(error, self.user_errors):
            # Under another MPI's launcher each process is alone and fails in the same way, and one is enough.
            if launched_rank() == "0":
                self._print_user_error(error)
            else:
                time.sleep(1)
            raise SystemExit(1) from None
        if self.comm is not None:
            self._end_all(error)
        return False

    def leave(self, is_preempted: bool = False) -> None:
        """Waits for all ranks, so that one which leaves too early is noticed; elastic ones have voted already."""
        if self.comm is not None and not self.is_elastic:
            with self.operation("the end of the program"):
                self.barrier()
        self.watchdog.stop()
        self.exit_status = Preempted.STATUS if is_preempted else 0
        if self.rank == 0:
            records.tell(f"ended {self.exit_status}")

    def fail(self, error: BaseException | None) -> None:
        """Ends the job after an uncaught exception outside of the `with` block or in a thread; does not return,
        unless the error is None or a SystemExit."""
        if error is None or isinstance(error, SystemExit):
            return
        if self.comm is not None:
            self._end_all(error)
        if isinstance(error, self.user_errors):
            self._print_user_error(error)
        else:
            traceback.print_exception(error)
        sys.stdout.flush()
        os._exit(1)

    def _print_user_error(self, error: BaseException) -> None:
        print(f"{self.program}: error: {one_line(error)}", file=sys.stderr, flush=True)
        records.tell("ended 1")

    def _end_all(self, error: BaseException) -> None:
        """Reports the error once and ends all ranks; does not return."""
        status = FAULT
        if isinstance(error, FirstRankError):
            time.sleep(8)  # rank 0 reports the error, and its abort ends this process
        elif self.rank > 0:
            # If several ranks fail, the lowest one reports, and its abort ends the others while they wait.
            time.sleep(min(0.5 + 0.5 * self.rank, 7))
        place = f"rank {self.rank} of {self.size}"
        if isinstance(error, self.user_errors):
            status = 1
            self._print_user_error(error)
        elif isinstance(error, StallError):
            print(f"{self.program}: error: {one_line(error)}", file=sys.stderr, flush=True)
        elif isinstance(error, SystemExit):
            status = error.code if isinstance(error.code, int) else 1
            print(f"{self.program}: {place} exits: {error.code}", file=sys.stderr, flush=True)
        else:
            trace = "".join(traceback.format_exception(error))
            print(f"{self.program}: failed on {place}\n{trace}", file=sys.stderr, flush=True)
        records.tell(f"ended {status}")
        sys.stdout.flush()
        time.sleep(0.2)  # lets ranks that fail at the same time get here too, so that they show no stack trace
        self.comm.Abort(status)


def name_of(function: Callable) -> str:
    """The name of a function, for messages; the same on all ranks."""
    return getattr(function, "__name__", type(function).__name__)
