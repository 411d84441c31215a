"""The processes of this machine: whether they are stopped, and how to kill exactly the one that is meant."""

import contextlib
import os
import signal
from pathlib import Path

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


def _stat(pid: int) -> tuple[str, str]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "", ""
