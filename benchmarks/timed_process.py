"""Runs a program in a process of its own, timed without its start-up, on one core.

`run_timed` starts this file by its path, in a process that imports no package of ours unless the program does.
"""

import json
import os
import resource
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Timing(NamedTuple):
    """One run of a program.

    Attributes:
      seconds: time of the work: flags, vocabulary, text, files, and worker processes from start to end.
      cpu_s: processor time of the work over all processes; on one core it is less than `seconds` if other programs
        used the core or the disk was slow.
      startup_s: the rest of the time: interpreter, imports, exit.
      peak_bytes: the largest resident memory of a process.
    """

    seconds: float
    cpu_s: float
    startup_s: float
    peak_bytes: int


class ProgramError(Exception):
    """The program failed. The message is the last line of its output."""


def run_timed(program: Path, arguments: Sequence[str]) -> Timing:
    """Times a program on one core.

    Args:
      program: a Python file with a function `prepare(arguments)`, which imports what the program needs and returns
        a function without arguments: the work that is timed.
    Raises ProgramError: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-P", __file__, str(report), str(program), *arguments]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        start_s = time.perf_counter()
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        wall_s = time.perf_counter() - start_s
        if done.returncode or not report.is_file():
            lines = done.stderr.strip().splitlines()
            raise ProgramError(lines[-1] if lines else f"exit status {done.returncode}")
        seconds, cpu_s, peak_bytes = json.loads(report.read_text())
    return Timing(seconds, cpu_s, wall_s - seconds, peak_bytes)


# -- in the timed process -----------------------------------------------------------------------------------------


def main() -> None:
    report, program, *arguments = sys.argv[1:]
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    work = runpy.run_path(program)["prepare"](arguments)
    (start_cpu_s, _), start_s = _usage(), time.perf_counter()
    work()
    seconds, (cpu_s, peak_bytes) = time.perf_counter() - start_s, _usage()
    Path(report).write_text(json.dumps((seconds, cpu_s - start_cpu_s, peak_bytes)))


def _usage() -> tuple[float, int]:
    """Processor seconds of this process and of its children that have ended, and the largest memory of one."""
    usages = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages), max(
        usage.ru_maxrss for usage in usages
    ) * 1024


if __name__ == "__main__":
    main()
