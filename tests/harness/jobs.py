"""Jobs of bert-launch that a test watches and disturbs from outside: it kills and stops ranks, and sends signals.

The programs of tests/jobs/programs write files in their folder, by which the test knows where they are.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.mpi import ENVIRONMENT, PROGRAMS, ROOT, Done

WAIT_S = 240  # nothing here takes 20 s when the machine has nothing else to do
VARIABLES = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}


def launch(num_ranks: int, *command: object, flags: tuple[str, ...] = ()) -> list[str]:
    """The command line of bert-launch; of the command itself for one rank."""
    if num_ranks == 1:
        return list(map(str, command))
    return [sys.executable, "-m", "distributed.launch", f"-np={num_ranks}", *flags, "--", *map(str, command)]


def program(name: str, *arguments: object) -> list[str]:
    """The command line of a program of tests/jobs/programs."""
    return [sys.executable, str(PROGRAMS / name), *map(str, arguments)]


class Job:
    """A command that runs, with what it has printed in files."""

    def __init__(self, command: list[str], folder: Path, variables: dict[str, str]):
        self._printed = [folder / "stdout", folder / "stderr"]
        with self._printed[0].open("w") as stdout, self._printed[1].open("w") as stderr:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **VARIABLES, **variables},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=ROOT,
                start_new_session=True,
            )

    def done(self) -> Done:
        """What is known by now; the status is 0 while it runs."""
        return Done(self.process.returncode or 0, *(path.read_text(errors="replace") for path in self._printed))

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert self.process.poll() is None, f"it has ended\n{self.done()}"
            assert time.monotonic() < deadline, f"waited in vain\n{self.done()}"
            time.sleep(0.02)

    def strike(self, file: Path, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal to the rank that writes its process id to this file, as soon as it does."""
        self.wait_for(lambda: file.exists() and file.read_text())
        os.kill(int(file.read_text()), number)

    def press_ctrl_c(self) -> None:
        """As a terminal does: to the whole group of processes in the foreground."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> Done:
        """Waits for the end."""
        try:
            self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end\n{self.done()}") from None
        return self.done()


@contextlib.contextmanager
def started(command: list[str], **variables: str) -> Iterator[Job]:
    """The running job. On the way out it is killed, and mpirun ends its ranks."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(command, Path(folder), variables)
        try:
            yield job
        finally:
            job.process.kill()
            job.process.wait()


def ranks_of(output_dir: Path) -> dict[int, int]:
    """The process ids of the ranks of a program of tasks/, by the numbers that they had at the start."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            arguments, variables = ((process / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
            numbers = [line for line in variables if line.startswith(b"OMPI_COMM_WORLD_RANK=")]
            if numbers and f"--output_dir={output_dir}".encode() in arguments:
                found[int(numbers[0].partition(b"=")[2])] = int(process.name)
    return found


def run(command: list[str], **variables: str) -> Done:
    with started(command, **variables) as job:
        return job.end()


def assert_gone(*process_ids: int, seconds: float = 60) -> None:
    """All these processes have ended, or do so soon."""
    deadline = time.monotonic() + seconds
    while running := [number for number in process_ids if _is_running(number)]:
        assert time.monotonic() < deadline, f"processes {running} are left"
        time.sleep(0.05)


def _is_running(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
