"""A training without TensorFlow, as bert-search starts it: it takes some steps to a score that is a
function of its flags, and keeps its step in a file, as a checkpoint does.

Usage: trial.py --output_dir=FOLDER --rate=X [--batch=N --pause=SECONDS --bytes=N --gpus=N] A rate
above 1 is refused, one below 0 crashes. FOLDER/places has a line for each start: when, where, and
until when. FOLDER/steps has a line for each step that was trained.
"""

import contextlib
import json
import os
import socket
import sys
import time
from pathlib import Path

from distributed.cores import SLOTS
from distributed.devices import DeviceSettings
from distributed.run import Run
from distributed.world import World
from ringbase.errors import InputError, Preempted

STEPS = 5
given = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:])
folder, rate = Path(given["output_dir"]), float(given["rate"])
pause_s, num_bytes = float(given.get("pause", 0)), int(given.get("bytes", 0))
num_gpus = int(given.get("gpus", 0))


def score_after(step):
    """From 0.2 of what the flags reach to all of it. Also of a start that finds all steps taken,
    because the one before was stopped after the last of them."""
    return (1 - (rate - 0.3) ** 2) * step / STEPS - int(given.get("batch", 0)) / 100


def append(name, line):
    with (folder / name).open("a") as file:
        file.write(f"{json.dumps(line)}\n")


with contextlib.ExitStack() as stack:
    seen = {}
    if num_gpus:
        from harness import lean  # noqa: F401  (before TensorFlow)
        from harness.fake_gpus import machine

        seen = stack.enter_context(machine([f"0000:0{number}:00.0" for number in range(num_gpus)]))
    device = DeviceSettings() if num_gpus else None
    world = stack.enter_context(World.join(device, "trial.py", stalls=None))
    run = Run(folder, world)
    world.on_first(run.lock)
    began_s = time.time()
    if rate > 1:
        raise InputError(f"--rate must be at most 1, got {rate}")
    if rate < 0:
        raise RuntimeError("the planned failure")
    (folder / "model").mkdir(exist_ok=True)
    run.write_json("run.json", {"metric": "score"})
    place = {"host": socket.gethostname(), "slots": os.environ.get(SLOTS)}
    place |= {"cores": sorted(os.sched_getaffinity(0)), "gpus": seen.get("visible")}
    place |= {"began": began_s, "threads": world.device.threads, "pid": os.getpid()}
    count = folder / "count"
    first = int(count.read_text()) if count.exists() else 0
    append("begun", place)
    with world.stops.within("it saves and stops"):
        for step in range(first, STEPS):
            time.sleep(pause_s)
            score = score_after(step + 1)
            append("steps", step)
            append("metrics.jsonl", {"step": step + 1, "time": time.time(), "score": score})
            run.write("count", str(step + 1))
            run.write_bytes("model/weights", b"w" * num_bytes)
            if world.stops.wanted.is_set():
                append("saved", step + 1)
                raise Preempted(Preempted.STATUS)
    append("places", place | {"ended": time.time()})
    run.write_json("result.json", {"scores": {"score": score_after(STEPS)}, "seconds": 1.0})
