"""What signals do: SIGUSR1 saves and stops; those that end a process save first where there is time for it."""

import atexit
import faulthandler
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import FrameType

from distributed import records
from distributed.environment import launched_rank

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def install(program: str, is_alone: bool, stop_wanted: Event, is_training: Event) -> None:
    """Sets the handlers of this process.

    A process that is alone saves before it ends. mpirun kills its ranks half a second after SIGTERM, which is too
    early to save: there bert-launch turns these signals into SIGUSR1, and a rank shows where it was.
    """
    signal.signal(signal.SIGUSR1, lambda *_: stop_wanted.set())
    if not is_alone:
        show_stack_at_the_end()
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


def show_stack_at_the_end() -> None:
    """SIGTERM writes this rank's stack into a file where bert-launch wants it, else to standard error."""
    folder = os.environ.get(records.STACKS)
    if not folder:
        faulthandler.register(signal.SIGTERM, chain=True)
        return
    path = Path(folder) / f"rank-{launched_rank()}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    faulthandler.register(signal.SIGTERM, path.open("w"), chain=True)  # which keeps the file open
    atexit.register(path.unlink, missing_ok=True)


@contextmanager
def training(is_training: Event) -> Iterator[None]:
    """While the `with` block runs, signals that end this process lead to a checkpoint first."""
    is_training.set()
    try:
        yield
    finally:
        is_training.clear()
