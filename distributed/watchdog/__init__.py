"""The watchdog notices when the ranks wait for one that does not come.

Every rank counts the operations among all ranks that it enters. A thread of each rank (thread.py) tells two
judges, ranks 0 and 1 (of those alive), twice a second which operation it is in, and which processes of its machine
are stopped; rank 1 judges only while rank 0 shows no sign of life. A judge names the ranks that keep the others
waiting (stalls.py), and ends the job when they do so for too long, or when the ranks do different things.
"""

import atexit
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed.joining import library
from distributed.watchdog.stalls import Kind, StallSettings

if TYPE_CHECKING:
    from distributed.watchdog.thread import Watch


class Watchdog:
    """Counts the operations of this rank, and watches over those of all ranks once it is started.

    Attributes:
      now: the number and the name of the last operation, and what this rank does. There is no lock: each change
        is a new tuple, and the thread reads the newest.
      depth: in how many operations, one inside another, this rank is.
      fence_s: after so many seconds of waiting for a stopped or silent rank, the judge has it killed by a rank of
        its machine, so that MPI reports its death; None to end the job after `stall_timeout` instead.
      stacks: the folder for the stacks of all threads if the job ends; None for one among the temporary files.
    """

    def __init__(self) -> None:
        self.now: tuple[int, str, Kind] = (0, "", Kind.OUTSIDE)
        self.depth = 0
        self.fence_s: float | None = None
        self.stacks: Path | None = None
        self._settings: StallSettings | None = None  # once it was started
        self._program = ""
        self._watch: Watch | None = None

    def operation(self, name: str) -> "Region":
        """A `with` block in which this rank waits for all ranks.

        All ranks enter the same operations in the same order. Only the outermost of several counts.
        """
        return Region(self, name)

    def working(self) -> "Region":
        """A `with` block of work for which the other ranks may wait however long it takes."""
        return Region(self, None)

    @property
    def is_running(self) -> bool:
        return self._watch is not None

    def recovery(self) -> "Region":
        """A `with` block in which survivors of a death find together again, from wherever each of them was."""
        return Region(self, None, counts=False)

    def start(self, comm: Any, node: int, settings: StallSettings, program: str) -> None:
        """Starts the thread; all ranks of `comm` call it together. It does nothing if `settings` turn it off."""
        self._settings, self._program = settings, program
        if comm.size == 1 or not (settings.stall_warning or settings.stall_timeout):
            return
        mpi = library()
        if mpi is None or not mpi.is_threaded:
            if comm.rank == 0:
                print(f"note: {mpi} allows no threads here: nothing will notice ranks that hang", file=sys.stderr)
            return
        from distributed.watchdog.processes import started_at
        from distributed.watchdog.thread import Watch

        self.now = (0, "", Kind.OUTSIDE)
        own = (os.getpid(), started_at(os.getpid()), socket.gethostname(), node)
        watched = comm.Dup()
        self._watch = Watch(self, watched, watched.allgather(own), settings, program)
        atexit.register(self.stop)  # before MPI is finalized
        self._watch.start()

    def stop(self, is_together: bool = True) -> None:
        """Ends the thread. `is_together`: all ranks call it now, so that no message is left over."""
        watch, self._watch = self._watch, None
        atexit.unregister(self.stop)
        if watch is not None:
            watch.end(is_together)

    def restart(self, comm: Any, node: int) -> None:
        """Goes on with the ranks of another communicator, after others have died; the count begins anew."""
        if self._settings is not None:
            self.stop(is_together=False)
            self.start(comm, node, self._settings, self._program)

    def fence(self, rank: int) -> None:
        """Has a rank's process killed by the ranks of its machine, also if it is stopped."""
        if self._watch is not None:
            self._watch.to_fence.append(rank)


class Region:
    """A `with` block of `Watchdog`: an operation; work for the others if `name` is None; or neither counted nor
    named, a recovery."""

    __slots__ = ("_before", "_counts", "_name", "_watchdog")

    def __init__(self, watchdog: Watchdog, name: str | None, counts: bool = True):
        self._watchdog, self._name, self._counts = watchdog, name, counts

    def __enter__(self) -> None:
        watchdog = self._watchdog
        self._before = count, name, _ = watchdog.now
        if self._name is None and self._counts:
            watchdog.now = (count, name, Kind.WORKING)
            return
        if self._name is not None and not watchdog.depth:
            count, name = count + 1, self._name
        watchdog.depth += 1
        watchdog.now = (count, name, Kind.WAITING)

    def __exit__(self, *error: object) -> None:
        watchdog = self._watchdog
        if self._name is not None or not self._counts:
            watchdog.depth -= 1
        count, name, _ = watchdog.now
        watchdog.now = (count, name, self._before[2])


def name_of(function: Callable) -> str:
    """The name of a function, for messages; the same on all ranks."""
    return getattr(function, "__name__", type(function).__name__)
