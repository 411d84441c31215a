"""The thread of each rank that tells the judges what the rank does, and judges on rank 0 or 1.

Its clock stands still while the process is stopped, so that a job has not stalled which a scheduler suspends and
resumes as a whole.
"""

import faulthandler
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distributed import records
from distributed.watchdog.mailbox import ORDER_TAG, Mailbox, state_format
from distributed.watchdog.processes import kill, kill_launcher_later, state_of
from distributed.watchdog.stalls import (
    STOPPED,
    Kind,
    Seen,
    Stall,
    StallSettings,
    describe,
    find_mismatch,
    find_stall,
)  # fmt: skip

if TYPE_CHECKING:
    from distributed.watchdog import Watchdog

INTERVAL_S = 0.5
LONGEST_TICK_S = 3.0  # after a longer pause of this thread the process was probably stopped
SILENT_S = 10.0  # a rank that has not been heard for so long is silent
STACKS_S = 2.0  # the time to write stacks
ABORT_S = 15  # a rank that MPI has not ended by then ends itself
LAUNCHER_S = 10.0  # how long mpirun may take to end the job
NUM_JUDGES = 2  # the first living ranks
NUM_LOOKERS = 2  # ranks of a machine that look at the processes of all
WRITE_STACKS, KILL = 1, 2


class Watch(threading.Thread):
    """The thread. `places`: the process of each rank, when it started, its host and its node."""

    def __init__(
        self,
        watchdog: "Watchdog",
        comm: Any,
        places: Sequence[tuple[int, str, str, int]],
        settings: StallSettings,
        program: str,
    ):
        super().__init__(daemon=True, name="watchdog")
        self.to_fence: deque[int] = deque()
        self._watchdog, self._comm, self._places = watchdog, comm, places
        self._settings, self._program = settings, program
        self._rank, self._judges = comm.rank, tuple(range(NUM_JUDGES))
        self._ranks = [Seen(rank, pid, host, node) for rank, (pid, _, host, node) in enumerate(places)]
        self._nodes: dict[int, list[Seen]] = {}
        for seen in self._ranks:
            self._nodes.setdefault(seen.node, []).append(seen)
        self._peers = self._nodes[self._ranks[self._rank].node]
        self._silent_s = max(8 * INTERVAL_S, min(SILENT_S, settings.stall_warning or SILENT_S))
        state = state_format(max(map(len, self._nodes.values())))
        self._own, self._mailbox = np.zeros(1, state), Mailbox(comm, state)
        self._clock, self._ticked = 0.0, time.monotonic()
        self._state, self._since = watchdog.now, 0.0
        self._taken = 0.0  # when a judge last took a message of this rank
        self._progress: tuple = ()  # what the ranks do
        self._progressed = 0.0  # when that changed
        self._warned = -1  # the operation that was warned about
        self._fenced: set[int] = set()
        self._ending, self._is_together, self._is_over = threading.Event(), True, False

    def run(self) -> None:
        try:
            while not self._ending.wait(INTERVAL_S):
                self._tick()
                if not self._is_over:
                    self._judge()
            if self._is_together:
                self._part()
        except Exception as error:  # MPI is failing, and the main thread will say so; or this is a bug
            if not self._ending.is_set() and not self._mailbox.dead:
                self._say(f"warning: the watchdog of rank {self._rank} has ended: {type(error).__name__}: {error}")

    def end(self, is_together: bool) -> None:
        self._is_together = is_together
        self._ending.set()
        self.join(10)

    def _tick(self) -> None:
        now = time.monotonic()
        self._clock, self._ticked = self._clock + min(now - self._ticked, LONGEST_TICK_S), now
        if self._watchdog.now is not self._state:
            self._state, self._since = self._watchdog.now, self._clock
        count, name, kind = self._state
        own = self._own[0]
        own["rank"], own["count"], own["kind"], own["age"] = self._rank, count, kind, self._clock - self._since
        own["name"] = name.encode()[:80]
        if self._rank in [peer.rank for peer in self._peers if not peer.is_dead][:NUM_LOOKERS]:
            own["letters"][: len(self._peers)] = [state_of(*self._places[peer.rank][:2]) for peer in self._peers]
        for judge in self._judges:
            if judge == self._rank:
                self._hear(own)
            elif self._mailbox.tell(judge, self._own):
                self._taken = self._clock
        while self.to_fence:
            self._fence(self.to_fence.popleft())
        self._listen()

    def _listen(self) -> None:
        for tag, message in self._mailbox.taken():
            if tag == ORDER_TAG:
                self._obey(int(message["what"]), int(message["rank"]), message["text"].decode(errors="ignore"))
            else:
                self._hear(message)
        if any(not self._ranks[rank].is_dead for rank in self._mailbox.dead):
            for seen in self._ranks:
                seen.is_dead = seen.rank in self._mailbox.dead
                seen.heard = self._clock  # a new judge has heard of none
            living = [seen.rank for seen in self._ranks if not seen.is_dead]
            self._judges, self._taken = tuple(living[:NUM_JUDGES]), self._clock

    def _hear(self, state: Any) -> None:
        seen = self._ranks[state["rank"]]
        seen.count, seen.name = int(state["count"]), state["name"].decode(errors="ignore")
        seen.kind, seen.age, seen.heard = Kind(state["kind"]), float(state["age"]), self._clock
        if state["letters"][0]:
            for peer, letter in zip(self._nodes[seen.node], state["letters"], strict=False):
                peer.letter = letter.decode()

    def _part(self) -> None:
        """Tells the judges that this rank leaves, and leaves no messages behind."""
        self._watchdog.now = (*self._watchdog.now[:2], Kind.LEFT)
        give_up = time.monotonic() + 2 * INTERVAL_S
        while not self._mailbox.has_delivered() and time.monotonic() < give_up:
            self._listen()
            time.sleep(0.002)
        self._tick()
        self._mailbox.close(4 * INTERVAL_S)

    # -- judgement --------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        first = self._ranks[self._judges[0]]
        is_first_gone = first.kind is Kind.LEFT or first.is_silent(self._clock, self._silent_s)
        if self._rank not in self._judges:
            self._judge_judges()
        elif self._rank == first.rank or is_first_gone:
            self._judge_all()

    def _judge_all(self) -> None:
        """Compares what the ranks do."""
        # Survivors of a death are where their errors left them, not in one place.
        if not self._mailbox.dead and (mismatch := find_mismatch(self._ranks)):
            self._end_job(mismatch)
            return
        progress = tuple((seen.count, seen.kind) for seen in self._ranks)
        stall = find_stall(self._ranks, self._clock, self._silent_s)
        if stall is None or progress != self._progress:
            self._progress, self._progressed = progress, self._clock
            return
        stalled_s, warning_s, timeout_s = (
            self._clock - self._progressed, self._settings.stall_warning, self._settings.stall_timeout,
        )  # fmt: skip
        if warning_s and stalled_s >= warning_s and self._warned != stall.count:
            self._warned = stall.count
            self._say(f"warning: {self._described(stall, stalled_s)}")
        if self._watchdog.fence_s is not None and stalled_s >= self._watchdog.fence_s:
            self._fence_silent(stall, stalled_s)
        if timeout_s and stalled_s >= timeout_s:
            limit = f"the job ends after --stall_timeout {timeout_s:g} s"
            self._end_job(f"{self._described(stall, stalled_s)}; {limit}", stall.silent)

    def _described(self, stall: Stall, stalled_s: float) -> str:
        return describe(stall, self._ranks, stalled_s, self._clock, self._silent_s)

    def _judge_judges(self) -> None:
        """Ends this rank if it waits and no judge takes its messages: they are stopped, or the network is cut."""
        if self._state[2] is not Kind.WAITING:
            return
        silent_s = self._clock - self._taken
        is_first = self._rank == next(peer.rank for peer in self._peers if peer.rank not in self._judges)
        warning_s, timeout_s = self._settings.stall_warning, self._settings.stall_timeout
        here = [peer.rank for peer in self._peers if peer.rank in self._judges]
        stopped = [rank for rank in here if state_of(*self._places[rank][:2]) in STOPPED]
        judges = " and ".join(
            f"rank {rank} on {self._ranks[rank].host}{' (stopped)' * (rank in stopped)}" for rank in self._judges
        )
        text = (
            f"rank {self._rank} on {socket.gethostname()} waits at {self._state[1]}, and {judges} have shown no "
            f"sign of life for {silent_s:.0f} s"
        )
        if is_first and warning_s and silent_s > warning_s + self._silent_s and self._warned < 0:
            self._warned = 0
            self._say(f"warning: {text}")
        # Until then rank 1 has had the time to end the job; the other ranks of this machine come later.
        if timeout_s and silent_s > timeout_s + self._silent_s + ABORT_S * (2 - is_first):
            self._end_job(f"{text}; the job ends after --stall_timeout {timeout_s:g} s", stopped)

    # -- the end ----------------------------------------------------------------------------------------------

    def _fence_silent(self, stall: Stall, stalled_s: float) -> None:
        """Has the stopped and the silent ranks killed, if a rank of their machine is alive."""
        alive = {seen.node for seen in self._ranks if not seen.is_dead and seen.rank not in stall.silent}
        ranks = [rank for rank in stall.silent if self._ranks[rank].node in alive and rank not in self._fenced]
        if ranks:
            self._say(f"warning: {self._described(stall, stalled_s)}; it is killed, and the others go on")
        for rank in ranks:
            self._fenced.add(rank)
            self._fence(rank)

    def _fence(self, rank: int) -> None:
        for peer in self._nodes[self._ranks[rank].node]:
            if peer.rank == self._rank:
                kill(*self._places[rank][:2])
            elif peer.rank != rank:
                self._mailbox.order([peer.rank], KILL, rank)

    def _end_job(self, text: str, silent: Sequence[int] = ()) -> None:
        """Has all ranks write their stacks, says why, and ends the job."""
        others = [seen.rank for seen in self._ranks if seen.rank != self._rank]
        self._mailbox.order(others, WRITE_STACKS, text=text)
        self._write_stacks(text)
        self._serve(STACKS_S)
        self._say(f"{self._program}: error: {text}; the stacks of the ranks are in {self._folder()}")
        records.tell("ended 70")
        self._serve(0.3)
        for rank in silent:
            self._fence(rank)
        self._serve(0.3)
        if len(self._nodes) > 1:
            kill_launcher_later(LAUNCHER_S)
        self._comm.Abort(70)

    def _serve(self, seconds: float) -> None:
        """Gives MPI the time to deliver messages."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._listen()
            time.sleep(0.02)

    def _obey(self, what: int, rank: int, text: str) -> None:
        if what == KILL:
            kill(*self._places[rank][:2])
        elif what == WRITE_STACKS:
            self._write_stacks(text)

    def _write_stacks(self, text: str) -> None:
        """Writes what all threads of this rank do into a file of its own, and prepares for the end."""
        self._is_over = True
        signal.alarm(ABORT_S)  # should MPI not end this rank
        count, name, kind = self._state
        head = (
            f"{text}\n\nrank {self._rank}, process {os.getpid()} on {socket.gethostname()}, "
            f"{time.strftime('%F %T')}\noperation {count}: {name} ({kind.name.lower()})\n\n"
        )
        for folder in (self._folder(), Path(tempfile.gettempdir())):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with (folder / f"rank-{self._rank}.txt").open("w") as file:
                    file.write(head)
                    file.flush()
                    faulthandler.dump_traceback(file)
                return
            except OSError as error:
                self._say(f"warning: the stacks of rank {self._rank} do not fit into {folder}: {error.strerror}")

    def _folder(self) -> Path:
        job = f"{self._program.replace(' ', '-')}-{self._places[0][0]}-stacks"
        return self._watchdog.stacks or Path(tempfile.gettempdir()) / job

    def _say(self, text: str) -> None:
        from tqdm import tqdm

        tqdm.write(text, file=sys.stderr)  # above a bar if there is one
        sys.stderr.flush()
