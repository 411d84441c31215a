"""SPMD: a toy trains while ranks are killed, as the arguments say.

Usage: elastic.py FOLDER [RANK@PLACE@STEP…]
RANK is the number at the start of the job; a rank is killed when it reaches PLACE in (or after) that step. With
the variable STOPS it is only stopped, and the watchdog kills it 1.5 s later. With LEAVE_AFTER=STEP the training is
asked to save and stop after that step.

Prints, from rank 0, the weights, the digests of all survivors' weights, and the seconds from each kill to the end
of the next step.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import toy

from distributed import elastic, train
from distributed.checkpoint import Checkpoints
from distributed.collectives import open_collectives
from distributed.devices import DeviceSettings
from distributed.evaluation import HeldOut
from distributed.optimizer import AllreduceOptimizer
from distributed.world import World

folder = Path(sys.argv[1])
victims = {(int(rank), place): int(step) for rank, place, step in (text.split("@") for text in sys.argv[2:])}
KILLED, ENDED = "killed at ", "step ended at "


def die_at(place: str, step: int) -> None:
    """Kills this process if its turn has come."""
    due = victims.get((int(world.name.split()[1]), place))
    if due is not None and step >= due:
        (folder / f"{place}-{step}.time").write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGSTOP if "STOPS" in os.environ else signal.SIGKILL)


def before(owner: object, name: str, place: str, after: bool = False) -> None:
    """Makes `owner.name` a place where ranks may die."""
    function = getattr(owner, name)

    def replaced(*args, **options):
        if not after:
            die_at(place, number[0])
        result = function(*args, **options)
        if after:
            die_at(place, number[0])
        return result

    setattr(owner, name, replaced)


number = [0]  # steps done
ends: list[float] = []


def counted(batch: dict) -> dict[str, float]:
    die_at("weights", number[0])
    return toy.weights(batch)


def tear() -> None:
    """Rank 1 dies after the sum of step 8, and rank 2 hears of it at once, in the same step; rank 0 does not."""
    whole = AllreduceOptimizer.all_reduce

    def torn(optimizer, own):
        result = whole(optimizer, own)
        if number[0] == 7 and world.size == world.launched_size:
            if world.rank == 1:
                (folder / "torn.time").write_text(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            if world.rank == 2:
                world.comm.recv(source=1)  # raises
        return result

    AllreduceOptimizer.all_reduce = torn


def measure() -> dict[str, float]:
    die_at("evaluation", number[0])
    values = world.all_gather(world.rank)
    return {"score": float(number[0]), "ranks": float(len(values))}


with World.join(DeviceSettings(device="cpu"), program="prog") as world:
    elastic.enable(world)
    world.watchdog.fence_s = 1.5
    collectives = open_collectives(world)
    before(AllreduceOptimizer, "all_reduce", "sum")
    before(AllreduceOptimizer, "all_reduce", "summed", after=True)
    before(AllreduceOptimizer, "update", "update")
    before(Checkpoints, "save", "save")
    before(Checkpoints, "_start_writing", "copy")
    before(Checkpoints, "_write", "write")
    if "SLOW_WRITE" in os.environ and world.rank == 0:  # a checkpoint is then written while many steps pass
        slow_write = Checkpoints._write
        Checkpoints._write = lambda *args: (time.sleep(20), slow_write(*args))
    if "TORN_SUM" in os.environ:
        tear()
    before(elastic, "place_in", "recovery")
    before(train.Loop, "_leave", "leave")
    before(collectives, "reopen", "memory")
    follow = train.Loop._follow

    def followed(self, step):
        number[0] = step.number
        ends.append(time.time())
        if step.number == int(os.environ.get("LEAVE_AFTER", "0")) and world.size == world.launched_size:
            world.stop_wanted.set()
        follow(self, step)

    train.Loop._follow = followed
    held_out = HeldOut(measure=measure, tokens=1, every=5, best="score")
    optimizer, state = toy.train(world, collectives, folder, weights=counted, save_every=4, held_out=held_out)
    digests = world.all_gather(optimizer.replica_digest())
    kills = [float(path.read_text()) for path in folder.glob("*.time")]
    waits = [min((end - kill for end in ends if end > kill), default=0.0) for kill in sorted(kills)]
    if world.rank == 0:
        facts = {"position": state.position, "step": state.step, "evaluations": state.evaluations}
        weights, waits = toy.flat(optimizer).tolist(), np.round(waits, 3).tolist()
        result = {"weights": weights, "digests": digests, "waits": waits}
        print(json.dumps(result | facts), flush=True)
