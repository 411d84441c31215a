"""Runs mpirun for bert-launch: signals that end a job first let the ranks save."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAVING = signal.SIGUSR1  # mpirun forwards it to the ranks
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def supervise(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a command to its end. Returns its exit status; 128 + N if signal N ended it.

    The first SIGINT, SIGTERM or SIGHUP reaches the ranks as SIGUSR1: a training finishes its step, saves and exits
    with status 75. The second one ends them at once. If this process is killed, the command ends too.
    """
    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    command = subprocess.Popen(
        argv,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL if is_terminal else None,  # the terminal belongs to this process's group
        process_group=0,  # so that Ctrl-C reaches this process alone
        preexec_fn=_end_with_parent,
    )
    has_asked = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal has_asked
        if number == SAVING or not has_asked:
            command.send_signal(SAVING)
        else:
            command.terminate()
        if number != SAVING:
            name, has_asked = signal.Signals(number).name, True
            advice = "the ranks finish this step, save and exit; send it again to end them at once"
            print(f"bert-launch: {name}: {advice}", file=sys.stderr, flush=True)

    for number in (*ENDING, SAVING):
        signal.signal(number, on_signal)
    status = command.wait()
    return 128 - status if status < 0 else status


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
