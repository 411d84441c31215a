"""SPMD: checks of which one fails on rank 1 while the others wait for it, and one never ends there.

Prints name, status, text and seconds of each check, then ends as bert-doctor does.
"""

import json
import time

from distributed.doctor.examination import Check, Examination, Finding, ok
from distributed.world import World


def waits(world: World) -> Finding:
    """Fails on rank 1; the others then wait in vain."""
    if world.rank == 1:
        raise ZeroDivisionError("planned failure")
    world.barrier()
    return ok("nobody failed")


def adds(world: World) -> Finding:
    """Works only if the messages of the failed check do not get into it."""
    return ok(f"gathered {world.all_gather(world.rank)}")


def hangs(world: World) -> Finding:
    if world.rank == 1:
        time.sleep(1000)
    return ok("did not hang")


with World.join(None, "prog") as world:
    exam = Examination(world, lambda result: None)
    for name, run in (("waits", waits), ("adds", adds), ("adds again", adds), ("hangs", hangs), ("after", adds)):
        exam.run(Check("group", name, run, f"see {name}", limit_s=5))
    exam.run(Check("group", "needs", adds, needs=("adds",)))
    if world.rank == 0:
        print(json.dumps([[r.name, r.status, r.text, r.seconds] for r in exam.results]), flush=True)
exam.end(3)
