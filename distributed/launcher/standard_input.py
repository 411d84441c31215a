"""Gives standard input to one rank without mpirun, which would deliver it damaged.

Open MPI 5's mpirun does not pass on the end of its standard input, and repeats parts of what is longer than 64 KiB
(openpmix/prrte#2579).
"""

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from distributed import records


def standard_input_of(command: Sequence[str]) -> dict[str, str]:
    """The variable by which a rank of one of our programs reads this process's standard input; empty if the
    command does not read it, or if it is a terminal."""
    is_ours = any(Path(word).name.startswith("bert-") or word.startswith("tasks.") for word in command[:3])
    is_read = any(word == "-" or word.endswith("=-") for word in command)
    if not (is_ours and is_read) or sys.stdin is None or sys.stdin.isatty():
        return {}
    return {records.STANDARD_INPUT: f"{socket.gethostname()} /proc/{os.getpid()}/fd/0"}
