"""SPMD: ranks that add up together until one of them does not come, as MODE says.

Usage: stalls.py MODE BACKEND WARNING_S TIMEOUT_S FOLDER
Modes: "stop R…" (these ranks get SIGSTOP in a step), "stop 1 anywhere" (sooner or later in a step), "stop 0 at
work" (while it works for the others), "slow" (rank 1 sleeps in a step), "work" (rank 0 works), "predict" (rank 1
is slow), "exit" (sys.exit(0) on rank 1), "short" (the data of rank 1 end early), "endless". SLEEP_S: how long a
rank sleeps or works.
A rank prints "failing at SECONDS" (since the epoch) right before, and makes the file FOLDER/failing.
"""

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from distributed.devices import DeviceSettings
from distributed.watchdog.stalls import StallSettings
from distributed.world import World


def announce() -> None:
    print(f"failing at {time.time()}", flush=True)
    (FOLDER / "failing").touch()


def stop() -> None:
    announce()
    os.kill(os.getpid(), signal.SIGSTOP)


def train(world: World, mode: str, backend: str) -> None:
    import toy

    from distributed.collectives import open_collectives

    kind, *words = mode.split()
    num_steps, weighed = 1_000_000 if kind in ("stop", "exit", "endless") else 60, 0
    if kind == "short":
        num_steps = 20 if world.rank == 1 else 60

    def weights(batch):
        nonlocal weighed
        weighed += 1
        if weighed == 20 and world.rank in STRUCK:
            time.sleep(0.3)  # the other ranks are in the sum
            match kind:
                case "stop":
                    if "anywhere" in words:
                        threading.Timer(random.random(), stop).start()
                    else:
                        stop()
                case "slow":
                    announce()
                    time.sleep(float(os.environ["SLEEP_S"]))
                case "exit":
                    announce()
                    sys.exit(0)
                case _:
                    announce()
        return toy.weights(batch)

    collectives = open_collectives(world, backend)
    toy.train(world, collectives, FOLDER, steps=num_steps, weights=weights, overlaps=backend == "ring")


def predict_slowly(world: World) -> None:
    """Rank 1 takes a second for each of its batches, rank 0 no time."""
    import numpy as np

    from distributed.predict import predict
    from distributed.run import Run

    def forward(batch):
        time.sleep(world.rank * 1.0)
        return {}

    rows = [np.array([number]) for number in range(2 * int(os.environ["SLEEP_S"]))]
    predict(world, Run.of(FOLDER, world), rows, lambda numbers: {"row": numbers}, forward, label=None)


mode, backend, warning_s, timeout_s = sys.argv[1:5]
FOLDER, STRUCK = Path(sys.argv[5]), [int(word) for word in mode.split() if word.isdigit()] or [1]
stalls = StallSettings(stall_warning=float(warning_s), stall_timeout=float(timeout_s))
with World.join(DeviceSettings(device="cpu") if backend != "none" else None, "prog", stalls=stalls) as world:
    world.watchdog.stacks = FOLDER / "stacks"
    if mode == "work":
        world.on_first(time.sleep, float(os.environ["SLEEP_S"]))
    elif mode == "predict":
        predict_slowly(world)
    elif mode == "stop 0 at work":
        world.on_first(stop)
    elif backend == "none":
        for step in range(1000):
            if step == 20 and world.rank in STRUCK:
                stop()
            world.barrier()
    else:
        train(world, mode, backend)
    world.say("all done")
