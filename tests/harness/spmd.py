"""One mpirun for many tests: every rank runs pytest on the tests of tests/spmd, this process reads the outcomes.

pytest's own process (the parent) never joins MPI. It writes the names of the tests to a file, starts `mpirun -n 3
python -m pytest @file`, and waits for each test until its ranks have written their outcomes to a file each. A test
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

import pytest
from harness.mpi import ENVIRONMENT, ROOT, command_of

NUM_RANKS = 3
FOLDER = "RINGBERT_SPMD"  # set in the ranks: where they write what came out
START_S, TEST_S = 180, 120  # for mpirun, imports and the collection of the tests; for one test
OTHERS_S = 15  # for the other ranks, after one has failed


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

    def outcomes(self, name: str) -> dict[int, dict]:
        """What the ranks have told of a test, by rank."""
        found = {}
        for rank in range(NUM_RANKS):
            path = self.folder / f"rank-{rank}"
            for line in path.read_text().splitlines() if path.exists() else ():
                with contextlib.suppress(json.JSONDecodeError):  # it is being written
                    record = json.loads(line)
                    if record["name"] == name:
                        found[rank] = record
        return found

    def run(self, names: list[str]) -> tuple[str, str, float]:
        """Outcome, text and seconds of the first of these tests, which are all that are left."""
        name, limit = names[0], TEST_S
        if self.process is None or self.process.poll() is not None or self.remaining[:1] != [name]:
            self.stop()
            self.start(names)
            limit += START_S
        self.remaining = self.remaining[1:]
        started = time.monotonic()
        failed_at = None
        while True:
            has_ended = self.process.poll() is not None
            found = self.outcomes(name)
            failed = {rank: record for rank, record in found.items() if record["outcome"] == "failed"}
            waited = time.monotonic() - started
            if failed and failed_at is None:
                failed_at = waited
            is_late = waited > limit or (failed_at is not None and waited > failed_at + OTHERS_S)
            if len(found) == NUM_RANKS or has_ended or is_late:
                break
            time.sleep(0.02)
        text = "\n".join(f"--- rank {rank}\n{record['text']}" for rank, record in failed.items())
        if len(found) < NUM_RANKS:
            missing = [rank for rank in range(NUM_RANKS) if rank not in found]
            self.stop()
            text += f"\n--- no outcome from ranks {missing} after {waited:.0f} s; the session's last output:\n"
            text += (self.folder / "output").read_text()[-12000:]
            return "failed", text, waited
        seconds = max(record["seconds"] for record in found.values())
        if failed:
            return "failed", text, seconds
        skipped = [record["text"] for record in found.values() if record["outcome"] == "skipped"]
        return ("skipped", skipped[0], seconds) if skipped else ("passed", "", seconds)

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


def report_of(item: pytest.Item, when: str, outcome: str, text: str, seconds: float) -> pytest.TestReport:
    longrepr = None
    if outcome == "failed":
        longrepr = text
    elif outcome == "skipped":
        longrepr = (str(item.path), item.location[1] or 0, text)
    return pytest.TestReport(
        item.nodeid, item.location, dict.fromkeys(item.keywords, 1), outcome, longrepr, when, duration=seconds
    )
