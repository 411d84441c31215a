"""Finds ranks that die before all have joined, which an elastic job would wait for without end.

Open MPI with fault tolerance reports a death to ranks that have joined, and mpirun says nothing of it. A rank that
is still in MPI_Init waits for the dead one. Only the ranks of this host can be looked at.
"""

import os
import time
from pathlib import Path

from distributed import records
from distributed.environment import RANK_VARIABLES
from ringbase.files import is_running

GRACE_S = 3.0  # for the record of a rank that has ended by itself


class EarlyDeaths:
    """Looks at the processes of a job on this host, from its start until all ranks have joined."""

    def __init__(self, job: str):
        self._mark = f"{records.JOB}={job}".encode()
        self._processes: dict[int, int] = {}  # by rank
        self._missed_s: dict[int, float] = {}

    def look(self) -> int | None:
        """The rank that was the first to be gone, after a few seconds of grace; None if there is none."""
        now = time.monotonic()
        for rank, process in ranks_of(self._mark).items():
            self._processes.setdefault(rank, process)
        for rank, process in self._processes.items():
            if not is_running(process):
                self._missed_s.setdefault(rank, now)
        late = [(missed_s, rank) for rank, missed_s in self._missed_s.items() if now - missed_s > GRACE_S]
        return min(late)[1] if late else None


def ranks_of(mark: bytes) -> dict[int, int]:
    """The first process of each rank among the processes of this user that have `mark` in their environment."""
    found: dict[int, int] = {}
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda folder: int(folder.name)):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in variables:
            named = dict(variable.split(b"=", 1) for variable in variables if b"=" in variable)
            rank = next((named[os.fsencode(name)] for name in RANK_VARIABLES if os.fsencode(name) in named), None)
            if rank is not None:
                found.setdefault(int(rank), int(folder.name))
    return found
