"""Start the SPMD programs of tests/programs, under mpirun or alone.

The test process itself never joins MPI: it starts ranks as a user does, under a timeout, and reads what they
print. A program prints its result on rank 0 as one line of JSON, the last line of standard output.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed.mpirun import Options, build_command, find_mpi

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "jobs" / "programs"
# What the programs' libraries read when they are imported; they compute on the CPU, whose bits we compare.
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "KERAS_BACKEND": "tensorflow",
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TRANSFORMERS_VERBOSITY": "error",
}


@dataclass(frozen=True)
class Done:
    """How a program ended: status (that of a signal is negative), and what all its ranks printed."""

    status: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        """The result of a program that succeeded; fails with all that it printed if it did not."""
        assert self.status == 0, f"exit status {self.status}\n{self}"
        return json.loads(self.stdout.splitlines()[-1])

    def __str__(self) -> str:
        return f"--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


def mpirun(
    np: int,
    program: str,
    *args: object,
    timeout: float = 120,
    env: Mapping[str, str] | None = None,
    mpi_args: Sequence[str] = (),
) -> Done:
    """Runs tests/programs/PROGRAM on `np` ranks of this machine and waits for its end."""
    with started(np, program, *args, env=env, mpi_args=mpi_args) as process:
        return finish(process, timeout)


def alone(program: str, *args: object, timeout: float = 120, env: Mapping[str, str] | None = None) -> Done:
    """Runs tests/programs/PROGRAM as one process without a launcher and waits for its end."""
    with started(0, program, *args, env=env) as process:
        return finish(process, timeout)


def command_of(
    np: int, argv: Sequence[str], environment: Mapping[str, str] = os.environ, mpi_args: Sequence[str] = ()
) -> tuple[list[str], dict[str, str]]:
    """The command line that starts `argv` on `np` ranks of this machine, and its environment."""
    options = Options(tuple(argv), np, mpi_args=tuple(mpi_args))
    built = build_command(find_mpi(), options, environment)
    return list(built.argv), {**environment, **built.variables}


@contextlib.contextmanager
def started(
    np: int,
    program: str,
    *args: object,
    env: Mapping[str, str] | None = None,
    mpi_args: Sequence[str] = (),
) -> Iterator[subprocess.Popen[str]]:
    """The process of mpirun (of the program itself for `np` 0), which is ended on the way out."""
    argv = [sys.executable, str(PROGRAMS / program), *map(str, args)]
    environment = {**os.environ, **ENVIRONMENT, **(env or {})}
    if np:
        argv, environment = command_of(np, argv, environment, mpi_args)
    process = subprocess.Popen(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()  # mpirun ends its ranks; killed at once it would leave them
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def finish(process: subprocess.Popen[str], timeout: float) -> Done:
    """Waits for the end of a process; after `timeout` seconds it is ended and the test fails with its output."""
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()
        stdout, stderr = process.communicate(timeout=20)
        raise AssertionError(f"no end after {timeout} s\n{Done(0, stdout, stderr)}") from None
    return Done(process.returncode, stdout, stderr)
