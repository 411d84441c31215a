"""Reads the files of a run's folder and checks them, for `bert-report`."""

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringbase.errors import InputError
from ringbase.files import read_text
from ringbase.json_files import kind_of, parse_json, read_object
from ringbase.settings import MOST_STEPS
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
    plan: dict[str, Any]
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
    run = read_object(path)
    plan, environment = (_part(path, run, key, dict) for key in ("plan", "environment"))
    _part(path, plan, "learning_rate", int, float)
    if min(_part(path, plan, key, int) for key in ("steps", "size", "global_batch_size")) < 1:
        raise InputError(f"{path}: damaged: the numbers of the plan must be positive")
    results = [folder / result_file(trains) for trains in (True, False)]
    scores = [_scores(result) for result in results if result.is_file()]
    return RunFiles(
        name=name,
        plan=plan,
        machine=str(environment.get("machine", "")),
        command=[str(word) for word in _part(path, environment, "command", list)],
        steps=steps,
        evaluations=[line for line in metrics if "loss" not in line],
        num_damaged=num_damaged,
        scores=next(filter(None, scores), {}) if scores else None,
    )


def read_metrics(path: Path) -> tuple[list[dict[str, float]], int]:
    """The lines of a metrics.jsonl, each a step and its figures, and how many others it has.

    A full disk or a kill may leave a part of a line. The last one, without its end, is being written.
    """
    metrics, num_damaged = [], 0
    lines = read_text(path).split("\n")
    for number, line in enumerate(lines, 1):
        try:
            figures = parse_json(line)
        except InputError:
            figures = None
        is_step = isinstance(figures, dict) and type(figures.get("step")) is int
        if is_step and 0 <= figures["step"] <= MOST_STEPS and {int, float} >= set(map(type, figures.values())):
            metrics.append({name: _figure(value) for name, value in figures.items()})
        else:
            num_damaged += bool(line.strip()) and number < len(lines)
    return metrics, num_damaged


def _scores(path: Path) -> dict[str, float]:
    scores = _part(path, read_object(path), "scores", dict)
    return {name: _figure(_part(path, scores, name, int, float)) for name in scores}


def _figure(value: float) -> float:
    return value if abs(value) < LARGEST else math.nan


def _part(path: Path, value: dict[str, Any], key: str, *types: type) -> Any:
    """What stands under a key of an object in the file. Raises InputError: it is missing or of another type."""
    if type(value.get(key)) not in types:
        needed, got = kind_of(types[-1]()), kind_of(value.get(key))
        raise InputError(f"{path}: damaged: {key} must be {needed}, got {got}")
    return value[key]
