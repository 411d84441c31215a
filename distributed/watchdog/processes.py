"""The processes of this machine: whether they are stopped, and how to kill exactly the one that is meant.

As a program, `processes.py PID STARTED SECONDS`, it ends a process that is still there after so many seconds.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

LAUNCHERS = ("mpirun", "orterun", "orted", "prterun", "prted")  # Open MPI 4 and 5
UNKNOWN = "-"  # the state of a process that this one cannot see, such as one in another container


def state_of(pid: int, started: str) -> str:
    """The state of a process, a letter as in /proc/PID/stat."""
    letter, start = _stat(pid)
    return letter if start and start == started else UNKNOWN


def started_at(pid: int) -> str:
    """When a process started, which with its number names it for good; empty if that is unknown."""
    return _stat(pid)[1]


def kill(pid: int, started: str) -> None:
    """Kills a process, also a stopped one, unless its number belongs to another one by now."""
    if state_of(pid, started) != UNKNOWN:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_launcher_later(seconds: float) -> None:
    """Kills this process's part of mpirun if it is still there then: it waits for ever for hosts that it cannot
    reach. Slurm's srun does not, and is left alone."""
    parent = os.getppid()
    with contextlib.suppress(OSError):
        if Path(f"/proc/{parent}/comm").read_text().strip() in LAUNCHERS:
            command = [sys.executable, "-S", __file__, str(parent), started_at(parent), str(seconds)]
            nowhere = subprocess.DEVNULL
            subprocess.Popen(command, start_new_session=True, stdin=nowhere, stdout=nowhere, stderr=nowhere)


def _stat(pid: int) -> tuple[str, str]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "", ""


def end(pid: int, started: str) -> None:
    """Ends an mpirun that waits for ever. SIGKILL alone does not reach the first process of a container, but Open
    MPI 5 leaves at the third SIGTERM at once."""
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        if state_of(pid, started) == UNKNOWN:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        time.sleep(1)


if __name__ == "__main__":
    time.sleep(float(sys.argv[3]))
    end(int(sys.argv[1]), sys.argv[2])
