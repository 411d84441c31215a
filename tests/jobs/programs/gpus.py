"""Joins the ranks on a machine with made-up GPUs and prints the bus id that each takes.

Arguments: what each rank sees, as in harness/fake_gpus.py, joined by commas.
"""

import json
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from harness.fake_gpus import Machine, installed

from distributed.devices import DeviceSettings
from distributed.world import World

seen = sys.argv[1:]
gpus = seen[int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"]) % len(seen)].split(",")
with installed(Machine(gpus)) as machine, World.join(DeviceSettings(device="gpu"), program="prog") as world:
    taken = world.gather([gpu.split("/")[1] for gpu in machine.seen["visible"]])
    if taken is not None:
        print(json.dumps(taken))
