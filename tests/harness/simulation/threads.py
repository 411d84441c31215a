"""Clock, threads and exit of simulated processes."""

import time
from collections.abc import Callable
from concurrent.futures import Future

from greenlet import getcurrent
from harness.simulation.scheduler import Killed, Scheduler

TIMED = ("world", "checkpoint", "run", "train", "gradient", "timeline")


class Clock:
    """The module `time`, as a simulation has it."""

    strftime = staticmethod(time.strftime)

    def __init__(self, scheduler: Scheduler):
        self.sleep = scheduler.sleep
        self.monotonic = self.perf_counter = self.time = lambda: scheduler.now_s


class Thread:
    """A ThreadPoolExecutor of one thread, as greenlets of the process that makes it."""

    def __init__(self, scheduler: Scheduler):
        self._scheduler, self._process = scheduler, getcurrent().process
        self._last: Result | None = None

    def submit(self, function: Callable, *arguments) -> "Result":
        before = self._last
        result = self._last = Result(self._scheduler)

        def work() -> None:
            try:
                if before:
                    before.wait()
                result.set_result(function(*arguments))
            except Killed:
                pass
            except Exception as error:
                result.set_exception(error)
            self._scheduler.wake(result.waiters)

        self._process.start(work)
        return result

    def shutdown(self, wait: bool = True, cancel_futures: bool = False) -> None:
        if wait and self._last:
            self._last.wait()


class Result(Future):
    """What a thread will return."""

    def __init__(self, scheduler: Scheduler):
        super().__init__()
        self._scheduler, self.waiters = scheduler, []

    def wait(self) -> None:
        while not self.done():
            self._scheduler.wait(self.waiters, "a thread of its own")

    def result(self, timeout=None):
        self.wait()
        return super().result()


def patch_threads(monkeypatch, scheduler: Scheduler) -> None:
    """Gives the modules of `distributed` the clock and the threads of this scheduler."""
    for name in TIMED:
        monkeypatch.setattr(f"distributed.{name}.time", Clock(scheduler))
    for name in ("checkpoint", "rows"):
        monkeypatch.setattr(f"distributed.{name}.ThreadPoolExecutor", lambda *_: Thread(scheduler))
    monkeypatch.setattr("os._exit", scheduler.end)
    monkeypatch.setattr("os.getpid", lambda: 1)  # in names of files
