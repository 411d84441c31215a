"""What a run's folder remembers of each start: `history.json`, a list with an entry for each.

An entry: `began` (seconds since 1970), `what` was done, on how many `ranks` and which `machine`,
what it started `from` and at which `step`, the flags that have `changed` since the training before,
what was `predicted`, and its `seconds`. All of it stands on rank 0.
"""

import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path

from distributed.run import Run
from distributed.world import World
from ringbase.errors import InputError
from ringbase.files import lines_of, parse_json, read_json, read_object

FILE = "history.json"
TRAINING = "training"
NEW = ("output_dir", "seeds")  # flags that say nothing about a change
NEEDED = {"began", "what", "ranks", "from", "step"}  # of every entry

Entry = dict


def begin(run: Run, world: World, what: str, origin: str, step: int, config: Mapping) -> None:
    """Adds a start. One before it without an end, which was broken off, ends with the last step
    that it has logged."""
    entries = read(run.folder)
    if entries and "seconds" not in entries[-1]:
        broken_off = entries[-1]
        lasted_s = _last_sign(run.folder) - broken_off["began"]
        broken_off["seconds"] = round(max(0.0, lasted_s), 1)
    since_start_s = time.monotonic() - run.began_s
    entry = {
        "began": round(time.time() - since_start_s, 1),
        "what": what,
        "ranks": world.size,
        "machine": f"{platform.node()}, {platform.machine()}, {os.cpu_count()} cores",
        "from": origin,
        "step": step,
    }
    if what == TRAINING:
        old = config_of(run.folder)
        changed = entry["changed"] = {}
        for name, value in config.items():
            if name not in NEW and old.get(name, value) != value:
                changed[name] = [old[name], value]
    run.write_json(FILE, [*entries, entry])


def predicted(run: Run, sources: list[str]) -> str | None:
    """Notes what this start predicts. Returns what the one before predicted, if that is other."""
    *before, last = read(run.folder)
    run.write_json(FILE, [*before, last | {"predicted": sources}])
    earlier = [entry["predicted"] for entry in before if "predicted" in entry]
    if not earlier or earlier[-1] == sources:
        return None
    return ", ".join(earlier[-1])


def end(run: Run, world: World, trains: bool) -> dict[str, float]:
    """Ends this start. Returns the seconds and ranks for its result: of a training those of all
    starts that trained, and the ranks of the last one."""
    seconds = round(time.monotonic() - run.began_s, 1)
    ranks = world.size
    entries = read(run.folder)
    if entries:
        entries[-1]["seconds"] = seconds
        run.write_json(FILE, entries)
    trainings = [entry for entry in entries if entry["what"] == TRAINING]
    if trains and trainings:
        seconds = round(sum(entry["seconds"] for entry in trainings), 1)
        ranks = trainings[-1]["ranks"]
    return {"seconds": seconds, "world_size": ranks}


def duration(seconds: float | None) -> str:
    """The two largest units of a time."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def read(folder: Path) -> list[Entry]:
    """The entries of a run's folder; none if it has none, or the file is damaged."""
    try:
        entries = read_json(folder / FILE)
        for entry in entries:
            assert entry.keys() >= NEEDED
    except (InputError, OSError, AssertionError, AttributeError, TypeError):
        return []
    return entries


def _last_sign(folder: Path) -> float:
    """When the last step was logged; 0 if none was."""
    path = folder / "metrics.jsonl"
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    for line in reversed(lines_of(text)):
        try:
            return float(parse_json(line)["time"])
        except (InputError, KeyError, TypeError, ValueError):
            continue
    return 0.0


def config_of(folder: Path) -> dict:
    """The flags of the training that wrote a run's folder; none if nobody knows."""
    try:
        return dict(read_object(folder / "run.json")["config"])
    except (InputError, KeyError, TypeError, ValueError):
        return {}
