"""One run of mpirun: passes on what it prints and the signals that come, and reads what the ranks tell."""

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence

from distributed import launcher
from ringbase.errors import Preempted

MARK = launcher.MARK.encode()
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
      told: what the ranks have told (`distributed.launcher`).
      ended: the status that they told at the end of the program.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], is_elastic: bool) -> None:
        self.signal: int | None = None
        self.told: set[str] = set()
        self.ended: int | None = None
        self._is_elastic, self._has_asked = is_elastic, False
        stdin = subprocess.DEVNULL if os.isatty(0) else None  # a terminal belongs to our own group
        # In a group of its own, so that Ctrl-C reaches this process alone.
        self._process = subprocess.Popen(
            argv, env=environment, stdin=stdin, stderr=subprocess.PIPE, process_group=0, preexec_fn=end_with_parent
        )
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, self._on_signal)

    def wait(self) -> int:
        """Passes standard error on until mpirun has ended. Returns the job's exit status."""
        reader = threading.Thread(target=self._read, daemon=True)
        reader.start()
        self._process.wait()
        reader.join(5)  # longer than it needs; a remote shell may still hold the other end
        code = self._process.returncode
        status = 128 - code if code < 0 else code
        if self.ended == 0:  # a rank that is killed after the end has done its work
            return 0 if self._is_elastic or status > 128 else status
        if self.ended is not None:
            return self.ended
        if status == 0 and ("joined" in self.told or self._is_elastic):
            say("the ranks ended before the program was complete: was a host lost?")
            return 1
        with contextlib.suppress(ValueError):  # not the number of a signal
            if self.signal is None:
                number = signal.Signals(status - 128)
                say(f"a process was ended by {number.name}{REASONS.get(number, '')}")
        return status

    def broke_off(self, status: int) -> bool:
        """Whether it failed for a reason that need not come back when it is started again."""
        if self.ended is not None:
            return self.ended not in FINAL
        return "joined" in self.told or self._is_elastic or status > 128

    def _read(self) -> None:
        """Passes on all but the records, also lines that are not complete, so that progress bars move. Nothing
        after the ranks have told why they end: what mpirun says of it would hide that."""
        assert self._process.stderr is not None
        begun = b""  # a record that is not complete
        while data := os.read(self._process.stderr.fileno(), 65536):
            data = data.replace(b"\0", b"")  # with which PRRTE ends some of its messages
            parts = RECORD.split(begun + data)  # texts and records by turns
            parts[-1], mark, begun = parts[-1].partition(MARK)
            begun = mark + begun
            for text, record in zip(parts[::2], [*parts[1::2], b""], strict=True):
                if not self.ended:  # None, or 0
                    write(text)
                self.told.add(record.decode())
                if self.ended is None and record.startswith(b"ended "):
                    self.ended = int(record.removeprefix(b"ended "))
                    self._end_after(GRACE_S)

    def _on_signal(self, number: int, frame: object) -> None:
        self.signal = self.signal or number
        name = signal.Signals(number).name
        if number == signal.SIGUSR1:
            self._process.send_signal(number)
        elif self._has_asked or "joined" not in self.told:
            say(f"{name} ends the ranks")
            self._end_after(0)
        else:
            self._has_asked = True
            say(f"{name}: the ranks finish this step, save and exit; send it again to end them at once")
            self._process.send_signal(signal.SIGUSR1)

    def _end_after(self, seconds: float) -> None:
        """Ends mpirun then, if it has not ended after its job, as when it cannot reach a host."""
        for late_s, number in ((0, signal.SIGTERM), (KILL_S, signal.SIGKILL)):
            timer = threading.Timer(seconds + late_s, self._process.send_signal, (number,))
            timer.daemon = True
            timer.start()


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
