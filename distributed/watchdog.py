"""The watchdog notices when ranks wait for one that does not come.

All ranks enter the same operations in the same order, and count them. A thread of each tells rank 0 twice a second
what its rank does. Rank 0 names the ranks that keep the others waiting, and ends the job when they do so for too
long, or when ranks do different things. A rank that waits too long ends the job itself if rank 0 takes none of its
messages. A rank that is in one place too long writes its stacks.

Time is counted in ticks of the thread: it stands still while the process is stopped, and that is no stall.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from distributed.joining import started
from ringbase.errors import shortened
from ringbase.settings import Settings, setting

TICK_S = 0.5
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

    def __init__(self, settings: StallSettings | None = None) -> None:
        self.settings = settings
        self.now: tuple[int, str, str] = (0, "", COMPUTING)
        self.stacks: Path | None = None
        self._watch: Watch | None = None

    def working(self) -> contextlib.AbstractContextManager[None]:
        """A block of work for which the other ranks may wait however long it takes."""
        return self.operation("", WORKING)

    @contextlib.contextmanager
    def operation(self, name: str, activity: str = WAITING) -> Iterator[None]:
        """A block in which this rank waits for all ranks. Only the outermost of several counts."""
        count, last, before = self.now
        is_counted = name and before != WAITING
        self.now = (count + 1, name, activity) if is_counted else (count, last, activity)
        try:
            yield
        finally:
            self.now = (*self.now[:2], before)

    def start(self, comm: Any, fail: Callable[[Exception], None]) -> None:
        """Watches over the ranks of `comm`, which all call it; again after a death. `fail` ends the job."""
        self.stop()
        self.now = (0, "", COMPUTING)
        if comm.size == 1 or self.settings is None:
            return
        if started().Query_thread() == started().THREAD_MULTIPLE:
            self._watch = Watch(self, comm.Dup(), self.settings, fail)
            self._watch.start()
        elif comm.rank == 0:
            print("note: MPI allows no threads here: nothing will notice ranks that hang", file=sys.stderr)

    def stop(self) -> None:
        """Ends the thread. Rank 0 does so last, when no other will send a message."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.leaving.set()
            watch.join(10)


@dataclass
class Seen:
    """What is known of a rank: its process, the operation that it entered last, and since when it is silent."""

    rank: int
    process: str
    count: int = 0
    name: str = ""
    activity: str = COMPUTING
    silent_s: float = 0.0

    def __str__(self) -> str:
        place = f"at {self.name}" if self.name else "at its start"
        return f"rank {self.rank}, {self.process}, gave its last sign of life {self.silent_s:.0f} s ago, {place}"


class Watch(threading.Thread):
    """The thread of a rank, and what it knows of all ranks (rank 0), or of rank 0 (the others)."""

    def __init__(self, watchdog: Watchdog, comm: Any, settings: StallSettings, fail: Callable[[Exception], None]):
        super().__init__(daemon=True, name="watchdog")
        self.leaving = threading.Event()
        self._watchdog, self._comm, self._settings, self._fail = watchdog, comm, settings, fail
        self._process = f"process {os.getpid()} on {socket.gethostname()}"
        self._ranks = [Seen(rank, process) for rank, process in enumerate(comm.allgather(self._process))]
        self._temporary = Path(tempfile.gettempdir(), f"ringbert-{self._ranks[0].process.split()[1]}-stacks")
        self._own, self._own_s = watchdog.now, 0.0  # what this rank does, and for how long
        self._progress: list = []  # what the ranks do
        self._stalled_s = 0.0  # for how long that is so while one waits
        self._message: Any = None  # the last one to rank 0

    def run(self) -> None:
        with contextlib.suppress(started().Exception):  # MPI is failing, and the main thread will say so
            while not self.leaving.wait(TICK_S):
                self._tick()
            self._listen()  # the last messages, so that none is left over when MPI ends

    def _tick(self) -> None:
        for seen in self._ranks:
            seen.silent_s += TICK_S
        self._own_s = self._own_s + TICK_S if self._watchdog.now is self._own else 0.0
        self._own, first, rank = self._watchdog.now, self._ranks[0], self._comm.rank
        if self._own[2] != WORKING and is_time(self._own_s, self._settings.stall_timeout):
            self._write_stacks()
        if rank == 0:
            self._hear(0, *self._own)
            self._listen()
            self._judge()
        elif self._message is None or self._message.Test():
            # Synchronous, so that no more than one message waits at a rank 0 that is stopped.
            self._message, first.silent_s = self._comm.issend((rank, *self._own), 0), 0.0
        elif self._own[2] == WAITING and first.silent_s > SILENT_S:
            text = f"rank {rank}, {self._process}, waits at {self._own[1]}; {first}"
            self._complain(min(self._own_s, first.silent_s) - GRACE_S, text)

    def _listen(self) -> None:
        while (message := self._comm.improbe()) is not None:
            self._hear(*message.recv())

    def _hear(self, rank: int, *state: Any) -> None:
        self._ranks[rank] = Seen(rank, self._ranks[rank].process, *state)

    def _judge(self) -> None:
        """Rank 0 compares what the ranks do."""
        for count in {seen.count for seen in self._ranks}:
            names = {seen.rank: seen.name for seen in self._ranks if seen.count == count}
            if len(set(names.values())) > 1:
                self._fail(StallError(f"the ranks do different things: {by_value(names)}"))
        alive = [seen for seen in self._ranks if seen.silent_s <= SILENT_S]
        count = min((seen.count for seen in alive if seen.activity == WAITING), default=0)
        is_worked_for = any(seen.activity == WORKING and seen.count <= count for seen in alive)
        progress = [(seen.count, seen.activity) for seen in self._ranks]
        self._stalled_s += TICK_S
        if not count or is_worked_for or progress != self._progress:
            self._progress, self._stalled_s = progress, 0.0
            return
        waiting = [seen for seen in alive if seen.activity == WAITING and seen.count == count]
        missing = [seen.rank for seen in self._ranks if seen.count < count]
        who = f"{named(missing)} did not arrive" if missing else "all ranks arrived"
        where = f"{waiting[0].name}, where {named(seen.rank for seen in waiting)} waited"
        facts = [str(seen) for seen in self._ranks if seen.count < count or seen not in alive][:MOST_FACTS]
        facts = facts or ["all are alive, so the network or the library that sums is the suspect"]
        self._complain(self._stalled_s, "; ".join([f"{who} at {where} for {self._stalled_s:.0f} s", *facts]))

    def _complain(self, stalled_s: float, text: str) -> None:
        """Warns, and ends the job when it is time to."""
        timeout_s, stacks = self._settings.stall_timeout, self._watchdog.stacks or self._temporary
        if timeout_s and stalled_s >= timeout_s:
            time.sleep(GRACE_S / 2)
            signal.alarm(ABORT_S)
            limit = f"the job ends after --stall_timeout {timeout_s:g} s"
            self._fail(StallError(f"{text}; {limit}; the stacks of the ranks are in {stacks}"))
        elif is_time(stalled_s, self._settings.stall_warning) and self._comm.rank <= 1:
            tqdm.write(f"warning: {text}", file=sys.stderr)  # above a bar if there is one
            sys.stderr.flush()

    def _write_stacks(self) -> None:
        """A file says what all threads of this rank do."""
        path = (self._watchdog.stacks or self._temporary) / f"rank-{self._comm.rank}.txt"
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w") as file:
                print(time.strftime("%F %T"), f"{self._process}: {self._own}\n", file=file, flush=True)
                faulthandler.dump_traceback(file)


def is_time(passed_s: float, due_s: float) -> bool:
    """Whether this is the tick in which a time (0 for never) has passed."""
    return 0 < due_s <= passed_s < due_s + TICK_S


def named(ranks: Iterable[int]) -> str:
    names = list(map(str, ranks))
    return f"rank{'s' * (len(names) != 1)} {shortened(names)}"


def by_value(values: Mapping[int, str]) -> str:
    """The ranks that have each value, such as "ranks 0, 2: 4; rank 1: 5"."""
    ranks: dict[str, list[int]] = {}
    for rank, value in values.items():
        ranks.setdefault(value, []).append(rank)
    return "; ".join(f"{named(having)}: {value}" for value, having in ranks.items())
