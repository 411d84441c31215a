"""The watchdog notices when ranks wait for one that does not come.

All ranks enter the same operations in the same order, and count them. A thread of each tells rank 0 twice a second
what its rank does. Rank 0 names the ranks that keep the others waiting, and ends the job when they do so for too
long, or when ranks do different things. A rank that waits too long ends the job itself if rank 0 takes none of its
messages. A rank that is in one place too long writes its stacks.
"""

import contextlib
import faulthandler
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from distributed.joining import started
from ringbase.errors import shortened
from ringbase.settings import Settings, setting

INTERVAL_S = 0.5
LONGEST_TICK_S = 3.0  # in a longer one the process was stopped; its clock stands still then, and that is no stall
SILENT_S = 3.0  # a rank that was not heard for so long is not alive
GRACE_S = 3.0  # rank 0 ends the job so much earlier than others; half of it is for stacks
ABORT_S = 15  # a rank that MPI has not ended by then ends itself
# What a rank does: it computes, between two operations; it waits, in an operation; or it does work for which the
# others may wait as long as it takes.
COMPUTING, WAITING, WORKING = "computing", "waiting", "working"
MOST_FACTS = 4  # about so many ranks a message says something


@dataclass(frozen=True, kw_only=True)
class StallSettings(Settings):
    """When ranks that wait for others report it, and when they give up."""

    stall_warning: float = setting(
        30.0, "seconds that ranks wait for others before a warning names those; 0 for never", "machine", at_least=0
    )
    stall_timeout: float = setting(
        600.0,
        "seconds that ranks wait for others before the job ends with all stacks in files; 0 for never",
        "machine",
        at_least=0,
    )


class StallError(Exception):
    """The ranks cannot go on, because of some of them."""


class Watchdog:
    """Counts the operations of this rank, and watches over those of all ranks once it is started.

    Attributes:
      now: the number and the name of the last operation, and what this rank does. There is no lock: each change is
        a new tuple, and the thread reads the newest.
      stacks: the folder for the stacks of a rank that is stuck; None for one among the temporary files.
    """

    def __init__(self) -> None:
        self.now: tuple[int, str, str] = (0, "", COMPUTING)
        self.stacks: Path | None = None
        self._watch: Watch | None = None
        self._arguments: tuple | None = None  # of `start`, but its communicator

    def operation(self, name: str) -> contextlib.AbstractContextManager[None]:
        """A block in which this rank waits for all ranks. Only the outermost of several counts."""
        return self._doing(WAITING, name)

    def working(self) -> contextlib.AbstractContextManager[None]:
        """A block of work for which the other ranks may wait however long it takes."""
        return self._doing(WORKING)

    @contextlib.contextmanager
    def _doing(self, activity: str, name: str = "") -> Iterator[None]:
        count, last, before = self.now
        is_counted = name and before != WAITING
        self.now = (count + 1, name, activity) if is_counted else (count, last, activity)
        try:
            yield
        finally:
            self.now = (*self.now[:2], before)

    def start(self, comm: Any, settings: StallSettings, program: str, fail: Callable[[Exception], None]) -> None:
        """Starts the thread; all ranks of `comm` call it together. `fail` ends the job, from the thread."""
        self._arguments = settings, program, fail
        if comm.size == 1 or not (settings.stall_warning or settings.stall_timeout):
            return
        if started().Query_thread() < started().THREAD_MULTIPLE:
            if comm.rank == 0:
                print("note: MPI allows no threads here: nothing will notice ranks that hang", file=sys.stderr)
            return
        self.now = (0, "", COMPUTING)
        self._watch = Watch(self, comm.Dup(), settings, program, fail)
        self._watch.start()

    def stop(self) -> None:
        """Ends the thread. Rank 0 does so last, when no other will send a message."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.end()

    def restart(self, comm: Any) -> None:
        """Goes on with the ranks of another communicator, after others have died; the count begins anew."""
        if self._arguments is not None:
            self.stop()
            self.start(comm, *self._arguments)


@dataclass
class Seen:
    """What is known of a rank: its process, the operation that it entered last, and when it was `heard`."""

    rank: int
    pid: int
    host: str
    heard: float = 0.0
    count: int = 0
    name: str = ""
    activity: str = COMPUTING

    def is_stopped(self) -> bool:
        """Whether the process is stopped, or traced by a debugger; False on another machine."""
        with contextlib.suppress(OSError):  # it has ended
            fields = Path(f"/proc/{self.pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            return self.host == socket.gethostname() and fields[0] in "Tt"
        return False

    def is_alive(self, clock: float) -> bool:
        return clock - self.heard <= SILENT_S and not self.is_stopped()

    def fact(self, clock: float) -> str:
        process, silent_s = f"rank {self.rank}: process {self.pid} on {self.host}", clock - self.heard
        if self.is_stopped():
            return f"{process} is stopped; kill -CONT {self.pid} there lets it go on"
        if silent_s > SILENT_S:
            return f"{process} has shown no sign of life for {silent_s:.0f} s"
        return f"{process} is alive; it was last at {self.name or 'its start'}"


class Watch(threading.Thread):
    """The thread of a rank, and what it knows of all ranks (rank 0), or of rank 0 (the others)."""

    def __init__(self, watchdog: Watchdog, comm: Any, settings: StallSettings, program: str, fail: Callable):
        super().__init__(daemon=True, name="watchdog")
        self.settings, self.program, self.fail = settings, program, fail
        self._watchdog, self._comm, self._rank = watchdog, comm, comm.rank
        processes = comm.allgather((os.getpid(), socket.gethostname()))
        self._ranks = [Seen(rank, *process) for rank, process in enumerate(processes)]
        self._clock, self._ticked = 0.0, time.monotonic()
        self._state, self._since = watchdog.now, 0.0
        self._message: Any = None  # the last one to rank 0
        self._progress: list = []  # what the ranks do
        self._progressed = 0.0  # when that changed
        self._warned = 0  # the operation that was warned about
        self._has_stacks = False
        self._leaving = threading.Event()

    def run(self) -> None:
        with contextlib.suppress(started().Exception):  # MPI is failing, and the main thread will say so
            while not self._leaving.wait(INTERVAL_S):
                self._tick()
            self._listen()  # the last messages, so that none is left over when MPI ends

    def end(self) -> None:
        self._leaving.set()
        self.join(10)

    def _tick(self) -> None:
        now = time.monotonic()
        self._clock, self._ticked = self._clock + min(now - self._ticked, LONGEST_TICK_S), now
        if self._watchdog.now is not self._state:
            self._state, self._since = self._watchdog.now, self._clock
        activity, here_s, timeout_s = self._state[2], self._clock - self._since, self.settings.stall_timeout
        if activity != WORKING and timeout_s and here_s >= timeout_s and not self._has_stacks:
            self._write_stacks()
        if self._rank == 0:
            self._hear(0, *self._state)
            self._listen()
            self._judge()
        elif self._message is None or self._message.Test():
            # Synchronous, so that no more than one message waits at a rank 0 that is stopped.
            self._message = self._comm.issend((self._rank, *self._state), 0)
            self._ranks[0].heard = self._clock
        elif activity == WAITING and not self._ranks[0].is_alive(self._clock):
            text = f"rank {self._rank} on {socket.gethostname()} waits at {self._state[1]}"
            silent_s, fact = self._clock - self._ranks[0].heard, self._ranks[0].fact(self._clock)
            self._complain(min(here_s - GRACE_S, silent_s), f"{text}; {fact}")

    def _listen(self) -> None:
        while (message := self._comm.improbe()) is not None:
            self._hear(*message.recv())

    def _hear(self, rank: int, *state: Any) -> None:
        self._ranks[rank] = Seen(rank, self._ranks[rank].pid, self._ranks[rank].host, self._clock, *state)

    def _judge(self) -> None:
        """Rank 0 compares what the ranks do."""
        places: dict[tuple[int, str], list[Seen]] = {}
        for seen in self._ranks:
            places.setdefault((seen.count, seen.name), []).append(seen)
        counts = [count for count, _ in places]
        if different := {place: places[place] for place in places if counts.count(place[0]) > 1}:
            texts = [f"{_named(ranks)}: {name}" for (_, name), ranks in different.items()]
            self.fail(StallError(f"the ranks do different things: {'; '.join(texts)}"))
        alive = [seen for seen in self._ranks if seen.is_alive(self._clock)]
        waiting = [seen for seen in alive if seen.activity == WAITING]
        count = min((seen.count for seen in waiting), default=0)
        is_worked_for = any(seen.activity == WORKING and seen.count <= count for seen in alive)
        progress = [(seen.count, seen.activity) for seen in self._ranks]
        if not waiting or is_worked_for or progress != self._progress:
            self._progress, self._progressed = progress, self._clock
            return
        waiting = [seen for seen in waiting if seen.count == count]
        missing = [seen for seen in self._ranks if seen.count < count]
        place, stalled_s = waiting[0].name, self._clock - self._progressed
        text = f"all ranks arrived at {place}, but it did not end for {stalled_s:.0f} s"
        if missing:
            text = f"{_named(missing)} did not arrive at {place}, where {_named(waiting)} waited"
            text += f" for {stalled_s:.0f} s"
        blamed = [seen for seen in self._ranks if seen in missing or seen not in alive]
        facts = [seen.fact(self._clock) for seen in blamed[:MOST_FACTS]]
        facts = facts or ["all are alive, so the network or the library that sums is the suspect"]
        self._complain(stalled_s, "; ".join([text, *facts]))

    def _complain(self, stalled_s: float, text: str) -> None:
        """Warns once for each operation, and ends the job when it is time to."""
        warning_s, timeout_s, count = self.settings.stall_warning, self.settings.stall_timeout, self._state[0]
        if timeout_s and stalled_s >= timeout_s:
            time.sleep(GRACE_S / 2)
            signal.alarm(ABORT_S)
            limit = f"the job ends after --stall_timeout {timeout_s:g} s"
            self.fail(StallError(f"{text}; {limit}; the stacks of the ranks are in {self._folder()}"))
        elif warning_s and stalled_s >= warning_s and self._warned != count and self._rank <= 1:
            self._warned = count
            _warn(text)

    def _write_stacks(self) -> None:
        """A file says what all threads of this rank do."""
        self._has_stacks = True
        place = f"rank {self._rank}, {socket.gethostname()}: {self._state}"
        try:
            self._folder().mkdir(parents=True, exist_ok=True)
            with (self._folder() / f"rank-{self._rank}.txt").open("w") as file:
                print(time.strftime("%F %T"), place, end="\n\n", file=file, flush=True)
                faulthandler.dump_traceback(file)
        except OSError as error:
            _warn(f"the stacks of rank {self._rank} are not written: {error}")

    def _folder(self) -> Path:
        job = f"{self.program.replace(' ', '-')}-{self._ranks[0].pid}-stacks"
        return self._watchdog.stacks or Path(tempfile.gettempdir()) / job


def _named(ranks: Sequence[Seen]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {shortened(str(seen.rank) for seen in ranks)}"


def _warn(text: str) -> None:
    tqdm.write(f"warning: {text}", file=sys.stderr)  # above a bar if there is one
    sys.stderr.flush()
