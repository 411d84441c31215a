"""Processes that work through numbered pieces of a build."""

import concurrent.futures
import gc
import multiprocessing
import multiprocessing.util
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

TOLD_EVERY_S = 30.0
# In a worker process: what it works on, and the shared count of pieces that are taken.
_builder: Any = None
_taken: Any = None


class Workers:
    """Calls methods of one object for many numbers. One worker is this process, the others have their own.

    Those start when the `with` block is entered and import what they need while this one prepares the
    object. They are spawned, never forked: a fork after MPI started is unsafe. They end with their parent, however
    it ends. Parallelism is theirs: each tokenizes on one thread. Meanwhile no cycles of objects are looked for:
    the work makes none, and to go through all its words takes 3 % of the time.
    """

    def __init__(self, num_workers: int, say: Callable[[str], None]):
        self._num_workers, self._say = num_workers, say
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None
        self._threads = os.environ.get("TOKENIZERS_PARALLELISM")
        self._builder: Any = None
        self._count: Any = None  # of the pieces that are taken, shared by all workers

    def __enter__(self) -> "Workers":
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self._collected = gc.isenabled()
        gc.disable()
        if self._num_workers > 1:
            self._folder = tempfile.TemporaryDirectory(prefix="ringbert-workers-")
            self._object = Path(self._folder.name, "object")
            context = multiprocessing.get_context("spawn")
            self._count = context.Value("q", 0)
            self._pool = concurrent.futures.ProcessPoolExecutor(
                self._num_workers - 1, context, _start, (self._count,)
            )
            for _ in range(self._num_workers - 1):
                self._pool.submit(_prepare)
        return self

    def __exit__(self, kind, error, trace) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._folder.cleanup()
        if self._collected:
            gc.enable()
        if self._threads is None:
            os.environ.pop("TOKENIZERS_PARALLELISM", None)
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = self._threads

    def work_on(self, builder: Any) -> None:
        """The object whose methods `run` calls; workers get a copy."""
        self._builder = builder
        if self._pool is not None:
            self._object.write_bytes(pickle.dumps(builder))

    def run(self, method: str, numbers: Sequence[int], what: str) -> None:
        """Calls `builder.<method>(number)` for each; the first exception ends it and is raised here.

        Each worker takes the next number when it is ready, so none waits before the last ones.
        """
        began = told = time.monotonic()
        if self._count is not None:
            self._count.value = 0
        others: list[concurrent.futures.Future] = []
        try:
            if self._pool is not None:
                tasks = range(self._num_workers - 1)
                others = [self._pool.submit(_work, self._object, method, numbers) for _ in tasks]
            for done, number in enumerate(numbers if self._count is None else _next_of(numbers, self._count), 1):
                getattr(self._builder, method)(number)
                for other in others:
                    if other.done():
                        other.result()
                if time.monotonic() - told > TOLD_EVERY_S:
                    told = time.monotonic()
                    if self._count is not None:
                        done = max(done, min(self._count.value, len(numbers)) - len(others))
                    self._say(f"{method}: {done:,} of {len(numbers):,} {what}, {told - began:.0f} s")
            for other in concurrent.futures.as_completed(others):
                other.result()
        except BrokenProcessPool as error:
            raise RuntimeError(
                "a worker process was killed (out of memory?): the same command goes on where this one ended; "
                "fewer --num_workers need less memory"
            ) from error
        finally:
            if self._count is not None:
                self._count.value = len(numbers)  # whoever still works takes no more


def _next_of(numbers: Sequence[int], count: Any) -> Iterator[int]:
    """Those that no other worker has taken."""
    while True:
        with count.get_lock():
            taken = count.value
            count.value = taken + 1
        if taken >= len(numbers):
            return
        yield numbers[taken]


def _start(count: Any) -> None:
    global _taken
    _taken = count
    gc.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the work
    # At the end of its work it goes at once: to free what it holds, one object after the other, takes a while.
    multiprocessing.util.Finalize(None, os._exit, args=(0,), exitpriority=0)
    threading.Thread(target=_end_with, daemon=True).start()


def _prepare() -> None:
    import bert.corpus.builder  # noqa: F401  what an object needs that is read from a file


def _end_with() -> None:
    process = multiprocessing.parent_process()
    if process is not None:
        process.join()
    sys.stderr.flush()
    os._exit(1)


def _work(path: Path, method: str, numbers: Sequence[int]) -> None:
    global _builder
    for number in _next_of(numbers, _taken):
        if _builder is None:
            _builder = pickle.loads(path.read_bytes())
        getattr(_builder, method)(number)
