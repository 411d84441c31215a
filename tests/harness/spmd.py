"""One mpirun for many tests: every rank runs pytest on the tests of tests/spmd, this process reads their reports.

pytest's own process (the parent) never joins MPI. It writes the names of the tests to a file, starts `mpirun -n 3
python -m pytest @file`, and waits for each test until its ranks have written their reports to a file each. A test
that fails on one rank while another still waits for it, or that takes too long, ends the session with the stacks
of all ranks; the next test starts a new one. A test of fewer ranks than 3 has a communicator of the first ones,
while the others wait without using a core.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.mpi import ENVIRONMENT, ROOT, command_of

NUM_RANKS = 3
FOLDER = "RINGBERT_SPMD"  # set in the ranks: where they write what came out
START_S, TEST_S = 180, 120  # for mpirun, imports and the collection of the tests; for one test
OTHERS_S = 15  # for the other ranks, after one has failed

Report = dict[str, Any]  # pytest's, of setup, call or teardown


class NoEnd(Exception):
    """Some ranks did not come to the end of a test."""


def is_rank() -> bool:
    return FOLDER in os.environ


class Ranks:
    """The running session, as its parent sees it."""

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None
        self.folder = Path()
        self.remaining: list[str] = []

    def start(self, names: list[str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ringbert-spmd-"))
        (self.folder / "tests").write_text("\n".join(names))
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "", "-o", "timeout=0"]
        program = [sys.executable, "-m", "pytest", *options, f"@{self.folder / 'tests'}"]
        environment = os.environ | ENVIRONMENT | {FOLDER: str(self.folder), "RINGBERT_NETWORK": "127.0.0.0/8"}
        for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_CURRENT_TEST"):
            environment.pop(name, None)
        argv = command_of(NUM_RANKS, program, environment)
        with (self.folder / "output").open("w") as output:
            self.process = subprocess.Popen(
                argv, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self.remaining = names

    def reports_of(self, name: str) -> list[list[Report]]:
        """What each rank has written about a test."""
        paths = [self.folder / f"rank-{rank}" for rank in range(NUM_RANKS)]
        written = [path.read_text().rpartition("\n")[0] if path.exists() else "" for path in paths]
        reports = [[json.loads(line) for line in text.splitlines()] for text in written]
        return [[report for report in of_rank if report["nodeid"] == name] for of_rank in reports]

    def run(self, names: list[str]) -> list[Report]:
        """Rank 0's reports of the first of these tests, which are all that are left; where ranks failed, theirs.

        Raises NoEnd, with the session's last output.
        """
        name, limit = names[0], float(TEST_S)
        if self.process is None or self.process.poll() is not None or self.remaining[:1] != [name]:
            self.stop()
            self.start(names)
            limit += START_S
        self.remaining = self.remaining[1:]
        started, missing = time.monotonic(), list(range(NUM_RANKS))
        while missing:
            assert self.process is not None
            waited, has_ended = time.monotonic() - started, self.process.poll() is not None
            reports = self.reports_of(name)
            missing = [rank for rank, own in enumerate(reports) if not own or own[-1]["when"] != "teardown"]
            failed = [report for own in reports for report in own if report["outcome"] == "failed"]
            if failed:
                limit = min(limit, waited + OTHERS_S)
            if missing and (has_ended or waited > limit):
                self.stop()
                texts = [report["longrepr"] for report in failed]
                texts += [f"no end on ranks {missing} after {waited:.0f} s; the session's last output:"]
                raise NoEnd("\n".join([*texts, (self.folder / "output").read_text()[-12000:]]))
            time.sleep(0.02)
        chosen = {report["when"]: report for report in reports[0]}
        for report in failed:
            same = [other["longrepr"] for other in failed if other["when"] == report["when"]]
            chosen[report["when"]] = report | {"longrepr": "\n".join(same)}
        return list(chosen.values())

    def stop(self) -> None:
        """Ends the session; ranks that still run show their stacks."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
            self.process.kill()
        self.process.wait()
        self.process = None
