"""Reads the files of a run's folder and checks them, for `bert-report`."""

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringbase.errors import InputError
from ringbase.files import read_text
from ringbase.json_files import parse_json, read_object
from tasks.environment import result_file

LARGEST = 1e12  # of a figure; a larger one is damage or the end of a training, and becomes NaN


@dataclass(frozen=True)
class RunFiles:
    """The contents of a run's files.

    Attributes:
      plan: steps, size, global_batch_size and learning_rate, as in run.json.
      machine, command: of the environment in run.json.
      steps, evaluations: the lines of metrics.jsonl about training, and about held-out data.
      num_damaged: how many lines of metrics.jsonl were left out.
      scores: from result.json or, where it has none, predict_result.json; None before the end of the run.
    """

    name: str
    plan: dict[str, float]
    machine: str
    command: list[str]
    steps: list[dict[str, float]]
    evaluations: list[dict[str, float]]
    num_damaged: int
    scores: dict[str, float] | None

    def median(self, key: str) -> float:
        """The median of a figure over the logged steps; 0 if it was not logged."""
        values = [line[key] for line in self.steps if key in line and math.isfinite(line[key])]
        # The first line holds the compilation, unless it is the only one.
        return statistics.median(values[1:] or values) if values else 0.0


def read_runs(folders: Sequence[Path]) -> list[RunFiles]:
    """Reads the runs and names each by its folder, or by its whole path if two folders have the same name."""
    names = [folder.resolve().name for folder in folders]
    shown = names if len(set(names)) == len(names) else map(str, folders)
    readable = [os.fsencode(name).decode(errors="replace") for name in shown]
    return [read_run(folder, name) for folder, name in zip(folders, readable, strict=True)]


def read_run(folder: Path, name: str) -> RunFiles:
    """The run in a folder. Raises InputError: there is none, nothing is logged yet, or a file is damaged."""
    path = folder / "run.json"
    for needed in (path, folder / "metrics.jsonl"):
        if not needed.is_file():
            raise InputError(f"{folder}: no run of RingBERT here ({needed.name} is missing)")
    metrics, num_damaged = read_metrics(folder / "metrics.jsonl")
    steps = [line for line in metrics if "loss" in line]
    if not steps:
        raise InputError(f"{folder}: no step is logged yet in metrics.jsonl")
    files = [path, *(file for trains in (True, False) if (file := folder / result_file(trains)).is_file())]
    run, *results = [read_object(file) for file in files]
    try:
        plan = {key: int(run["plan"][key]) for key in ("steps", "size", "global_batch_size")}
        rate, environment = float(run["plan"]["learning_rate"]), run["environment"]
        machine, command = str(environment.get("machine", "")), [str(word) for word in environment["command"]]
        scores = [{name: _figure(float(value)) for name, value in each["scores"].items()} for each in results]
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise InputError(f"{', '.join(map(str, files))}: damaged: {error!r:.200}") from error
    best = next(filter(None, scores), {}) if scores else None
    others = [line for line in metrics if "loss" not in line]
    return RunFiles(name, {**plan, "learning_rate": rate}, machine, command, steps, others, num_damaged, best)


def read_metrics(path: Path) -> tuple[list[dict[str, float]], int]:
    """The lines of a metrics.jsonl, each a step and its figures, and how many others it has.

    A full disk or a kill may leave a part of a line. The last one, without its end, is being written.
    """
    metrics, num_damaged = [], 0
    lines = read_text(path).split("\n")
    for number, line in enumerate(lines, 1):
        try:
            figures = parse_json(line)
            step = int(figures["step"])
            metrics.append({**{name: _figure(float(value)) for name, value in figures.items()}, "step": step})
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            num_damaged += bool(line.strip()) and number < len(lines)
    return metrics, num_damaged


def _figure(value: float) -> float:
    return value if abs(value) < LARGEST else math.nan
