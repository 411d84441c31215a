"""Clock, threads and exit of simulated processes, in the place of the system's."""

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from harness.simulation.scheduler import Killed, Scheduler, current_process


class Thread:
    """The thread of a ThreadPoolExecutor, as greenlets of the process that made it."""

    def __init__(self, scheduler: Scheduler):
        self._scheduler, self._process = scheduler, current_process()
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

    def finish(self) -> None:
        if self._last:
            self._last.wait()


class Result(Future):
    """What a thread will return."""

    def __init__(self, scheduler: Scheduler):
        super().__init__()
        self._scheduler = scheduler
        self.waiters: list = []

    def wait(self) -> None:
        while not self.done():
            self._scheduler.wait(self.waiters, "a thread of its own")

    def result(self, timeout=None):
        self.wait()
        return super().result()


def inside(simulated: Callable, real: Callable) -> Callable:
    """What simulated processes call, and what other code does."""

    def call(*arguments, **more):
        function = real if current_process() is None else simulated
        return function(*arguments, **more)

    return call


def patch_threads(monkeypatch, scheduler: Scheduler) -> None:
    """Gives processes the clock and the threads of this scheduler."""

    def submit(executor, function, *arguments):
        if not hasattr(executor, "simulated"):
            executor.simulated = Thread(scheduler)
        return executor.simulated.submit(function, *arguments)

    def shutdown(executor, wait=True, cancel_futures=False):
        if wait and hasattr(executor, "simulated"):
            executor.simulated.finish()

    def now_s() -> float:
        return scheduler.now_s

    replaced: list[tuple] = [(time, name, now_s) for name in ("monotonic", "perf_counter", "time")]
    replaced += [(time, "sleep", scheduler.sleep), (os, "_exit", scheduler.end)]
    replaced += [(os, "getpid", lambda: 1)]  # in names of files
    replaced += [(ThreadPoolExecutor, "submit", submit), (ThreadPoolExecutor, "shutdown", shutdown)]
    for owner, name, simulated in replaced:
        monkeypatch.setattr(owner, name, inside(simulated, getattr(owner, name)))
