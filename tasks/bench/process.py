"""Runs programs in separate processes: on several ranks, or timed without start-up and with peak memory.

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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]  # the folder that holds the packages
SAMPLED_EVERY_S = 0.05
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def on_ranks(command: Sequence[str], num_ranks: int) -> list[str]:
    """The command that starts `command` on `num_ranks` ranks of this machine."""
    launch = [sys.executable, "-m", "distributed.launch", "-np", str(num_ranks), "--"]
    return [*launch, *command] if num_ranks > 1 else list(command)


def last_error(done: "subprocess.CompletedProcess[str]") -> str:
    """The error of a failed program: its last line that contains "error", else its last line."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [f"exit status {done.returncode}"])[-1]


class Timing(NamedTuple):
    """One run of a program.

    Attributes:
      seconds: time of the work: flags, vocabulary, text, files, and worker processes from start to end.
      cpu_s: processor time of the work over all processes; on one core it is less than `seconds` if other programs
        used the core or the disk was slow.
      startup_s: the rest of the time: interpreter, imports, exit. peak_bytes: the largest sample of the resident
      memory of all processes together; a page that several processes
        share counts once for each, and so do pages of mapped files.
      peak_anonymous_bytes: the same without pages of files and shared memory.
    """

    seconds: float
    cpu_s: float
    startup_s: float
    peak_bytes: int
    peak_anonymous_bytes: int


class ProgramError(Exception):
    """The program failed. The message is the last line of its output."""


def run_timed(
    program: Path, arguments: Sequence[str], one_core: bool, environment: Mapping[str, str] | None = None
) -> Timing:
    """Times a program, on one core or all.

    Args:
      program: a Python file with a function `prepare(arguments)`, which imports what the program needs and returns
        a function without arguments: the work that is timed.
      environment: variables to set for it; it inherits the others of this process except PYTHONPATH.
    Raises ProgramError: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
        report, log = Path(folder, "report.json"), Path(folder, "log")
        command = [sys.executable, "-P", __file__, str(report), str(int(one_core)), str(program), *arguments]
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        start_s = time.perf_counter()
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=inherited | dict(environment or {}),
            )
            try:
                peaks = _watch(process)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        wall_s = time.perf_counter() - start_s
        if process.returncode or not report.is_file():
            lines = log.read_text(errors="replace").strip().splitlines()
            raise ProgramError(lines[-1] if lines else f"exit status {process.returncode}")
        seconds, cpu_s = json.loads(report.read_text())
    return Timing(seconds, cpu_s, wall_s - seconds, *peaks)


def _watch(process: subprocess.Popen) -> tuple[int, int]:
    """The peak memory of a process and its children until it ends, in bytes: resident, and anonymous."""
    resident = anonymous = 0
    while True:
        now = [_memory(process_id) for process_id in _tree(process.pid)]
        resident = max(resident, sum(all_pages for all_pages, _ in now))
        anonymous = max(anonymous, sum(all_pages - shared for all_pages, shared in now))
        try:
            process.wait(SAMPLED_EVERY_S)
        except subprocess.TimeoutExpired:
            continue
        return resident * PAGE_BYTES, anonymous * PAGE_BYTES


def _tree(process_id: int) -> Iterator[int]:
    """A process and all its descendants."""
    yield process_id
    try:
        threads = list(Path(f"/proc/{process_id}/task").iterdir())
        children = [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        return
    for child in children:
        yield from _tree(child)


def _memory(process_id: int) -> tuple[int, int]:
    """The number of resident pages of a process, and how many of them belong to files or shared memory."""
    try:
        resident, shared = Path(f"/proc/{process_id}/statm").read_text().split()[1:3]
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    return int(resident), int(shared)


# -- in the timed process -----------------------------------------------------------------------------------------


def main() -> None:
    report, one_core, program, *arguments = sys.argv[1:]
    if int(one_core):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    work = runpy.run_path(program)["prepare"](arguments)
    start_s, start_cpu_s = time.perf_counter(), _cpu_s()
    work()
    Path(report).write_text(json.dumps((time.perf_counter() - start_s, _cpu_s() - start_cpu_s)))


def _cpu_s() -> float:
    """Processor seconds of this process and of its children that have ended."""
    usages = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    main()
