"""What signals do: SIGUSR1 saves and stops; those that end a process save first where there is time for it."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def install(program: str, is_alone: bool, stop_wanted: Event, is_training: Event) -> None:
    """Sets the handlers of this process.

    A process that is alone saves before it ends. mpirun kills its ranks half a second after SIGTERM, which is too
    early to save: there bert-launch turns these signals into SIGUSR1.
    """
    signal.signal(signal.SIGUSR1, lambda *_: stop_wanted.set())
    if not is_alone:
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if is_training.is_set() and not stop_wanted.is_set():
            stop_wanted.set()
            text = "finishing this step, then saving; send it again to end at once"
            print(f"{program}: {name}: {text}", file=sys.stderr, flush=True)
        else:
            print(f"{program}: ended by {name}", file=sys.stderr, flush=True)
            raise SystemExit(128 + number)

    for number in ENDING:
        signal.signal(number, on_signal)


@contextmanager
def training(is_training: Event) -> Iterator[None]:
    """While the `with` block runs, signals that end this process lead to a checkpoint first."""
    is_training.set()
    try:
        yield
    finally:
        is_training.clear()
