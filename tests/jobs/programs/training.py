"""SPMD: the toy of harness/toy.py trains while a test disturbs it.

Usage: training.py FOLDER [RANK@PLACE@STEP… torn impatient] Each rank writes its process id to
FOLDER/rank-N. Until the file FOLDER/fast is there a step takes a while, and the training
waits in step 30 for a request to stop. Rank 0 prints the result as JSON.

When rank RANK (its number at the start) comes to PLACE in step STEP or later, it writes its process
id to FOLDER/RANK@PLACE@STEP, unless that is there, and waits to be killed. Places: "weights", "sum"
and "summed" in a step, "evaluation", "save" and "write", where rank 0 copies and writes a
checkpoint. "torn": in step 8 rank 2 has the sum, and waits for the death of rank 1 before the
update. "impatient": a rank that does not come is given up after 10 s.
"""

import json
import os
import sys
import time
from pathlib import Path

from harness import lean, toy  # noqa: F401  (lean comes first)

from distributed import elastic
from distributed.collectives import Collectives, open_collectives
from distributed.devices import DeviceSettings
from distributed.train import HeldOut
from distributed.watchdog import StallSettings
from distributed.world import World

STEPS, TORN, WAITING = 40, 8, 30
folder, arguments = Path(sys.argv[1]), sys.argv[2:]
stalls = (
    StallSettings(stall_warning=2, stall_timeout=10)
    if "impatient" in arguments
    else StallSettings()
)
step = 0  # of the training, as long as nobody has died


def at(place):
    for name in arguments:
        is_here = name.startswith(f"{first_rank}@{place}@") and step >= int(name.rpartition("@")[2])
        if is_here and not (folder / name).exists():
            (folder / name).write_text(str(os.getpid()))
            time.sleep(1000)


def is_fast():
    return (folder / "fast").exists()


def weights(batch):
    global step
    step += 1
    at("weights")
    if not is_fast():
        time.sleep(0.2)
    while step == WAITING and not is_fast() and not world.stops.wanted.is_set():
        time.sleep(0.02)
    return toy.weights(batch)


def measure():
    at("evaluation")
    return {"score": float(len(world.all_gather(step)) > 0)}


class Watched(Collectives):
    """A backend with places before and after its sums."""

    def __init__(self, backend):
        self._backend = backend

    def all_reduce_sum(self, tensors, compresses=False):
        at("sum")
        total = self._backend.all_reduce_sum(tensors, compresses)
        at("summed")
        if "torn" in arguments and step == TORN and first_rank == "2":
            world.comm.recv(source=1)  # raises, as MPI tells of the death
        return total


class WatchedModel(toy.SavedModel):
    """With places where it is copied, and where it has been written."""

    def copied(self):
        at("save")
        write = super().copied()
        return lambda into: (write(into), at("write"))[0]


with World.join(DeviceSettings(device="cpu"), program="prog", stalls=stalls) as world:
    first_rank = str(world.rank)
    (folder / f"rank-{first_rank}").write_text(str(os.getpid()))
    elastic.enable(world)
    held_out = HeldOut(measure=measure, num_rows=1, every=10, best="score")
    backend = Watched(open_collectives(world))
    settings = {"num_train_steps": STEPS, "save_checkpoints_steps": 4}
    optimizer, state = toy.train(
        world,
        backend,
        folder,
        weights=weights,
        held_out=held_out,
        saved_model=WatchedModel,
        **settings,
    )
    digests = world.all_gather(toy.flat(optimizer).tobytes().hex())
    if world.rank == 0:
        result = {"weights": toy.flat(optimizer).tolist(), "digests": digests, "step": state.step}
        print(json.dumps(result), flush=True)
