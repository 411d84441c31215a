"""When each phase of a program's start ended, if a variable asks for it.

Each rank appends a line of JSON to the file that the variable names. Without it nothing is written or waited for.
"""

import json
import os
import time
from pathlib import Path
from typing import Any, Literal, get_args

VARIABLE = "RINGBERT_PHASES"  # a file for a line of each rank's; bert-launch forwards it to all ranks
Phase = Literal["launch", "imports", "ranks", "backend", "data", "model", "first_step", "second_step"]
PHASES: tuple[Phase, ...] = get_args(Phase)  # in the order in which they end
STEPS: dict[int, Phase] = {1: "first_step", 2: "second_step"}


def ended(phase: Phase, result: Any = None) -> None:
    """Records that this rank has ended a phase, if it is asked for; waits for a tensor that the phase computed."""
    if path := os.environ.get(VARIABLE):
        if result is not None:
            result[:1].numpy()
        record = {"phase": phase, "time": time.time(), "process": os.getpid()}
        with Path(path).open("a") as file:  # one write, so that lines of several ranks do not mix
            file.write(json.dumps(record) + "\n")
