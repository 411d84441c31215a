"""How a process is asked to stop."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

from distributed import launcher, records
from distributed.messages import Messages


class Stops:
    """Requests to stop: SIGUSR1, as bert-launch and batch systems send it, SIGTERM, as they send it
    to the ranks themselves, and to a process alone what a terminal sends."""

    def __init__(self, messages: Messages, program: str):
        self.wanted = threading.Event()
        self._messages = messages
        self._program = program
        # what a request leads to while a training or a prediction runs; "" elsewhere
        self._then = ""
        self._requests = launcher.Requests()
        self._has_asked = False  # a signal, for a stop that is made or has been

    def from_now_on(self, then: str) -> None:
        """From now on a signal that asks for a stop is noted, for the next step or prediction,
        instead of ending the process at once. `then`: what it leads to."""
        if not self._then:
            self._tell("stops")
        self._then = then

    @contextlib.contextmanager
    def within(self, then: str) -> Iterator[None]:
        """A `with` block of which the same is true."""
        before = self._then
        self.from_now_on(then)
        try:
            yield
        finally:
            self._then = before
            if not before:
                self._tell("runs")

    def handle_signals(self) -> None:
        """Signals are handled here from now on."""
        numbers = [signal.SIGUSR1, signal.SIGTERM]
        if self._messages.size == 1:
            numbers += [signal.SIGINT, signal.SIGHUP]
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN and signal.SIGHUP in numbers:
            numbers.remove(signal.SIGHUP)  # under nohup
        for number in numbers:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        is_second = self._requests.is_second(number)
        if number == signal.SIGUSR1:
            self.wanted.set()
        elif is_second or not (self._then or self._has_asked):
            self._end_by(number)
        else:
            # mpirun sends SIGTERM also to the ranks that are left when one has failed
            if self._messages.size == 1 and not self.wanted.is_set():
                self._print(f"{signame(number)}: {self._then}; send it again to end at once")
            self._has_asked = True
            self.wanted.set()

    def _end_by(self, number: int) -> None:
        """Ends this process by a signal."""
        if self._messages.size == 1:
            self._print(f"ended by {signame(number)}")
            raise SystemExit(128 + number)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _print(self, text: str) -> None:
        print(f"{self._program}: {text}", file=sys.stderr, flush=True)

    def _tell(self, record: str) -> None:
        if self._messages.rank == 0:
            records.tell(record)


def signame(number: int) -> str:
    return signal.Signals(number).name
