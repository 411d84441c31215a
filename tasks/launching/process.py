"""A process whose output is shown here, and which ends when this one does."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.launching.display import Display


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit status (128 + the signal that killed it), the last lines that it printed, and
    whether the user interrupted it."""

    status: int
    lines: list[str]
    is_interrupted: bool


def run(command: Sequence[str], environment: Mapping[str, str], display: Display) -> Ended:
    """Runs a command to its end and shows what it prints.

    KeyboardInterrupt passes SIGINT on and goes on until the process has ended. The process has its own group,
    because a terminal and Jupyter send SIGINT to all of theirs.
    """
    is_interrupted = False
    process = subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    )
    assert process.stdout is not None
    try:
        while True:
            try:
                while data := os.read(process.stdout.fileno(), 65536):
                    display.feed(data)
                status = process.wait()
                break
            except KeyboardInterrupt:
                is_interrupted = True
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
        display.close()
    finally:
        if process.poll() is None:  # an error of the display
            process.terminate()
            process.wait()
        process.stdout.close()
    return Ended(128 - status if status < 0 else status, display.lines, is_interrupted)
