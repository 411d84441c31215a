"""SPMD: the toy of harness/toy.py trains while a test disturbs it.

Usage: training.py FOLDER [RANK@PLACE@STEP… torn impatient]
Each rank writes its process id to FOLDER/rank-N. A step takes a while until the file FOLDER/fast is there. Rank 0
prints the result as JSON.

When rank RANK (its number at the start) comes to PLACE in step STEP or later, it writes its process id to
FOLDER/RANK@PLACE@STEP, unless that is there, and waits to be killed. Places: "weights", "sum" and "summed" in a
step, "evaluation", "save" and "write", where rank 0 copies and writes a checkpoint. "torn": in step 8 rank 2 has
the sum, and waits for the death of rank 1 before the update.
"impatient": a rank that does not come is given up after 10 s.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from harness import toy

from distributed import elastic
from distributed.collectives import open_collectives
from distributed.devices import DeviceSettings
from distributed.train import HeldOut
from distributed.watchdog import StallSettings
from distributed.world import World

STEPS, TORN = 40, 8
folder, arguments = Path(sys.argv[1]), sys.argv[2:]
victims = [
    (rank, place, int(step)) for rank, place, step in (text.split("@") for text in arguments if "@" in text)
]
stalls = StallSettings(stall_warning=2, stall_timeout=10) if "impatient" in arguments else StallSettings()
step = 0  # of the training, as long as nobody has died


def wait_at(name: str) -> None:
    (folder / name).write_text(str(os.getpid()))
    while True:
        time.sleep(1)


def at(place: str) -> None:
    for rank, where, due in victims:
        name = f"{rank}@{place}@{due}"
        if (rank, where) == (first_rank, place) and step >= due and not (folder / name).exists():
            wait_at(name)


def weights(batch: dict) -> dict[str, float]:
    global step
    step += 1
    at("weights")
    if not (folder / "fast").exists():
        time.sleep(0.2)
    return toy.weights(batch)


def measure() -> dict[str, float]:
    at("evaluation")
    return {"score": float(len(world.all_gather(step)) > 0)}


def watched(backend: Any) -> Any:
    """A backend with places before and after its sums."""
    all_reduce_sum = backend.all_reduce_sum

    def summed(*args: Any) -> Any:
        at("sum")
        total = all_reduce_sum(*args)
        at("summed")
        if "torn" in arguments and step == TORN and first_rank == "2":
            world.comm.recv(source=1)  # raises, as MPI tells of the death
        return total

    backend.all_reduce_sum = summed
    return backend


make_checkpoints = toy.make_checkpoints


def watched_checkpoints(*args: Any) -> Any:
    checkpoints = make_checkpoints(*args)
    copy_model = checkpoints.copy_model

    def copy() -> Any:
        at("save")
        write_model = copy_model()
        return lambda into: (write_model(into), at("write"))[0]

    checkpoints.copy_model = copy
    return checkpoints


toy.make_checkpoints = watched_checkpoints
with World.join(DeviceSettings(device="cpu"), program="prog", stalls=stalls) as world:
    first_rank = str(world.rank)
    (folder / f"rank-{first_rank}").write_text(str(os.getpid()))
    elastic.enable(world)
    held_out = HeldOut(measure=measure, num_rows=1, every=10, best="score")
    optimizer, state = toy.train(
        world,
        watched(open_collectives(world)),
        folder,
        num_train_steps=STEPS,
        weights=weights,
        save_checkpoints_steps=4,
        held_out=held_out,
    )
    digests = world.all_gather(toy.flat(optimizer).tobytes().hex())
    if world.rank == 0:
        weights_at_the_end = toy.flat(optimizer).tolist()
        print(json.dumps({"weights": weights_at_the_end, "digests": digests, "step": state.step}), flush=True)
