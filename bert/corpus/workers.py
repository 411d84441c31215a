"""Processes that share numbered pieces of work."""

import concurrent.futures
import functools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

PROGRESS_EVERY_S = 30.0
_work: Any = None  # of a worker process


def call_all(
    work: Any, method: str, numbers: Sequence[int], num_workers: int, report: Callable[[str], None]
) -> None:
    """Calls `work.<method>(number)` for each number, with several workers in new processes. An exception ends all
    and is raised here. `report` gets how far the calls are.

    The processes are spawned, never forked, because a fork after MPI has started is unsafe. They end when their
    parent ends, for any reason.
    """
    num_workers = min(num_workers, len(numbers))
    if num_workers <= 1:
        _wait_for(map(getattr(work, method), numbers), len(numbers), report)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(num_workers, context, _start, (work,)) as pool:
        try:
            _wait_for(pool.map(functools.partial(_call, method), numbers), len(numbers), report)
        except BrokenProcessPool as error:
            raise RuntimeError(
                "a worker process was killed (out of memory?): run the same command again to continue; fewer "
                "--num_workers need less memory"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _wait_for(calls: Iterable[None], total: int, report: Callable[[str], None]) -> None:
    began = reported = time.monotonic()
    for done, _ in enumerate(calls, 1):
        if time.monotonic() - reported > PROGRESS_EVERY_S:
            reported = time.monotonic()
            report(f"{done:,} of {total:,}, {reported - began:.0f} s")


def _start(work: Any) -> None:
    global _work
    _work = work
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a worker per core
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    process = multiprocessing.parent_process()
    if process is not None:
        process.join()
    sys.stderr.flush()
    os._exit(1)


def _call(method: str, number: int) -> None:
    getattr(_work, method)(number)
