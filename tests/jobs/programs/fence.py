"""SPMD: rank 1 stops, then rank 0; the watchdog has them killed, and the survivors go on together.

Started with mpirun --with-ft ulfm, so that MPI reports deaths. The first survivor prints what happened as JSON.
"""

import json
import os
import re
import signal
import time
from typing import Any

from distributed.joining import wait_for
from distributed.watchdog.stalls import StallSettings
from distributed.world import World

SETTINGS = StallSettings(stall_warning=1, stall_timeout=60)


def work(world: World, comm: Any, stopped: int | None) -> float | None:
    """Takes steps together until `stopped`, a rank of `comm`, stops. Returns when its death was reported."""
    world.watchdog.restart(comm, world.node)
    try:
        for step in range(200 if stopped is None else 1_000_000):
            if step == 20 and comm.rank == stopped:
                os.kill(os.getpid(), signal.SIGSTOP)
            with world.operation("a step"):
                wait_for(comm.Ibarrier())
    except Exception as error:
        if not {"MPI_ERR_PROC_FAILED", "MPI_ERR_REVOKED"} & set(re.split(r"\W", str(error))):
            raise
        return time.monotonic()
    return None


world = World.join(None, "prog", stalls=SETTINGS)
world.watchdog.fence_s = 2.0
sizes, seconds = [world.size], []
comm = world.comm
for stopped in (1, 0):
    began = time.monotonic()
    failed = work(world, comm, stopped)
    assert failed is not None
    seconds.append(failed - began)
    comm.Revoke()
    comm = comm.Shrink()
    sizes.append(comm.size)
work(world, comm, None)
world.watchdog.stop()
if comm.rank == 0:
    print(json.dumps({"sizes": sizes, "seconds": seconds}), flush=True)
comm.Barrier()
os._exit(0)  # MPI cannot be finalized by all
