"""Joins the ranks on a machine with made-up GPUs and prints the bus id that each takes.

Arguments: "share" or "apart", and the bus ids that each rank sees, joined by commas.
"""

import json
import os
import sys

from harness.fake_gpus import Machine, installed

from distributed.devices import DeviceSettings
from distributed.world import World

how, *seen = sys.argv[1:]
gpus = seen[int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"]) % len(seen)].split(",")
settings = DeviceSettings(device="gpu", share_gpus=how == "share")
with installed(Machine(gpus)) as machine, World.join(settings, program="prog") as world:
    assert machine.seen["visible"] == [world.device.bus_id]
    taken = world.gather(world.device.bus_id)
    if taken is not None:
        print(json.dumps(taken))
