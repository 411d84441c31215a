"""One run of mpirun: passes on what it prints and the signals that come, and reads what the ranks tell."""

import ctypes
import math
import os
import re
import select
import signal
import subprocess
import sys
import time
from types import FrameType

from distributed import records
from distributed.mpirun import Command
from ringbase.errors import Preempted

TAG = rb"(?:\[[^\]\n]*\](?:<std\w+>)?:? ?)?"  # before each line by mpirun --tag-output, or Hydra's -l
MARK = records.MARK.encode()
RECORD = re.compile(TAG + MARK + rb"(?P<record>[^\n]*)\n")
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAVING = signal.SIGUSR1  # mpirun forwards it to the ranks
REASONS = {  # why signals end processes
    signal.SIGKILL: "out of memory?",
    signal.SIGBUS: "is /dev/shm full?",
    signal.SIGSEGV: "a crash in compiled code",
    signal.SIGALRM: "not all ranks joined within --start-timeout: one ended, or hosts cannot reach each other",
    signal.SIGILL: "compiled for another processor?",
}
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
GRACE_S, KILL_S = 30.0, 10.0  # from the end of a job to SIGTERM to its mpirun, and from that to SIGKILL
FINAL = (0, Preempted.STATUS, 1, 2)  # statuses after which another start would end in the same way


class MpirunProcess:
    """One run of mpirun, or of a program that is alone.

    Attributes:
      status: the job's exit status, when it has ended.
      has_joined, has_saved: the ranks have joined MPI, and have saved a checkpoint.
      ended: the status that the ranks told at the end of the program.
      was_killed: mpirun did not end by itself.
    """

    def __init__(self, command: Command, environment: dict[str, str], is_elastic: bool) -> None:
        self._is_elastic = is_elastic
        self.status, self.has_joined, self.has_saved, self.was_killed = 0, False, False, False
        self.ended: int | None = None
        self._over_s = math.inf  # when mpirun should have ended
        self._is_ending = False
        has_terminal = sys.stdin is not None and sys.stdin.isatty()  # which belongs to our own group
        self._process = subprocess.Popen(
            command.argv,
            env={**environment, **command.variables},
            stdin=subprocess.DEVNULL if has_terminal else None,
            stderr=subprocess.PIPE,
            process_group=0,  # so that Ctrl-C reaches this process alone
            preexec_fn=end_with_parent,
        )

    def wait(self) -> None:
        """Passes standard error on until mpirun has ended."""
        assert self._process.stderr is not None
        with self._process.stderr as stderr:
            self._pass_on(stderr.fileno())
        while self._process.poll() is None:
            self._end_late()
            time.sleep(0.1)
        status = self._process.returncode
        self.status = self._status_after(128 - status if status < 0 else status)

    def broke_off(self) -> bool:
        """Whether it failed for a reason that need not come back when it is started again."""
        if self.ended is not None:
            return self.ended not in FINAL
        return self.has_joined or self._is_elastic or self.status > 128

    def send(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def end(self) -> None:
        """Ends the ranks at once."""
        self._over_s = time.monotonic() - GRACE_S
        self._end_late()

    def _pass_on(self, stderr: int) -> None:
        """Passes on all but the records, also lines that are not complete, so that progress bars move."""
        held = b""
        while True:
            self._end_late()
            if not select.select([stderr], [], [], 1.0)[0]:
                if self._process.poll() is not None:
                    return  # a remote shell may still hold the other end
                continue
            data = os.read(stderr, 65536)
            text = held + data.replace(b"\0", b"")  # with which PRRTE ends some of its messages
            while match := RECORD.search(text):
                self._write(text[: match.start()])
                self._on_record(match["record"].decode(errors="replace"))
                text = text[match.end() :]
            passed, mark, held = text.partition(MARK)
            held = mark + held
            self._write(passed)
            if not data:
                return

    def _write(self, data: bytes) -> None:
        """Passes data on, unless the ranks have told why they end: what mpirun says of it would hide that."""
        if not self.ended:  # None, or 0
            write(data)

    def _on_record(self, record: str) -> None:
        self.has_joined |= record == "joined"
        self.has_saved |= record == "saved"
        if self.ended is None and (match := re.fullmatch(r"ended (\d+)", record)):
            self.ended, self._over_s = int(match[1]), time.monotonic()

    def _end_late(self) -> None:
        """Ends an mpirun that does not end after its job, as when it cannot reach a host."""
        late_s = time.monotonic() - self._over_s - GRACE_S
        if late_s >= KILL_S:
            self.was_killed = True
            self.send(signal.SIGKILL)
        elif late_s >= 0 and not self._is_ending:
            self._is_ending = True
            self.send(signal.SIGTERM)

    def _status_after(self, mpirun_status: int) -> int:
        """The exit status: what the ranks told, else mpirun's."""
        if self.ended == 0:  # a rank that is killed after the end has done its work
            return 0 if self._is_elastic or mpirun_status > 128 else mpirun_status
        if self.ended is not None:
            return self.ended
        number = next((known for known in signal.Signals if known == mpirun_status - 128), None)
        if number is not None and not self._is_ending:
            reason = f" ({REASONS[number]})" if number in REASONS else ""
            say(f"a process was ended by {number.name}{reason}")
        if mpirun_status == 0 and (self.has_joined or self._is_elastic):
            say("the ranks ended before the program was complete: was a host lost?")
            return 1
        return mpirun_status


class Signals:
    """What users and batch systems send to bert-launch. `number` is the first signal, `process` runs now.

    The first SIGINT, SIGTERM or SIGHUP asks ranks that have joined to save and stop, the second one ends them at
    once; SIGUSR1 is passed on.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.process: MpirunProcess | None = None
        self._has_asked = False
        for number in (*ENDING, SAVING):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
        if self.process is None:
            return
        if number == SAVING:
            self.process.send(SAVING)
        elif self._has_asked or not self.process.has_joined:
            say(f"{signal.Signals(number).name} ends the ranks")
            self.process.end()
        else:
            self._has_asked = True
            advice = "the ranks finish this step, save and exit; send it again to end them at once"
            say(f"{signal.Signals(number).name}: {advice}")
            self.process.send(SAVING)

    def wait(self, seconds: float) -> None:
        """Waits, but not after a signal."""
        deadline = time.monotonic() + seconds
        while self.number is None and time.monotonic() < deadline:
            time.sleep(0.1)


def end_with_parent() -> None:
    """This process gets SIGTERM when the one that started it ends, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def say(text: str) -> None:
    write(f"bert-launch: {text}\n".encode())


def write(data: bytes) -> None:
    """Writes to standard error; the job goes on when nobody reads it any more."""
    while data:
        try:
            data = data[os.write(2, data) :]
        except BlockingIOError:
            select.select([], [2], [], 1.0)
        except OSError:
            return
