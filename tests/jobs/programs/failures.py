"""SPMD: ranks that work together until something goes wrong, as MODE says.

Usage: failures.py MODE [FOLDER]
A rank prints "failing at SECONDS" (since the epoch) right before it fails; TensorFlow is imported for the modes
in `TRAINING_MODES` and for RING_MODE alone.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

from distributed.devices import DeviceSettings
from distributed.world import World
from ringbert.errors import InputError, Preempted

TRAINING_MODES = ("step", "prefetch", "signal")
RING_MODE = "killed in the ring"


class Planned(Exception):
    """The failure under test."""


def announce() -> None:
    print(f"failing at {time.time()}", flush=True)


def fail(error: type[BaseException] = Planned, text: str = "the planned failure") -> None:
    announce()
    raise error(text)


def work(world: World, only_rank: int, failure, all_reduce_sum=None) -> None:
    """A loop of sums, as the steps of training are; `failure` strikes one rank while the others are in the sum."""
    for step in range(1000):
        if step == 20 and world.rank == only_rank:
            time.sleep(0.3)
            failure()
        (all_reduce_sum or world.all_reduce_sum)(np.ones(10))


def killed() -> None:
    announce()
    os.kill(os.getpid(), signal.SIGKILL)


def exit_with(code: object) -> None:
    announce()
    sys.exit(code)


def train(world: World, mode: str, folder: Path) -> None:
    import toy

    from distributed.collectives import open_collectives

    collated = weighed = 0

    def collate(fields: dict) -> dict[str, np.ndarray]:
        nonlocal collated
        collated += 1
        if mode == "prefetch" and collated == 8 and world.rank == 1:
            fail()
        return toy.collate(fields)

    def weights(batch: dict[str, np.ndarray]) -> dict[str, float]:
        nonlocal weighed
        weighed += 1
        if mode == "step" and weighed == 5 and world.rank == 1:
            fail()
        if mode == "signal":
            time.sleep(0.05)
            if weighed == 5 and world.rank == 0:
                print("waiting", flush=True)
            if weighed == 5 and "long step" in sys.argv:
                time.sleep(60)
        return toy.weights(batch)

    toy.train(world, open_collectives(world), folder, steps=1000, collate=collate, weights=weights)


def die_in_ring(world: World) -> None:
    import tensorflow as tf

    from distributed.collectives import open_collectives

    ring = open_collectives(world, "ring")
    work(world, 1, killed, lambda values: ring.all_reduce_sum(tf.constant(values)))


def leave_on_signal(world: World) -> None:
    """Waits until any rank got SIGUSR1, as training does, and leaves."""
    if world.rank == 0:
        print("waiting", flush=True)
    while not world.all_reduce_sum(np.array([world.stop_wanted.is_set()]))[0]:
        time.sleep(0.01)
    raise Preempted


def misbehave(world: World, mode: str) -> None:
    user_error = "--train_file x.json: broken\n  in line 3"
    match mode:
        case "exit":
            work(world, 1, lambda: exit_with(3))
        case "exit with words":
            work(world, 1, lambda: exit_with("the words"))
        case "killed":
            work(world, 1, killed)
        case "killed in the ring":
            die_in_ring(world)
        case "exception":
            work(world, 1, fail)
        case "thread":
            work(world, 1, lambda: threading.Thread(target=fail).start() or time.sleep(60))
        case "exception on all":
            work(world, world.rank, fail)
        case "on_first":
            world.on_first(fail)
        case "on_each_machine":
            world.on_each_machine(fail)
        case "input error on first":
            world.on_first(fail, InputError, user_error)
        case "input error on all":
            fail(InputError, user_error)
        case "input error on rank 1":
            work(world, 1, lambda: fail(InputError, user_error))
        case "preempted":
            leave_on_signal(world)
        case "disagree":
            announce()
            world.agree({"the configuration": "same", "the vocabulary": f"digest-{world.rank}"})
        case _:
            raise SystemExit(f"no mode {mode}")
    world.barrier()


mode = sys.argv[1]
device = DeviceSettings(device="cpu") if mode in (*TRAINING_MODES, RING_MODE) else None
with World.join(device, program="prog") as world:
    if mode in TRAINING_MODES:
        train(world, mode, Path(sys.argv[2]))
    else:
        misbehave(world, mode)
