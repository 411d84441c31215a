"""A process in a job: it joins the others, has its device, and they end or fail together.

A program creates one `World` at its start and passes it down.
"""

import contextlib
import os
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Literal

from distributed import cores, launcher, records
from distributed.devices import Device, DeviceSettings, own_cores, use_device
from distributed.joining import communicator, starting
from distributed.messages import FirstRankError, Messages
from distributed.ranks import Ranks
from distributed.stops import Stops
from distributed.watchdog import StallError, StallSettings, Watchdog
from ringbase.errors import InputError, Preempted, Unavailable, one_line

FAULT = 70  # exit status after a fault that is not the user's: EX_SOFTWARE of <sysexits.h>


class World(Messages):
    """This process among the ranks of a job; `World()` is alone."""

    def __init__(
        self,
        ranks: Ranks = Ranks(),  # noqa: B008 — it is frozen
        device: Device = Device(),  # noqa: B008
        program: str = "python",
        is_script: bool = False,
        watchdog: Watchdog | None = None,
    ):
        """`is_script`: a user's own, whose OSErrors keep their traceback; alone, it keeps its
        signals' handlers."""
        super().__init__(ranks, watchdog or Watchdog())
        self.device = device
        self.program = program
        self.is_script = is_script
        self.stops = Stops(self, program)

    def __str__(self) -> str:
        size, num_nodes = self.ranks.size, self.ranks.num_nodes
        ranks = f"{size} rank{'s' * (size > 1)}"
        machines = f"{num_nodes} machine{'s' * (num_nodes > 1)}"
        return f"{ranks} on {machines}, {self.device.kind}, {self.device.threads} threads per rank"

    @classmethod
    def join(
        cls,
        device: DeviceSettings | None = DeviceSettings(),  # noqa: B008
        program: str | None = None,
        stalls: StallSettings | None = StallSettings(),  # noqa: B008
        is_script: bool = False,
        comm: Any = None,
    ) -> "World":
        """Joins MPI and gives each local rank its GPU and cores; call it before the first
        TensorFlow operation.

        An exception or a `sys.exit` with an error that leaves its `with` block on any rank ends all
        ranks. With `device` None TensorFlow is not imported, and with `stalls` None there is no
        watchdog. `comm` is an mpi4py communicator of a part of the processes. Raises InputError if
        MPI sees one of several processes that a launcher started, or if a rank can get no GPU.
        """
        cores.pin()
        comm, problem = communicator() if comm is None else (comm, "")
        program = program or Path(sys.argv[0]).name
        watchdog = Watchdog(stalls)
        if comm and comm.size > 1:
            with starting():
                world = cls(Ranks.of(comm), Device(), program, is_script, watchdog)
                # what follows can hang too: a driver, an import from a file server
                watchdog.start(comm, world.fail)
        else:
            world = cls(Ranks(), Device(), program, is_script, watchdog)
        with contextlib.ExitStack() as failing:
            failing.push(world)
            if problem:
                raise InputError(problem)
            if not is_script:  # whose signals are its own
                world.stops.handle_signals()
            threading.excepthook = world._fail_in_thread
            world.device = own_cores(world) if device is None else use_device(world, device)
            failing.pop_all()
        if world.rank == 0:
            records.tell("joined")
        return world

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
            status = 1
            if launcher.reports():
                status = self._report(error)
            elif launcher.is_of_mpirun():
                time.sleep(launcher.FIRST_RANK_S)
                status = self._report(error, f" on {socket.gethostname()}")
            else:
                time.sleep(1)
            raise SystemExit(status) from None
        return False

    def leave(self, status: int = 0) -> None:
        """Waits for all ranks, so that one which leaves too early is noticed."""
        has_all = self.size == self.ranks.launched_size
        try:
            with self.operation("the end of the program"):
                self.barrier()
                if self.rank > 0:
                    self.watchdog.stop()
                self.barrier()  # until then rank 0 takes the others' last messages
        except Exception:
            if not self.ranks.is_elastic:
                raise
            has_all = False
        self.watchdog.stop()
        if self.rank == 0:
            records.tell_end(int(status))
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
        status, message = FAULT, None
        if isinstance(error, StallError) or self._is_of_user(error):
            message = one_line(error)
            text = f"error{place}: {message}"
            if not isinstance(error, StallError | Unavailable):
                status = 1
        elif isinstance(error, SystemExit):
            status = error.code if isinstance(error.code, int) else 1
            text = f"{self.place} exits: {error.code}"
        else:
            text = f"failed on {self.place}\n{''.join(traceback.format_exception(error))}"
        print(f"{self.program}: {text}", file=sys.stderr, flush=True)
        if message:
            records.tell_error(message)
        records.tell_end(status)
        return status
