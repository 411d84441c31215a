"""What signals do: SIGUSR1 saves and stops; those that end a process save first where there is time for it."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Any


class StopRequest(Event):
    """Set when this process is to save and stop."""

    can_save = False  # a training runs, which will do so

    @contextmanager
    def during_training(self) -> Iterator[None]:
        """While the `with` block runs, signals that end this process lead to a checkpoint first."""
        self.can_save = True
        try:
            yield
        finally:
            self.can_save = False


def install_handlers(program: str, is_alone: bool, stop_wanted: StopRequest) -> None:
    """A process that is alone saves before it ends. mpirun kills its ranks half a second after SIGTERM, which is
    too early to save: there bert-launch sends SIGUSR1 instead."""

    def on_signal(number: int, frame: Any) -> None:
        name = signal.Signals(number).name
        if not stop_wanted.can_save or stop_wanted.is_set():
            print(f"{program}: ended by {name}", file=sys.stderr, flush=True)
            raise SystemExit(128 + number)
        stop_wanted.set()
        text = "finishing this step, then saving; send it again to end at once"
        print(f"{program}: {name}: {text}", file=sys.stderr, flush=True)

    signal.signal(signal.SIGUSR1, lambda *_: stop_wanted.set())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if is_alone else ():
        signal.signal(number, on_signal)
