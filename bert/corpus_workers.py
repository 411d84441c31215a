"""Processes that work through numbered pieces of a build."""

import concurrent.futures
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

TOLD_EVERY_S = 30.0
_builder: Any = None  # in a worker process: what it works on


class Workers:
    """Calls methods of one object for many numbers, in processes of their own (with one worker: in this one).

    Processes are spawned, never forked: a fork after MPI started is unsafe. They end with their parent, however
    it ends. Parallelism is theirs: each tokenizes on one thread.
    """

    def __init__(self, builder: Any, num_workers: int, say: Callable[[str], None]):
        self._builder, self._num_workers, self._say = builder, num_workers, say
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None
        self._threads = os.environ.get("TOKENIZERS_PARALLELISM")

    def __enter__(self) -> "Workers":
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        if self._num_workers > 1:
            self._pool = concurrent.futures.ProcessPoolExecutor(
                self._num_workers, multiprocessing.get_context("spawn"), _start, (self._builder, os.getpid())
            )
        return self

    def __exit__(self, kind, error, trace) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        if self._threads is None:
            os.environ.pop("TOKENIZERS_PARALLELISM", None)
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = self._threads

    def run(self, method: str, numbers: Sequence[int], what: str) -> None:
        """Calls `builder.<method>(number)` for each; the first exception ends it and is raised here."""
        began = told = time.monotonic()
        for done, _ in enumerate(self._results(method, numbers), 1):
            now = time.monotonic()
            if now - told > TOLD_EVERY_S:
                told = now
                self._say(f"{method}: {done:,} of {len(numbers):,} {what}, {now - began:.0f} s")

    def _results(self, method: str, numbers: Sequence[int]):
        if self._pool is None:
            for number in numbers:
                yield getattr(self._builder, method)(number)
            return
        futures = [self._pool.submit(_call, method, number) for number in numbers]
        try:
            for future in concurrent.futures.as_completed(futures):
                yield future.result()
        except BrokenProcessPool as error:
            raise RuntimeError(
                "a worker process was killed (out of memory?): the same command goes on where this one ended; "
                "fewer --num_workers need less memory"
            ) from error
        finally:
            for future in futures:
                future.cancel()


def _start(builder: Any, parent: int) -> None:
    global _builder
    _builder = builder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the work
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    process = multiprocessing.parent_process()
    if process is not None:
        process.join()
    sys.stderr.flush()
    os._exit(1)


def _call(method: str, number: int) -> None:
    getattr(_builder, method)(number)
