"""SPMD: a job with TensorFlow's servers, which a stranger attacks from another network; then it goes on.

Usage: attacked.py ADDRESS FILE COMMAND…: the stranger's command gets rank 0's server at ADDRESS, and the file.
Prints what the stranger prints, as JSON.
"""

import json
import subprocess
import sys

import tensorflow as tf
from tensorflow.python.eager import context

from distributed.collectives import open_collectives
from distributed.devices import DeviceSettings
from distributed.world import World

address, path, *command = sys.argv[1:]
with World.join(DeviceSettings(device="cpu")) as world:
    ring = open_collectives(world, "ring")
    assert ring.all_reduce_sum(tf.constant([1.0])).numpy() == world.size
    servers = context.context()._collective_ops_server_def.cluster.job[0].tasks

    def attack() -> str:
        server = f"{address}:{servers[0].rpartition(':')[2]}"
        done = subprocess.run([*command, server, path], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    printed = world.on_first(attack)
    if world.rank == 0:
        print(json.dumps(printed), flush=True)
    assert ring.all_reduce_sum(tf.constant([2.0])).numpy() == 2 * world.size  # unless the attack reached it
