"""A program in a process of its own, timed without its start-up, with the peak memory of all its processes.

`run_timed` starts this file by its path. For Google's `create_pretraining_data.py` it imports nothing of ours: the
script runs unmodified, `tensorflow` being the compatibility module of today's and `bert` the script's own folder.
"""

import importlib
import json
import os
import resource
import runpy
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

SAMPLED_EVERY_S = 0.05
# What a build imports on its way; Google's script has imported everything before it starts.
LAZY_IMPORTS = ("bert.corpus.build", "bert.weights", "distributed.world", "numpy.random", "pyarrow.compute")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Timing(NamedTuple):
    """One run of a program.

    Attributes:
      seconds: its work: flags, vocabulary, text, files; worker processes from their start to their end.
      cpu_s: processor time of that work, over all its processes; less than `seconds` on one core when others
        kept the core busy, or the disk.
      startup_s: all the rest: interpreter, imports, exit.
      peak_bytes: resident memory of all its processes together, the largest of the samples; pages that several
        share, and those of mapped files, count in each.
      peak_anonymous_bytes: the same without pages of files and shared memory.
    """

    seconds: float
    cpu_s: float
    startup_s: float
    peak_bytes: int
    peak_anonymous_bytes: int


class ProgramError(Exception):
    """The program failed; the last line that it wrote to standard error."""


def run_timed(program: Literal["corpus", "google"], arguments: Sequence[str], one_core: bool) -> Timing:
    """Runs `bert-corpus ARGUMENTS`, or with the folder first in `arguments` Google's script; on one core or all.

    Raises ProgramError: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
        report, log = Path(folder, "report.json"), Path(folder, "log")
        command = [sys.executable, "-P", __file__, program, str(report), str(int(one_core)), *arguments]
        root = str(Path(__file__).resolve().parent.parent)
        path = {"PYTHONPATH": root} if program == "corpus" else {}
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        began = time.perf_counter()
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=inherited | path
            )
            try:
                peaks = _watch(process)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        wall = time.perf_counter() - began
        if process.returncode or not report.is_file():
            lines = log.read_text(errors="replace").strip().splitlines()
            raise ProgramError(lines[-1] if lines else f"exit status {process.returncode}")
        seconds, cpu_s = json.loads(report.read_text())
    return Timing(seconds, cpu_s, wall - seconds, *peaks)


def _watch(process: subprocess.Popen) -> tuple[int, int]:
    """Peak memory until the process ends: resident, and anonymous."""
    resident = anonymous = 0
    while True:
        now = [_memory(number) for number in _tree(process.pid)]
        resident = max(resident, sum(all_pages for all_pages, _ in now))
        anonymous = max(anonymous, sum(all_pages - shared for all_pages, shared in now))
        try:
            process.wait(SAMPLED_EVERY_S)
        except subprocess.TimeoutExpired:
            continue
        return resident * PAGE_BYTES, anonymous * PAGE_BYTES


def _tree(number: int) -> Iterator[int]:
    yield number
    try:
        tasks = list(Path(f"/proc/{number}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        return
    for child in children:
        yield from _tree(child)


def _memory(number: int) -> tuple[int, int]:
    """Resident pages of a process, and how many of them belong to files or shared memory."""
    try:
        resident, shared = Path(f"/proc/{number}/statm").read_text().split()[1:3]
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    return int(resident), int(shared)


# -- in the process -----------------------------------------------------------------------------------------------


def main() -> None:
    program, report, one_core, *arguments = sys.argv[1:]
    if int(one_core):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    work = {"corpus": _corpus, "google": _google}[program](arguments)
    began, used = time.perf_counter(), _cpu_s()
    work()
    Path(report).write_text(json.dumps((time.perf_counter() - began, _cpu_s() - used)))


def _cpu_s() -> float:
    """Processor seconds of this process and of those that it started and that have ended."""
    usages = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _corpus(arguments: Sequence[str]) -> Callable[[], object]:
    from transformers import BertTokenizerFast

    from tasks import corpus

    assert BertTokenizerFast is not None  # transformers imports a class when it is asked for
    for name in LAZY_IMPORTS:
        importlib.import_module(name)
    return partial(corpus.main, arguments)


def _google(arguments: Sequence[str]) -> Callable[[], object]:
    folder, *flags = arguments
    import tensorflow.compat.v1

    sys.modules["tensorflow"] = tensorflow.compat.v1
    package = types.ModuleType("bert")  # Google's own package says `from bert import tokenization`, its repository
    package.__path__ = [folder]  # `import tokenization`
    sys.modules["bert"] = package
    sys.path.insert(0, folder)
    script = str(Path(folder, "create_pretraining_data.py"))
    sys.argv = [script, *flags]

    def run() -> None:
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as stop:  # tf.app.run ends so
            if stop.code:
                raise

    return run


if __name__ == "__main__":
    main()
