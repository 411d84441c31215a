"""Processes that share numbered pieces of work."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor

PROGRESS_EVERY_S = 30.0
_function: Callable[[int], None]  # of a worker process


def call_all(
    function: Callable[[int], None], numbers: Sequence[int], num_workers: int, report: Callable[[str], None]
) -> None:
    """Calls `function(number)` for each number, with several workers in new processes. An exception ends all and
    is raised here. `report` gets how far the calls are.

    The processes are spawned, never forked, because a fork after MPI has started is unsafe. They end when their
    parent ends, for any reason.
    """
    num_workers, began_s = min(num_workers, len(numbers)), time.monotonic()
    reported_s = began_s
    with contextlib.ExitStack() as stack:
        calls: Iterator[None] = map(function, numbers)
        if num_workers > 1:
            context = multiprocessing.get_context("spawn")
            pool = ProcessPoolExecutor(num_workers, context, _start, (function,))
            stack.callback(pool.shutdown, cancel_futures=True)
            calls = pool.map(_call, numbers)
        try:
            for done, _ in enumerate(calls, 1):
                if time.monotonic() - reported_s > PROGRESS_EVERY_S:
                    reported_s = time.monotonic()
                    report(f"{done:,} of {len(numbers):,}, {reported_s - began_s:.0f} s")
        except BrokenProcessPool as error:
            raise RuntimeError(
                "a worker process was killed (out of memory?): run the same command again to continue; fewer "
                "--num_workers need less memory"
            ) from error


def _start(function: Callable[[int], None]) -> None:
    global _function
    _function = function
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a worker per core
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    process = multiprocessing.parent_process()
    if process is not None:
        process.join()
    sys.stderr.flush()
    os._exit(1)


def _call(number: int) -> None:
    _function(number)
