"""SPMD: sums over all ranks by both backends, before and after a stranger has tried the ports of
each host.

Usage: ring.py FOLDER Each host's ports are written to FOLDER/ports-NODE; the ranks wait for the
file FOLDER/tried. Rank 0 prints where each rank is, as JSON.
"""

import json
import socket
import sys
import time
from pathlib import Path

import numpy as np
from harness.lean import tf

from distributed.collectives import open_collectives
from distributed.devices import DeviceSettings
from distributed.world import World

NUM_VALUES = 1 << 20  # float32: four of the backend's pieces of 1 MiB
LISTENS = "0A"  # in /proc/net/tcp
folder = Path(sys.argv[1])


def ports():
    text = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    lines = map(str.split, text.splitlines())
    return [int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == LISTENS]


with World.join(DeviceSettings(device="cpu"), program="prog") as world:
    backends = [open_collectives(world, name) for name in ("ring", "mpi")]
    # Small whole numbers: float32 adds them exactly, in any order.
    values = np.arange(NUM_VALUES, dtype=np.float32) % 997
    expected = world.size * values + np.float32(sum(range(world.size)))
    for is_tried in (False, True):
        for backend in backends:
            (total,) = backend.all_reduce_sum([tf.constant(values + np.float32(world.rank))])
            np.testing.assert_array_equal(total.numpy(), expected, err_msg=backend.name)
        if is_tried:
            break
        world.barrier()
        if world.local_rank == 0:
            new = folder / f"new-{world.node}"
            new.write_text(json.dumps(ports()))
            new.rename(folder / f"ports-{world.node}")
        while not (folder / "tried").exists():
            time.sleep(0.02)
    places = world.gather(
        [world.rank, world.local_rank, world.ranks.local_size, world.node, socket.gethostname()]
    )
    if world.rank == 0:
        print(json.dumps({"places": places, "num_nodes": world.ranks.num_nodes}), flush=True)
