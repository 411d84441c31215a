"""Processes that share numbered pieces of work."""

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

PROGRESS_EVERY_S = 30.0
# In a worker process: the object that it works on, and the shared count of pieces taken so far.
_object: Any = None
_taken: Any = None


class Workers:
    """Calls methods of one object for many numbers. One worker is this process, the others are new processes.

    The new processes start at the beginning of the `with` block, and import their modules while this process
    prepares the object. They are spawned, never forked, because a fork after MPI has started is unsafe. They end
    when their parent ends, for any reason. Each tokenizes on one thread, since there is one worker per core. The
    garbage collector is
    off: this work creates no reference cycles, and traversing its many words takes 3 % of the time.
    """

    def __init__(self, num_workers: int, say: Callable[[str], None]):
        self._num_workers, self._say = num_workers, say
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None
        self._threads = os.environ.get("TOKENIZERS_PARALLELISM")
        self._object: Any = None
        self._count: Any = None  # of the pieces taken so far, shared by all workers

    def __enter__(self) -> "Workers":
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self._had_collector = gc.isenabled()
        gc.disable()
        if self._num_workers > 1:
            self._folder = tempfile.TemporaryDirectory(prefix="ringbert-workers-")
            self._object_file = Path(self._folder.name, "object")
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
        if self._had_collector:
            gc.enable()
        if self._threads is None:
            os.environ.pop("TOKENIZERS_PARALLELISM", None)
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = self._threads

    def work_on(self, work: Any) -> None:
        """Sets the object whose methods `run` calls; the other processes get a copy."""
        self._object = work
        if self._pool is not None:
            self._object_file.write_bytes(pickle.dumps(work))

    def run(self, method: str, numbers: Sequence[int], what: str) -> None:
        """Calls `work.<method>(number)` for each number; the first exception ends the run and is raised here.

        Each worker takes the next number when it is ready, so no worker is idle until the numbers run out. `what`
        names the numbers in progress messages.
        """
        began = reported = time.monotonic()
        if self._count is not None:
            self._count.value = 0
        others: list[concurrent.futures.Future] = []
        try:
            if self._pool is not None:
                tasks = range(self._num_workers - 1)
                others = [self._pool.submit(_work, self._object_file, method, numbers) for _ in tasks]
            for done, number in enumerate(numbers if self._count is None else _next_of(numbers, self._count), 1):
                getattr(self._object, method)(number)
                for other in others:
                    if other.done():
                        other.result()
                if time.monotonic() - reported > PROGRESS_EVERY_S:
                    reported = time.monotonic()
                    if self._count is not None:
                        done = max(done, min(self._count.value, len(numbers)) - len(others))
                    self._say(f"{method}: {done:,} of {len(numbers):,} {what}, {reported - began:.0f} s")
            for other in concurrent.futures.as_completed(others):
                other.result()
        except BrokenProcessPool as error:
            raise RuntimeError(
                "a worker process was killed (out of memory?): run the same command again to continue; fewer "
                "--num_workers need less memory"
            ) from error
        finally:
            if self._count is not None:
                self._count.value = len(numbers)  # the others take no more


def _next_of(numbers: Sequence[int], count: Any) -> Iterator[int]:
    """The numbers that no other worker has taken."""
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    # Exit at once when the work is done, because freeing all objects takes a while.
    multiprocessing.util.Finalize(None, os._exit, args=(0,), exitpriority=0)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _prepare() -> None:
    import bert.corpus.passes  # noqa: F401  needed to unpickle the object


def _end_with_parent() -> None:
    process = multiprocessing.parent_process()
    if process is not None:
        process.join()
    sys.stderr.flush()
    os._exit(1)


def _work(path: Path, method: str, numbers: Sequence[int]) -> None:
    global _object
    for number in _next_of(numbers, _taken):
        if _object is None:
            _object = pickle.loads(path.read_bytes())
        getattr(_object, method)(number)
