"""One run of mpirun: passes on what it prints and the signals that come, and reads what the ranks tell."""

import contextlib
import ctypes
import math
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from distributed import records
from ringbase.errors import Preempted

MARK = records.MARK.encode()
TAG = rb"(?:\[[^\]\n]*\](?:<std\w+>)?:? ?)?"  # before each line by mpirun --tag-output, or Hydra's -l
RECORD = re.compile(TAG + MARK + rb"([^\n]*)\n")
REASONS = {  # why signals end processes
    signal.SIGKILL: " (out of memory?)",
    signal.SIGBUS: " (is /dev/shm full?)",
    signal.SIGALRM: " (not all ranks joined within --start-timeout: one ended, or hosts cannot reach each other)",
}
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
GRACE_S, KILL_S = 30.0, 10.0  # from the end of a job to SIGTERM to its mpirun, and from that to SIGKILL
FINAL = (0, Preempted.STATUS, 1, 2)  # statuses after which another start would end in the same way


class MpirunProcess:
    """One run of mpirun, or of a program that is alone.

    The first SIGINT, SIGTERM or SIGHUP asks ranks that have joined to save and stop, the second one ends them at
    once. SIGUSR1 asks them too: mpirun forwards it to the ranks.

    Attributes:
      signal: the first signal that came, also after the end.
      has_joined, has_saved: the ranks have joined MPI, and have saved a checkpoint.
      ended: the status that the ranks told at the end of the program.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], is_elastic: bool) -> None:
        self._is_elastic, self._is_ending, self._has_asked = is_elastic, False, False
        self.has_joined = self.has_saved = False
        self.signal: int | None = None
        self.ended: int | None = None
        self._over_s = math.inf  # when mpirun should have ended
        has_terminal = sys.stdin is not None and sys.stdin.isatty()  # which belongs to our own group
        self._process = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL if has_terminal else None,
            stderr=subprocess.PIPE,
            process_group=0,  # so that Ctrl-C reaches this process alone
            preexec_fn=end_with_parent,
        )
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, self._on_signal)

    def wait(self) -> int:
        """Passes standard error on until mpirun has ended. Returns the job's exit status."""
        stderr, held = self._process.stderr, b""
        assert stderr is not None
        with self._process:
            while True:
                self._end_late()
                has_ended = self._process.poll() is not None
                is_readable = select.select([stderr], [], [], 0 if has_ended else 1)[0]
                data = os.read(stderr.fileno(), 65536) if is_readable else b""
                if has_ended and not data:  # a remote shell may still hold the other end
                    break
                if is_readable and not data:
                    time.sleep(0.1)  # the other end is closed, and mpirun will end
                # PRRTE ends some of its messages with a NUL.
                held = self._pass_on(held + data.replace(b"\0", b""))
        self._write(held)
        return self._status()

    def broke_off(self, status: int) -> bool:
        """Whether it failed for a reason that need not come back when it is started again."""
        if self.ended is not None:
            return self.ended not in FINAL
        return self.has_joined or self._is_elastic or status > 128

    def was_killed(self) -> bool:
        """Whether mpirun could not end its ranks."""
        return self._process.returncode == -signal.SIGKILL

    def _on_signal(self, number: int, frame: object) -> None:
        self.signal = self.signal or number
        name = signal.Signals(number).name
        if number == signal.SIGUSR1:
            self._process.send_signal(number)
        elif self._has_asked or not self.has_joined:
            say(f"{name} ends the ranks")
            self._over_s = time.monotonic() - GRACE_S
            self._end_late()
        else:
            self._has_asked = True
            say(f"{name}: the ranks finish this step, save and exit; send it again to end them at once")
            self._process.send_signal(signal.SIGUSR1)

    def _pass_on(self, text: bytes) -> bytes:
        """Passes on all but the records, also lines that are not complete, so that progress bars move. Returns a
        record that is not complete."""
        *pairs, rest = RECORD.split(text)
        for passed, record in zip(pairs[::2], pairs[1::2], strict=True):
            self._write(passed)
            self._on_record(record.decode(errors="replace"))
        passed, mark, begun = rest.partition(MARK)
        self._write(passed)
        return mark + begun

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
            self._process.send_signal(signal.SIGKILL)
        elif late_s >= 0 and not self._is_ending:
            self._is_ending = True
            self._process.send_signal(signal.SIGTERM)

    def _status(self) -> int:
        """The exit status: what the ranks told, else mpirun's."""
        code = self._process.returncode
        status = 128 - code if code < 0 else code
        if self.ended == 0:  # a rank that is killed after the end has done its work
            return 0 if self._is_elastic or status > 128 else status
        if self.ended is not None:
            return self.ended
        if status == 0 and (self.has_joined or self._is_elastic):
            say("the ranks ended before the program was complete: was a host lost?")
            return 1
        with contextlib.suppress(ValueError):  # not the number of a signal
            if not self._is_ending:
                number = signal.Signals(status - 128)
                say(f"a process was ended by {number.name}{REASONS.get(number, '')}")
        return status


def end_with_parent() -> None:
    """This process gets SIGTERM when the one that started it ends, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def say(text: str) -> None:
    write(f"bert-launch: {text}\n".encode())


def write(data: bytes) -> None:
    """Writes to standard error; the job goes on when nobody reads it any more."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(2, data) :]
