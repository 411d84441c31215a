"""Processes in one thread, of which one runs at a time: a seed decides which, when one dies, and
what time it is.

A process is some greenlets: its main program and its threads. Wherever a real process would wait,
or something could happen to it, its code calls `Scheduler.pause` or `Scheduler.wait`.
"""

import heapq
import itertools
import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter  # the real one
from typing import Any

from greenlet import getcurrent, greenlet

from distributed.watchdog import by_value

EVENT_S = 1e-5  # virtual seconds that everything takes
LONGEST_DETECTION_S = 0.05  # of a death, by another process


class Killed(BaseException):
    """This process is dead: its code ends, and has no effect any more."""


class Fault(AssertionError):
    """The code under test breaks a promise."""


@dataclass(eq=False)
class Process:
    """One rank's process: its threads, and what it knows of the others."""

    name: str
    machine: int
    scheduler: "Scheduler"
    is_alive: bool = True
    has_died: bool = False  # and not come to its end
    status: int | None = None  # of its exit
    # as sets, in the order of adding
    knows_dead: dict["Process", None] = field(default_factory=dict)
    revoked: dict[Any, None] = field(default_factory=dict)  # communicators
    waits_in: dict[Any, list] = field(default_factory=dict)  # thread -> the waiters it is among
    threads: list[greenlet] = field(default_factory=list)
    locked_files: list = field(default_factory=list)
    stop_wanted: Any = None
    operation: str = ""  # what it waits for, or did last

    def start(self, function: Callable[[], object]) -> None:
        """Runs a function in a new thread of this process."""
        thread = greenlet(function, self.scheduler.hub)
        thread.process, thread.resumed_s = self, perf_counter()
        self.threads.append(thread)
        self.scheduler.ready.append(thread)


class Scheduler:
    """Chooses what runs next. `before_turn(process)` is called before each turn of one: it can kill
    processes, and says how many seconds later the turn comes."""

    def __init__(self, seed: int, max_events: int):
        self.chance = random.Random(seed)
        self.max_events, self.event_s = max_events, EVENT_S
        self.hub = getcurrent()
        self.now_s = 0.0
        self.events = 0
        self.ready: list[greenlet] = []
        self.processes: list[Process] = []
        self.before_turn: Callable[[Process], float] = lambda process: 0.0
        self._later: list = []  # (time, number, function)
        self._numbers = itertools.count()
        self._to_kill: list[Process] = []

    # -- called by processes -----------------------------------------------------------------------

    def pause(self, operation: str) -> None:
        """Lets others run before this process does what `operation` says."""
        me = getcurrent()
        self._check_alive(me.process)
        me.process.operation = operation
        self.ready.append(me)
        self._switch(me)

    def wait(self, waiters: list[greenlet], operation: str) -> None:
        """Waits until somebody wakes the waiters."""
        me = getcurrent()
        self._check_alive(me.process)
        me.process.operation = operation
        waiters.append(me)
        me.process.waits_in[me] = waiters
        self._switch(me)

    def sleep(self, seconds: float) -> None:
        me = getcurrent()
        self._check_alive(me.process)
        self.after(seconds, lambda: self.ready.append(me))
        self._switch(me)

    def end(self, status: int) -> None:
        """Ends this process at once, without running any of its code."""
        process = getcurrent().process
        process.status = status
        self.kill(process)
        raise Killed

    def kill(self, process: Process) -> None:
        """Ends a process, when the next one has its turn."""
        if process.is_alive:
            process.is_alive, process.has_died = False, True
            self._to_kill.append(process)

    def _switch(self, me: greenlet) -> None:
        self.hub.switch()
        me.resumed_s = perf_counter()
        self._check_alive(me.process)

    def _check_alive(self, process: Process) -> None:
        if not process.is_alive:
            raise Killed

    # -- the hub -----------------------------------------------------------------------------------

    def after(self, seconds: float, function: Callable[[], object]) -> None:
        heapq.heappush(self._later, (self.now_s + seconds, next(self._numbers), function))

    def wake(self, waiters: list[greenlet]) -> None:
        for thread in waiters:
            del thread.process.waits_in[thread]
        self.ready.extend(waiters)
        waiters.clear()

    def run(self) -> None:
        """Runs until all processes have ended. Raises Fault if none can go on, or if they do not
        end."""
        while True:
            self._bury()
            if not any(process.threads for process in self.processes):
                return
            if not self.ready:
                if not self._later:
                    raise Fault(f"nobody can go on: {self.operations()}")
                self.now_s, _, function = heapq.heappop(self._later)
                function()
                continue
            self.events += 1
            self.now_s += self.event_s
            if self.events > self.max_events:
                raise Fault(f"no end after {self.events:,} events: {self.operations()}")
            while self._later and self._later[0][0] <= self.now_s:
                heapq.heappop(self._later)[2]()
            place = self.chance.randrange(len(self.ready))
            self.ready[place], self.ready[-1] = self.ready[-1], self.ready[place]
            thread = self.ready.pop()
            process = thread.process
            late_s = self.before_turn(process) if process.is_alive else 0.0
            if late_s:
                self.after(late_s, partial(self.ready.append, thread))
            elif process.is_alive:
                thread.switch()
                self._forget_ended(process)

    def _forget_ended(self, process: Process) -> None:
        process.threads = [thread for thread in process.threads if not thread.dead]
        if process.is_alive and not process.threads:
            process.is_alive = False
            if process.status:
                process.has_died = True
                self._notify_of_death(process)

    def _bury(self) -> None:
        """Ends the threads of those who died, and tells the others, each at its own time."""
        while self._to_kill:
            process = self._to_kill.pop(0)
            for thread, waiters in process.waits_in.items():
                waiters.remove(thread)
            process.waits_in.clear()
            for thread in process.threads:
                if thread:  # it has begun
                    thread.throw(Killed)
            process.threads = []
            for file in process.locked_files:
                file.close()
            self._notify_of_death(process)

    def _notify_of_death(self, dead: Process) -> None:
        for process in self.processes:
            if process.is_alive:
                learns = partial(self.learn, process.knows_dead, dead, process)
                self.after(self.chance.uniform(0, LONGEST_DETECTION_S), learns)

    def learn(self, facts: dict, fact: object, process: Process) -> None:
        """From now on a process knows something, wherever it waits."""
        facts[fact] = None
        for thread, waiters in process.waits_in.items():
            waiters.remove(thread)
            self.ready.append(thread)
        process.waits_in.clear()

    def operations(self) -> str:
        """What each living process does."""
        living = (process for process in self.processes if process.is_alive)
        return by_value({int(process.name.split()[1]): process.operation for process in living})


def current_process() -> Any:
    """The process whose code runs; None outside of a simulation."""
    return getattr(getcurrent(), "process", None)


def guarded(scheduler: Scheduler, process: Process, function: Callable[[], object]) -> Callable:
    """The main program of a process: its exceptions are its exit."""

    def main() -> None:
        try:
            function()
            process.status = 0 if process.status is None else process.status
        except Killed:
            pass
        except SystemExit as error:
            process.status = error.code if isinstance(error.code, int) else 1
        except Fault:
            raise
        except BaseException:
            process.status = 1
            traceback.print_exc()

    return main
