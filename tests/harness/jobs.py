"""Jobs of bert-launch that a test starts as a user does, watches and disturbs by signals.

The programs of tests/jobs/programs write files in their folder, by which the test knows where they
are. Rank 0 prints the result as one line of JSON, the last line of standard output.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from harness.mpi import ENVIRONMENT, HANGS_S, ROOT


@dataclass(frozen=True)
class Done:
    """How a program ended: status (that of a signal is negative), and what all its ranks
    printed."""

    status: int
    stdout: str
    stderr: str

    def json(self):
        """The result of a program that succeeded; fails with all that it printed if it did not."""
        assert self.status == 0, self
        return json.loads(self.stdout.splitlines()[-1])

    def __str__(self):
        return f"exit status {self.status}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


def launch(num_ranks, *command, flags=()):
    """The command line of bert-launch; of the command itself for one rank."""
    if num_ranks == 1:
        return list(map(str, command))
    launcher = [sys.executable, "-m", "distributed.launch", f"-np={num_ranks}", *flags]
    return [*launcher, "--", *map(str, command)]


def program(name, *arguments):
    """The command line of a program of tests/jobs/programs."""
    return [sys.executable, str(ROOT / "tests/jobs/programs" / name), *map(str, arguments)]


class Job:
    """A command that runs, with what it has printed in files."""

    def __init__(self, command, folder, cwd, variables):
        self._printed = [folder / "stdout", folder / "stderr"]
        with self._printed[0].open("w") as stdout, self._printed[1].open("w") as stderr:
            self.process = subprocess.Popen(
                [*map(str, command)],
                env={**os.environ, **ENVIRONMENT, **variables},
                cwd=cwd,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )

    def done(self):
        """What is known by now; the status is 0 while it runs."""
        printed = [path.read_text(errors="replace") for path in self._printed]
        return Done(self.process.returncode or 0, *printed)

    def wait_for(self, condition):
        deadline = time.monotonic() + HANGS_S
        while not condition():
            assert self.process.poll() is None, f"it has ended\n{self.done()}"
            assert time.monotonic() < deadline, f"waited in vain\n{self.done()}"
            time.sleep(0.02)

    def strike(self, file, number=signal.SIGKILL):
        """Sends a signal to the rank that writes its process id to this file, as soon as it
        does."""
        self.wait_for(lambda: file.exists() and file.read_text())
        os.kill(int(file.read_text()), number)

    def press_ctrl_c(self):
        """As a terminal does: to the whole group of processes in the foreground."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self, wait_s=HANGS_S):
        try:
            self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end\n{self.done()}") from None
        return self.done()

    def fail(self):
        """Waits for the end of a job that must neither succeed nor say that it has saved."""
        done = self.end()
        assert done.status not in (0, 75), done
        return done


@contextlib.contextmanager
def started(command, cwd=ROOT, **variables):
    """The running job. On the way out it is killed, and mpirun ends its ranks."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(command, Path(folder), cwd, variables)
        try:
            yield job
        finally:
            job.process.kill()
            job.process.wait()


def run(command, cwd=ROOT, wait_s=HANGS_S, **variables):
    with started(command, cwd, **variables) as job:
        return job.end(wait_s)


def shell(*command, status=0, **more):
    """Runs a command, which must end with this status; `more` is for `run`."""
    done = run(command, **more)
    assert done.status == status, done
    return done


def isolated(*command, path="", **more):
    """As `shell`, with nothing but `path` in PYTHONPATH, by which commands may see the checkout."""
    return shell(*command, PYTHONPATH=str(path), PIP_DISABLE_PIP_VERSION_CHECK="1", **more)


def install(*packages, into):
    """Downloads packages, which may take long, into a folder."""
    pip = (sys.executable, "-m", "pip", "install", "-q", f"--target={into}")
    isolated(*pip, *packages, wait_s=1200)


@contextlib.contextmanager
def held(folder, num_ranks, *flags):
    """The job of programs/work.py, whose ranks have come to where they stay."""
    with started(launch(num_ranks, *program("work.py", folder, "hold"), flags=flags)) as job:
        job.wait_for((folder / "holding").exists)
        yield job


def pids(folder):
    """The process ids that the ranks of a program of tests/jobs/programs have written."""
    return [int(path.read_text()) for path in sorted(folder.glob("rank-*"))]


def ranks_of(output_dir):
    """The process ids of the ranks of a program, by the numbers that they had at the start."""
    ranks = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            arguments, variables = (
                (process / name).read_text().split("\0") for name in ("cmdline", "environ")
            )
            environment = dict(line.partition("=")[::2] for line in variables)
            rank = environment.get("OMPI_COMM_WORLD_RANK")
            if rank and f"--output_dir={output_dir}" in arguments:
                ranks[int(rank)] = int(process.name)
    return ranks


def assert_gone(*process_ids):
    """All these processes have ended, or do so soon."""
    deadline = time.monotonic() + HANGS_S
    for number in process_ids:
        # A zombie has no command line.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            while Path(f"/proc/{number}/cmdline").read_bytes():
                assert time.monotonic() < deadline, f"process {number} is left"
                time.sleep(0.05)


def losses(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["loss"]) for line in lines if "loss" in line]


def trained_alone(folder):
    """One rank's training, which nobody disturbs: its weights, and its losses with their steps."""
    folder.mkdir(exist_ok=True)
    (folder / "fast").touch()
    return run(program("training.py", folder)).json()["weights"], losses(folder)


def killed(folder, num_ranks, *names, flag="--elastic"):
    """The end of a training whose rank RANK is killed when it comes to PLACE, for each name
    RANK@PLACE@STEP."""
    with started(launch(num_ranks, *program("training.py", folder, *names), flags=(flag,))) as job:
        for name in names:
            if "@" in name:
                job.strike(folder / name)
        return job.end()


def assert_same_training(done, folder, undisturbed, survivors, lost=0):
    """With each step logged once, but at most `lost`, in which a rank 0 died; nothing half-written
    is left."""
    result = done.json()
    assert len(result["digests"]) == survivors, done
    assert len(set(result["digests"])) == 1, "the ranks hold different weights"
    np.testing.assert_allclose(result["weights"], undisturbed[0], rtol=0, atol=1e-12)
    logged, expected = losses(folder), dict(undisturbed[1])
    np.testing.assert_allclose(
        [loss for _, loss in logged], [expected[step] for step, _ in logged], rtol=1e-10
    )
    assert len(dict(logged)) == len(logged) >= len(expected) - lost, (
        "a step is logged twice, or too few are"
    )
    names = os.listdir(folder / "checkpoints")
    assert all(re.fullmatch(r"rows-\d{12}", name) for name in names), names
