"""SPMD without TensorFlow: the ranks of an elastic job add up and exchange messages all the time,
and compare what they get with what it must be.

Usage: sums.py FOLDER DEATHS Each rank makes FOLDER/ready-N. Some steps after so many deaths rank 0
prints how many ranks are left, and how many results were wrong, as JSON.
"""

import json
import sys
from pathlib import Path

import numpy as np

from distributed import elastic
from distributed.watchdog import StallSettings
from distributed.world import World

STEPS_AFTER, SUMS, NUMBERS, TEXT = 5, 100, 2000, "x" * 5000
STALLS = StallSettings(stall_warning=2, stall_timeout=10)
folder, deaths = Path(sys.argv[1]), int(sys.argv[2])
num_wrong = 0


def step():
    """The size of the world is known on every rank, so that each result is."""
    global num_wrong
    for _ in range(SUMS):
        total = world.all_reduce_sum(np.ones(NUMBERS))
        num_wrong += not (total == world.size).all()
    sizes = world.all_gather(world.size)
    message = world.broadcast((TEXT, world.size))
    num_wrong += sizes != [world.size] * world.size
    num_wrong += message != (TEXT, world.size)


def steps():
    left = STEPS_AFTER
    while left:
        step()
        left -= world.size <= size - deaths


with World.join(None, program="prog", stalls=STALLS) as world:
    elastic.enable(world)
    size = world.size
    (folder / f"ready-{world.rank}").touch()
    elastic.surviving(world, "the steps", steps)
    found = world.all_gather(num_wrong)
    if world.rank == 0:
        print(json.dumps({"ranks": world.size, "wrong": sum(found)}), flush=True)
