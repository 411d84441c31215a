"""SPMD: a training of 20 steps with a checkpoint every 4; rank 1 is killed at the first start, in its 11th step.

Usage: broken_off.py FOLDER [killed]
Rank 0 prints the step that it starts from, and at the end a digest of the weights.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import numpy as np
import toy

from distributed.checkpoint import complete_checkpoints, read_state
from distributed.collectives import open_collectives
from distributed.devices import DeviceSettings
from distributed.world import World

folder = Path(sys.argv[1])
with World.join(DeviceSettings(device="cpu")) as world:
    saved = world.on_first(complete_checkpoints, folder / "checkpoints")
    if world.rank == 0:
        print(f"from step {read_state(saved[-1]).step if saved else 0}", flush=True)
    weighed = 0

    def weights(batch: dict[str, np.ndarray]) -> dict[str, float]:
        global weighed
        weighed += 1
        if "killed" in sys.argv and not saved and weighed == 11 and world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return toy.weights(batch)

    optimizer, _ = toy.train(world, open_collectives(world), folder, save_every=4, weights=weights)
    if world.rank == 0:
        print(hashlib.sha256(toy.flat(optimizer).tobytes()).hexdigest(), flush=True)
