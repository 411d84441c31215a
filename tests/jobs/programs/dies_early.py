"""The first time, rank 1 does not join: it is killed, it hangs, or it comes when there is a file FOLDER/go."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from distributed import elastic
from distributed.world import World
from ringbert.errors import Preempted


def main(mark: Path, fault: str) -> None:
    if os.environ["OMPI_COMM_WORLD_RANK"] == "1" and not mark.exists():
        mark.touch()
        if fault == "late":
            while not (mark.parent / "go").exists():
                time.sleep(0.05)
        else:
            time.sleep(2 if fault == "killed" else 1000)  # the other rank waits in MPI_Init
            os.kill(os.getpid(), signal.SIGKILL)
    with World.join(None) as world:
        elastic.enable(world)
        if world.rank == 0:
            print("size", world.size, flush=True)
        if fault == "late":
            while not world.all_reduce_sum(np.array([world.stop_wanted.is_set()]))[0]:
                time.sleep(0.01)
            raise Preempted


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
