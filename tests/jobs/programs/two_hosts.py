"""SPMD: where each rank is, and 4 MiB sums over all of them; rank 0 prints the placement as JSON."""

import json
import socket

import numpy as np
import tensorflow as tf

from distributed.collectives import open_collectives
from distributed.devices import DeviceSettings
from distributed.world import World

NUM_VALUES = 1 << 20  # float32: four of the backend's pieces of 1 MiB

with World.join(DeviceSettings(device="cpu")) as world:
    backends = [open_collectives(world, name) for name in ("ring", "mpi")]
    # Small whole numbers: float32 adds them exactly, in any order.
    values = np.arange(NUM_VALUES, dtype=np.float32) % 997
    expected = world.size * values + np.float32(sum(range(world.size)))
    for collectives in backends:
        total = collectives.all_reduce_sum(tf.constant(values + np.float32(world.rank)))
        np.testing.assert_array_equal(total.numpy(), expected, err_msg=collectives.name)
        collectives.close()

    place = [world.rank, world.local_rank, world.local_size, world.node, socket.gethostname()]
    places = world.gather(place)
    if world.rank == 0:
        print(json.dumps({"size": world.size, "num_nodes": world.num_nodes, "places": places}), flush=True)
