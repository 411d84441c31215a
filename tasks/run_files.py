"""Reads the files of a run's folder and checks them, for `bert-report`."""

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringbase.errors import InputError
from ringbase.files import read_text
from ringbase.json_files import kind_of, parse_json, read_object
from ringbase.settings import MOST_STEPS

MOST_NAMES = 200  # of scores in a file
LONGEST_NAME = 200  # characters


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
    is_unique = len(set(names)) == len(names)
    shown_names = names if is_unique else list(map(str, folders))
    readable = [os.fsencode(name).decode(errors="replace") for name in shown_names]
    return [read_run(folder, name) for folder, name in zip(folders, readable, strict=True)]


def read_run(folder: Path, name: str) -> RunFiles:
    """The run in a folder. Raises InputError: there is none, nothing is logged yet, or a file is damaged."""
    for needed in ("run.json", "metrics.jsonl"):
        if not (folder / needed).is_file():
            raise InputError(f"{folder}: no run of RingBERT here ({needed} is missing)")
    metrics, num_damaged = read_metrics(folder / "metrics.jsonl")
    steps = [line for line in metrics if "loss" in line]
    if not steps:
        raise InputError(f"{folder}: no step is logged yet in metrics.jsonl")
    run = _with_objects(folder / "run.json", "plan", "environment")
    return RunFiles(
        name=name,
        plan=_plan(run["plan"], folder / "run.json"),
        machine=str(run["environment"].get("machine", "")),
        command=_command(run["environment"], folder / "run.json"),
        steps=steps,
        evaluations=[line for line in metrics if "loss" not in line],
        num_damaged=num_damaged,
        scores=_scores_in(folder),
    )


def read_metrics(path: Path) -> tuple[list[dict[str, float]], int]:
    """The lines of a metrics.jsonl, each a step and its figures, and how many others it has.

    A full disk or a kill may leave a part of a line. The last one, without its end, is being written.
    """
    metrics, num_damaged = [], 0
    lines = read_text(path).split("\n")
    for number, line in enumerate(lines, 1):
        try:
            metrics.append(_figures(parse_json(line, allow_nan=True)))
        except InputError:
            num_damaged += bool(line.strip()) and number < len(lines)
    return metrics, num_damaged


def _figures(line: object) -> dict[str, float]:
    """The figures of a line. Raises InputError for another value."""
    if not isinstance(line, dict) or not all(type(value) in (int, float) for value in line.values()):
        raise InputError("not an object of numbers")
    if type(line.get("step")) is not int or not 0 <= line["step"] <= MOST_STEPS or len(line) > MOST_NAMES:
        raise InputError("no step")
    return line


def _with_objects(path: Path, *keys: str, allow_nan: bool = False) -> dict[str, Any]:
    """A JSON object with an object under each of these keys. Raises InputError: the file holds something else."""
    value = read_object(path, allow_nan=allow_nan)
    for key in keys:
        if not isinstance(value.get(key), dict):
            raise InputError(f"{path}: damaged: there is no object {key!r} in it")
    return value


def _plan(plan: Mapping[str, Any], path: Path) -> dict[str, Any]:
    for name in ("steps", "size", "global_batch_size"):
        if type(plan.get(name)) is not int or plan[name] < 1:
            raise InputError(f"{path}: damaged: {name} of the plan must be a positive integer")
    if type(plan.get("learning_rate")) not in (int, float):
        raise InputError(f"{path}: damaged: learning_rate of the plan must be a number")
    return dict(plan)


def _command(environment: Mapping[str, Any], path: Path) -> list[str]:
    command = environment.get("command", [""])
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        raise InputError(f"{path}: damaged: command of the environment must be a list of strings")
    return command


def _scores_in(folder: Path) -> dict[str, float] | None:
    results = [folder / name for name in ("result.json", "predict_result.json")]
    found = [_scores(path) for path in results if path.is_file()]
    return next(filter(None, found), {}) if found else None


def _scores(path: Path) -> dict[str, float]:
    scores = _with_objects(path, "scores", allow_nan=True)["scores"]
    if len(scores) > MOST_NAMES:
        raise InputError(f"{path}: {len(scores)} scores, at most {MOST_NAMES} are expected")
    for name, value in scores.items():
        if len(name) > LONGEST_NAME:
            raise InputError(f"{path}: damaged: a score has a name of {len(name):,} characters")
        if type(value) not in (int, float):
            raise InputError(f"{path}: damaged: the score {name} must be a number, got {kind_of(value)}")
    return scores
