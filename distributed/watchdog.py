"""The watchdog notices when ranks wait for one that does not come.

All ranks enter the same operations in the same order, and count them. A thread of each tells rank 0
twice a second what its rank does. Rank 0 names the ranks that keep the others waiting, and ends the
job when they do so for too long, or when ranks do different things. Where rank 0 takes no messages,
each other rank judges it in the same way. A rank that is in one place too long writes its stacks.

Time is counted in ticks of the thread: it stands still while the process is stopped, and that is no
stall.
"""

import contextlib
import faulthandler
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from distributed.joining import started
from ringbase.errors import shortened
from ringbase.settings import Settings, setting

TICK_S = 0.5
SILENT_S = 3.0  # a rank that was not heard for so long is not alive
STACKS_S = 1.5  # the last rank writes its stacks so much later than the first
ABORT_S = 15  # a rank that MPI has not ended by then ends itself
# What a rank does: it computes, between two operations; it waits, in an operation; or it does work
# for which the others may wait as long as it takes.
COMPUTING, WAITING, WORKING = "computing", "waiting", "working"
MOST_FACTS = 4  # about so many ranks a message says something


class StallSettings(Settings):
    """When ranks that wait for others report it, and when they give up."""

    stall_warning: float = setting(
        30.0,
        "seconds that ranks wait for others before a warning names those; 0 for never",
        "machine",
        at_least=0,
    )
    stall_timeout: float = setting(
        600.0,
        "seconds that ranks wait before the job ends, with stacks in files; 0 for never",
        "machine",
        at_least=0,
    )


class StallError(Exception):
    """The ranks cannot go on, because of some of them."""


@dataclass
class Seen:
    """What is known of a rank: where it is, for how long it did not go on, and since when it is
    silent."""

    rank: int
    process: str
    count: int = 0
    name: str = ""
    activity: str = COMPUTING
    still_s: float = 0.0
    silent_s: float = 0.0

    def hear(self, *place) -> None:
        if WORKING in place or place != (self.count, self.name, self.activity):
            self.still_s = 0.0
        self.silent_s = 0.0
        self.count, self.name, self.activity = place

    def __str__(self) -> str:
        place = f", at {self.name}" if self.name else ""
        since = f"gave its last sign of life {self.silent_s:.0f} s ago"
        return f"rank {self.rank}, {self.process}, {since}{place}"


class Watchdog:
    """Counts the operations of this rank, and watches over those of all ranks once it is
    started."""

    def __init__(self, settings: StallSettings | None = None) -> None:
        self.settings = settings
        # The number and the name of the last operation, and what this rank does: a new tuple for
        # each change, so that the thread needs no lock.
        self.now = (0, "", COMPUTING)
        # the folder for the stacks of stuck ranks; else one of temporary files
        self.stacks: Path | None = None
        self._thread, self._leaving = threading.Thread(), threading.Event()

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

    def start(self, comm, fail: Callable[[Exception], None]) -> None:
        """Watches over the ranks of `comm`, which all call it; again after a death. `fail` ends the
        job."""
        self.stop()
        self.now = (0, "", COMPUTING)
        if comm.size == 1 or self.settings is None:
            return
        if started().Query_thread() == started().THREAD_MULTIPLE:
            self._leaving = threading.Event()
            arguments = (comm.Dup(), self.settings, fail, self._leaving)
            self._thread = threading.Thread(None, self._watch, "watchdog", arguments, daemon=True)
            self._thread.start()
        elif comm.rank == 0:
            print(
                "note: MPI allows no threads here: nothing will notice ranks that hang",
                file=sys.stderr,
            )

    def stop(self) -> None:
        """Ends the thread. Rank 0 does so last, when no other will send a message."""
        self._leaving.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def _watch(
        self, comm, settings: StallSettings, fail: Callable, leaving: threading.Event
    ) -> None:
        """What the thread does. Rank 0's watches over all ranks, another's over itself and rank
        0."""
        # MPI is failing, and the main thread will say so
        with contextlib.suppress(started().Exception):
            place = f"process {os.getpid()} on {socket.gethostname()}"
            everyone, tokens = zip(*comm.allgather((place, secrets.token_hex(8))), strict=True)
            watched = range(comm.size) if comm.rank == 0 else (0, comm.rank)
            ranks = {rank: Seen(rank, everyone[rank]) for rank in watched}
            first, own, message = ranks[0], ranks[comm.rank], None
            # a name that nobody else can have made before, with links to files of the user
            temporary = Path(tempfile.gettempdir(), f"ringbert-{tokens[0]}-stacks")
            while not leaving.wait(TICK_S):
                folder = self.stacks or temporary
                for seen in ranks.values():
                    seen.still_s += TICK_S
                    seen.silent_s += TICK_S
                own.hear(*self.now)
                if _is_time(own.still_s, settings.stall_timeout):
                    _write_stacks(folder / f"rank-{own.rank}.txt", str(own))
                if own is first:
                    _listen(comm, ranks)
                elif message is None or message.Test():
                    # Synchronous, so that no more than one message waits at a rank 0 that is
                    # stopped.
                    message = comm.issend((own.rank, *self.now), 0)
                    first.still_s = first.silent_s = 0.0
                if own is first or first.silent_s > SILENT_S:
                    _judge(own.rank, list(ranks.values()), settings, folder, fail)
            _listen(comm, ranks)  # the last messages, so that none is left over when MPI ends


def _listen(comm, ranks):
    while (message := comm.improbe()) is not None:
        rank, *place = message.recv()
        ranks[rank].hear(*place)


def _judge(rank, ranks, settings, folder, fail):
    """Compares what ranks do, and warns or ends the job when it is time to. It is a stall if one
    waits and none goes on."""
    for count in {seen.count for seen in ranks}:
        names = {seen.rank: seen.name for seen in ranks if seen.count == count}
        if len(set(names.values())) > 1:
            fail(StallError(f"the ranks do different things: {by_value(names)}"))
    waiting = [seen for seen in ranks if seen.activity == WAITING and seen.silent_s <= SILENT_S]
    stalled_s = min(seen.still_s for seen in ranks)
    is_end = 0 < settings.stall_timeout <= stalled_s
    if not waiting or not (is_end or (_is_time(stalled_s, settings.stall_warning) and rank <= 1)):
        return
    count = min(seen.count for seen in waiting)
    missing = [seen.rank for seen in ranks if seen.count < count]
    who = f"{_named(missing)} did not arrive" if missing else "all ranks arrived"
    here = [seen for seen in waiting if seen.count == count]
    waiters = _named(seen.rank for seen in here)
    where = f"{here[0].name}, where {waiters} waited for {stalled_s:.0f} s"
    facts = [str(seen) for seen in ranks if seen.count < count or seen.silent_s > SILENT_S]
    facts = facts or ["all are alive, so the network or the library that sums is the suspect"]
    text = "; ".join([f"{who} at {where}", *facts[:MOST_FACTS]])
    if not is_end:
        tqdm.write(f"warning: {text}", file=sys.stderr)  # above a bar if there is one
        sys.stderr.flush()
        return
    time.sleep(STACKS_S)
    signal.alarm(ABORT_S)
    limit = f"the job ends after --stall_timeout {settings.stall_timeout:g} s"
    fail(StallError(f"{text}; {limit}; the stacks of the ranks are in {folder}"))


def _write_stacks(path, text):
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # a link of somebody else's, too, and not what it points to
        with path.open("x") as file:
            print(time.strftime("%F %T"), f"{text}\n", file=file, flush=True)
            faulthandler.dump_traceback(file)


def _is_time(passed_s, due_s):
    """Whether this is the tick in which a time (0 for never) has passed."""
    return 0 < due_s <= passed_s < due_s + TICK_S


def _named(ranks):
    names = list(map(str, ranks))
    return f"rank{'s' * (len(names) != 1)} {shortened(names)}"


def by_value(values: Mapping[int, str]) -> str:
    """The ranks that have each value, such as "ranks 0, 2: 4; rank 1: 5"."""
    ranks: dict = {}
    for rank, value in values.items():
        ranks.setdefault(value, []).append(rank)
    return "; ".join(f"{_named(having)}: {value}" for value, having in ranks.items())
