"""SPMD: counts to 20 and keeps the count in a file, as a training keeps checkpoints, until MODE ends it.

Usage: counting.py MODE FOLDER
Rank 0 prints "from COUNT" at each start. No TensorFlow is imported.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from distributed import records
from distributed.world import World
from ringbert.errors import InputError, Preempted
from ringbert.files import write_text

END = 20
mode, folder = sys.argv[1], Path(sys.argv[2])
file = folder / "count"


def is_time_to_die(first: int, count: int) -> bool:
    match mode:
        case "killed once" | "leaves a process":
            return first == 0 and count == 7
        case "killed at once":
            return True
        case "killed after 5":
            return count == first + 5
        case _:
            return False


def run(world: World) -> None:
    first = world.on_first(lambda: int(file.read_text()) if file.exists() else 0)
    if world.rank == 0:
        print(f"from {first}, {world.size} ranks", flush=True)
    if mode == "refused":
        raise InputError("--train_file x.json: broken")
    for count in range(first, END):
        last = world.size - 1
        if world.rank == last and is_time_to_die(first, count):
            if mode == "leaves a process":
                sleeping = subprocess.Popen(["sleep", "1000"], start_new_session=True)
                write_text(folder / "left", str(sleeping.pid))
            time.sleep(0.2)  # so that the record before has arrived
            os.kill(os.getpid(), signal.SIGKILL)
        if mode.startswith("waits") and first == 0 and count == 5:
            (folder / "waiting").touch()
            while not world.all_reduce_sum(np.array([world.stop_wanted.is_set()]))[0]:
                time.sleep(0.01)
            raise Preempted
        if mode == "slowly":
            time.sleep(0.2)
        world.all_reduce_sum(np.ones(1))
        if world.rank == 0:
            write_text(file, str(count + 1))
            records.tell("saved", folder=folder, position=count + 1)


with World.join(None, program="prog") as world:
    run(world)
