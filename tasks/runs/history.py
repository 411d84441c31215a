"""What a run's folder remembers of each start: `history.json`, a list with an entry for each.

An entry: `began` (seconds since 1970), `what` was done, on how many `ranks` and which `machine`,
what it started `from` and at which `step`, the flags that have `changed` since the training before,
what was `predicted`, its `seconds`, the `files` that it has written, and the `job` that it was of.
"""

import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distributed import launcher
from distributed.run import Run
from distributed.world import World
from ringbase.errors import InputError
from ringbase.files import parse_json, read_json
from ringbase.secrets import masked

FILE = "history.json"
TRAINING = "training"
NEW = ("output_dir", "seeds")  # flags that say nothing about a change
NEEDED = {"began", "what", "ranks", "from", "step"}  # of every entry
LARGEST = 1e12  # of a figure; a larger one is damage or the end of a training, and becomes NaN
# What reading a value raises that is missing, or not what it should be.
DAMAGED = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)

Entry = dict
Figures = dict[str, float]


@dataclass
class History:
    """The starts of a run, the same on every rank: whoever is the first rank writes them."""

    run: Run
    world: World
    entries: list[Entry] = field(default_factory=list)

    def begin(self, what: str, origin: str, step: int, changed: Mapping | None = None) -> None:
        """Adds a start, on every rank. `changed`: the flags of a training with other values than
        in the training before, [old, new] by name."""
        entry = self.world.on_first(self._entry, what, origin, step)
        if changed is not None:
            entry["changed"] = dict(changed)
        self.entries.append(entry)
        self.run.write_json(FILE, masked(self.entries))

    def _entry(self, what: str, origin: str, step: int) -> Entry:
        since_start_s = time.monotonic() - self.run.began_s
        return {
            "began": round(time.time() - since_start_s, 1),
            "what": what,
            "ranks": self.world.size,
            "machine": f"{platform.node()}, {platform.machine()}, {os.cpu_count()} cores",
            "from": origin,
            "step": step,
            "job": this_job(),
        }

    def predicts(self, sources: list[str]) -> str | None:
        """Notes what this start predicts. Returns what the one before predicted, if that is
        other."""
        *before, last = self.entries
        last["predicted"] = sources
        self.run.write_json(FILE, masked(self.entries))
        earlier = [entry["predicted"] for entry in before if "predicted" in entry]
        if not earlier or earlier[-1] == sources:
            return None
        return ", ".join(earlier[-1])

    def end(self, trains: bool) -> dict[str, float]:
        """Ends this start, on every rank. Returns the seconds and ranks for its result: of a
        training those of all starts that trained, and the ranks of the last one."""
        took_s = round(time.monotonic() - self.run.began_s, 1)
        seconds, files = self.world.broadcast((took_s, sorted(self.run.written)))
        ranks = self.world.size
        if self.entries:
            self.entries[-1] |= {"seconds": seconds, "files": files}
            self.run.write_json(FILE, masked(self.entries))
        trainings = [entry for entry in self.entries if entry["what"] == TRAINING]
        if trains and trainings:
            seconds = round(sum(entry["seconds"] for entry in trainings), 1)
            ranks = trainings[-1]["ranks"]
        return {"seconds": seconds, "world_size": ranks}


def this_job() -> str:
    """What tells this job of bert-launch, restarts included, from others; "" without
    bert-launch."""
    return os.environ.get(launcher.JOB_ID, "")


def began_here(entries: Sequence[Entry]) -> bool:
    """Whether this job has begun the run whose starts these are."""
    return bool(entries) and bool(this_job()) and entries[-1].get("job") == this_job()


def starts_in(folder: Path) -> list[Entry]:
    """The starts of a run's folder. One without an end, which was broken off, ends with the last
    step that it has logged. Raises InputError: the file is damaged."""
    entries = read(folder)
    if entries and "seconds" not in entries[-1]:
        broken_off = entries[-1]
        logged, _ = read_metrics(folder / "metrics.jsonl")
        last_sign = logged[-1].get("time", 0.0) if logged else 0.0
        broken_off["seconds"] = round(max(0.0, last_sign - broken_off["began"]), 1)
    return entries


def changes(old: Mapping, config: Mapping) -> dict[str, list]:
    """The flags with other values than in the training before: [old, new] by name."""
    changed = {}
    for name, value in config.items():
        if name not in NEW and old.get(name, value) != value:
            changed[name] = [old[name], value]
    return changed


def files_of(entries: Sequence[Entry]) -> set[str]:
    """What the starts that came to their end have written."""
    return {name for entry in entries for name in entry.get("files", ())}


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
    """The entries of a run's folder. Raises InputError: the file is damaged."""
    path = folder / FILE
    entries = read_json(path) if path.is_file() else []
    is_list = isinstance(entries, list)
    if not is_list or not all(isinstance(each, dict) and each.keys() >= NEEDED for each in entries):
        raise InputError(f"{path}: damaged: no list of starts; without this file the run goes on")
    return entries


def read_metrics(path: Path) -> tuple[list[Figures], int]:
    """The lines of a metrics.jsonl, each a step and its figures, and how many others it has.

    A full disk or a kill may leave a part of a line. The last one, without its end, is being
    written.
    """
    metrics: list[Figures] = []
    num_damaged = 0
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    whole_lines, _, _ = text.rpartition("\n")
    for line in filter(str.strip, whole_lines.split("\n")):
        try:
            values = parse_json(line)
            metrics.append(figures(values) | {"step": int(values["step"])})
        except DAMAGED:
            num_damaged += 1
    return metrics, num_damaged


def figures(values: Mapping) -> Figures:
    """Numbers by name. Raises errors of many kinds: they are none."""
    numbers = {}
    for name, value in values.items():
        number = float(value)
        numbers[name] = number if abs(number) < LARGEST else math.nan
    return numbers
