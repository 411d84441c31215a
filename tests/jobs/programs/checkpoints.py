"""SPMD: parts of one training that go on from each other's checkpoints, and a kill in the middle of a write.

Usage: checkpoints.py PART FOLDER
  killed   one rank: is killed while it writes the third checkpoint of FOLDER/killed
  first    trains to step 7 of 20 in FOLDER/run, and leaves because rank 0 got SIGUSR1 (exit status 75)
  second   trains on from there to step 14, and leaves because the last rank alone got SIGUSR1
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import toy

from distributed.collectives import open_collectives
from distributed.devices import DeviceSettings
from distributed.world import World


def train_until_signalled(world: World, collectives, folder: Path, step_of_part: int, rank: int) -> None:
    """Trains until SIGUSR1, which this program sends to one rank in the given step; all ranks leave."""
    num_weighed = 0

    def weights(batch: dict[str, np.ndarray]) -> dict[str, float]:
        nonlocal num_weighed
        num_weighed += 1
        if num_weighed == step_of_part and world.rank == rank:
            os.kill(os.getpid(), signal.SIGUSR1)
        return toy.weights(batch)

    toy.train(world, collectives, folder, weights=weights)


def be_killed_in_a_write(world: World, collectives, folder: Path) -> None:
    saver = toy.Saver(world, collectives, folder)
    saver.save(10)
    saver.save(20)

    def die(into: Path) -> None:
        with (into / "model.safetensors").open("wb") as file:
            file.write(b"half of a file")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    saver.before_each_model(die)
    saver.save(30)


part, folder = sys.argv[1], Path(sys.argv[2])
with World.join(DeviceSettings(device="cpu")) as world:
    collectives = open_collectives(world)
    if part == "killed":
        be_killed_in_a_write(world, collectives, folder / "killed")
    else:
        train_until_signalled(world, collectives, folder / "run", 7, rank=0 if part == "first" else world.size - 1)
