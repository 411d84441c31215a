"""SPMD without TensorFlow: the ranks count to 40, and rank 0 keeps the count in a file, as a
checkpoint does.

Usage: work.py FOLDER [FAULT] Each rank writes its process id to FOLDER/rank-N. With the fault
"hold" the ranks stay at count 7 when they come there for the first time, after FOLDER/holding is
made. Other faults are Python that is executed at count 5, on one rank if its number stands before
it: "1: fail()". Rank 0 prints "from COUNT" at each start.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

from distributed.run import Run
from distributed.watchdog import StallSettings
from distributed.world import World
from ringbase.errors import InputError

END, FAULTY, HOLDING = 40, 5, 7
STALLS = StallSettings(stall_warning=1, stall_timeout=4)
folder, fault = Path(sys.argv[1]), (*sys.argv[2:], "")[0]
file = folder / "count"


class Planned(Exception):
    """The failure under test."""


def fail():
    raise Planned("the planned failure")


def refuse():
    raise InputError("--train_file x.json: broken\n  in line 3")


def strike(world):
    rank, _, code = fault.rpartition(": ")
    if rank == str(world.rank):
        time.sleep(0.3)  # the others wait for this rank
    if rank in ("", str(world.rank)):
        exec(code)


def hold(world):
    if not world.on_first((folder / "holding").exists):
        world.on_first((folder / "holding").touch)
        while True:
            world.barrier()


with World.join(None, program="prog", stalls=STALLS) as world:
    run = Run(folder, world)
    world.on_first(run.lock)
    (folder / f"rank-{world.rank}").write_text(str(os.getpid()))
    first = world.on_first(lambda: int(file.read_text()) if file.exists() else 0)
    if world.rank == 0:
        print(f"from {first}", flush=True)
    for count in range(first, END):
        if count == FAULTY and fault != "hold":
            strike(world)
        if count == HOLDING and fault == "hold":
            hold(world)
        world.all_reduce_sum(np.ones(1))
        if world.rank == 0:
            file.write_text(str(count + 1))
            time.sleep(0.02)
