"""What the report reads: the files of runs, also while they go on, and scores of other programs."""

import itertools
import math
import os
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert.optimizers.schedules import Numbers
from bert.optimizers.settings import ScheduleSettings
from ringbase.errors import InputError
from ringbase.files import read_json, read_object
from ringbase.secrets import masked
from ringbase.settings import fields_of, made
from tasks.runs import history
from tasks.runs.details import REPORT, RUN, SCORED_ON, Section
from tasks.runs.environment import result_file

FILES = ("run.json", "metrics.jsonl", "step_times.json")
PLANNED_POINTS = 200  # of a curve that is drawn from a plan
NO_SCORES = ("step", "time", "rows")  # of a line in metrics.jsonl

Scores = Mapping[str, float]
Lines = Sequence[history.Figures]


class RunFiles(NamedTuple):
    """The contents of the files of a training, or of an evaluation alone, which has no plan and no
    steps; or only the scores of another program.

    Attributes:
      steps, evaluations: the lines of metrics.jsonl about training, and about held-out data.
      num_damaged: how many lines of metrics.jsonl were left out.
      scores: from result.json or, where it has none, predict_result.json; None before the end of
        the run.
      step_times: of each rank, the seconds of the parts of a step.
      sections: what the program shows of its predictions (tasks/runs/details.py).
      metric: the score whose highest value is best, if the program names one.
      scored_on: the data that its scores are of, by flag and file.
      kept: after how many steps the model is that was kept; None before the end.
      in_memory: what to say of data in memory, by the paths of their files.
      group: runs of several seeds have their folder's name in common.
    """

    name: str
    scores: Scores | None
    group: str = ""
    metric: str | None = None
    plan: Mapping[str, float] = {}
    stream: Mapping = {}  # what changes along it, and how often each corpus is seen
    config: Mapping = {}
    describes: Mapping[str, Mapping[str, str]] = {}  # the flags of its "model" and its "data"
    environment: Mapping = {}
    start: str = ""  # what the first start began from
    began_s: float | None = None  # when it did, or the first step was logged
    steps: Lines = ()
    evaluations: Lines = ()
    num_damaged: int = 0
    step_times: Sequence[Scores] = ()
    sections: Sequence[Section] = ()
    seconds: float | None = None  # of all starts that trained, each from the start of its ranks
    starts: Sequence[history.Entry] = ()  # its history
    scored_on: Sequence[str] = ()
    kept: int | None = None
    in_memory: Mapping[str, str] = {}

    @property
    def is_of_ringbert(self) -> bool:
        """Whether it is a run, and not the scores of another program."""
        return bool(self.environment)

    @property
    def ranks(self) -> int | None:
        """Of its plan, else of its last start."""
        if "size" in self.plan:
            return int(self.plan["size"])
        return self.starts[-1]["ranks"] if self.starts else None

    @property
    def measured(self) -> Scores:
        """The scores that there are so far."""
        return self.scores or {}

    def main_score(self, measured: Iterable[str]) -> str | None:
        """The one of these scores that says how good the model is."""
        return main_score(self.metric, measured)

    def median(self, key: str) -> float:
        """The median of a figure over the logged steps; 0 if it was not logged."""
        logged = [line[key] for line in self.steps if key in line]
        values = [*filter(math.isfinite, logged)]
        # The first line holds the compilation, unless it is the only one.
        return statistics.median(values[1:] or values) if values else 0.0

    def parts_of_losses(self) -> list[str]:
        """The names of the losses of parts of the rows, such as "mlm/news"."""
        names = dict.fromkeys(name for line in self.steps for name in line)
        return [name for name in names if "/" in name]

    def planned_rates(self) -> list[tuple[float, float]]:
        """Steps, and the learning rates that the plan has for them."""
        known = {field.name for field in fields_of(ScheduleSettings)}
        schedule = made(ScheduleSettings, {n: self.config[n] for n in known & self.config.keys()})
        names = "steps", "warmup_steps", "decay_steps"
        numbers = Numbers(*(self.plan.get(name, 0) for name in names))
        # the first update is step 1 of the page, and has the rate of step 0
        steps = np.unique(np.linspace(0, numbers.train_steps - 1, PLANNED_POINTS).astype(int))
        rates = schedule.rates(numbers, self.plan["learning_rate"], steps.astype(float), np)
        return [*zip((steps + 1).tolist(), rates.tolist(), strict=True)]

    def best(self) -> list[tuple[float, str]]:
        """The best evaluation, if its model is kept."""
        is_patient = self.config.get("early_stopping_patience") is not None
        is_kept = is_patient or self.config.get("load_best_model_at_end")
        name = self.main_score(self.evaluations[0]) if self.evaluations else None
        if not (name and is_kept):
            return []
        best = max(self.evaluations, key=lambda line: line.get(name, -math.inf))
        return [(best["step"], f"best {name}")]

    def interruptions(self) -> list[tuple[float, str]]:
        """The steps at which the training was started again, or went on with other ranks."""
        marks = {}
        for entry in self.starts[1:]:
            if entry["what"] == history.TRAINING:
                marks[entry["step"]] = f"restart, {entry['ranks']} ranks"
        restarts = list(marks)
        counted = [line for line in self.steps if "ranks" in line]
        for before, after in itertools.pairwise(counted):
            is_restart = any(before["step"] <= step < after["step"] for step in restarts)
            if before["ranks"] != after["ranks"] and not is_restart:
                marks.setdefault(after["step"], f"{after['ranks']:.0f} ranks")
        return sorted(marks.items())


def date(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def is_score(name: str) -> bool:
    """Whether a value of result.json is a score (higher is better), and not a loss, count or
    threshold."""
    return name not in NO_SCORES and not name.endswith(("loss", "total", "thresh"))


def main_score(metric: str | None, measured: Iterable[str]) -> str | None:
    """The one of these scores that says how good a model is: the program's, else the first."""
    scores = [name for name in measured if is_score(name)]
    if metric in scores:
        return metric
    return scores[0] if scores else None


def read_runs(places: Sequence[Path]) -> list[RunFiles]:
    """Reads the runs in folders, of a run with several seeds each of these, of a folder of runs all
    of them, and the scores in JSON files of other programs. Names each by its folder, or by its
    whole path if two have the same name."""
    names = [place.resolve().name.removesuffix(".json") for place in places]
    shown = names if len(set(names)) == len(names) else map(str, places)
    runs = []
    for place, given in zip(places, shown, strict=True):
        name = os.fsencode(given).decode(errors="replace")
        if place.suffix == ".json" and place.is_file():
            runs.append(RunFiles(name, scores_in(read_object(place), place)))
            continue
        parts = [] if is_run(place) else runs_in(place)
        if not parts:
            runs.append(read_run(place, name))
        elif all(part.name.startswith("seed-") for part in parts):
            runs += [read_run(part, f"{name} {part.name}", group=name) for part in parts]
        else:
            runs += read_runs(parts)
    return runs


def scores_in(result: Mapping, file: Path) -> Scores:
    """The scores in what a file holds. Raises InputError: it has none, or what are no numbers."""
    try:
        return history.figures(result["scores"])
    except history.DAMAGED as error:
        raise InputError(
            f"{file}: no object 'scores' with numbers in it: {error!r:.200}"
        ) from error


def is_run(folder: Path) -> bool:
    """Whether a folder holds a training, or an evaluation alone."""
    result = folder / result_file(trains=False)
    return (folder / "run.json").is_file() or (result.is_file() and RUN in read_object(result))


def runs_in(folder: Path) -> list[Path]:
    """The folders of runs in a folder, those of seeds by number."""
    runs = []
    for child in folder.glob("*/"):
        if is_run(child) or any(map(is_run, child.glob("seed-*/"))):
            runs.append(child)
    # a longer number is a higher one
    return sorted(runs, key=lambda run: (len(run.name) * run.name.startswith("seed-"), run.name))


def read_run(folder: Path, name: str, group: str = "") -> RunFiles:
    """The run in a folder. Raises InputError: there is none, or nothing is logged yet; other errors
    if a file is damaged."""
    path, logged, times = (folder / file for file in FILES)
    if is_run(folder) and not path.is_file():
        return read_evaluation(folder, name, group)
    for needed in (path, logged):
        if not needed.is_file():
            raise InputError(f"{folder}: no run of RingBERT here ({needed.name} is missing)")
    metrics, num_damaged = history.read_metrics(logged)
    steps = [line for line in metrics if "loss" in line]
    if not steps:
        raise InputError(f"{folder}: no step is logged yet in metrics.jsonl")
    run = masked(read_object(path))  # earlier versions wrote secrets down
    starts = masked(history.read(folder))
    origin, began_s = run.get("start", ""), steps[0].get("time")
    if starts:
        origin, began_s = starts[0]["from"], starts[0]["began"]
    files = [folder / result_file(trains) for trains in (True, False)]
    scores = seconds = kept = None
    sections: Sequence[Section] = ()
    scored_on: Sequence[str] = ()
    for file in reversed(files):  # a training's come first
        if file.is_file():
            result = read_object(file)
            seconds, kept = result.get("seconds"), result.get("steps")
            sections = result.get(REPORT) or sections
            scored_on = result.get(SCORED_ON) or scored_on
            scores = scores_in(result, file) or scores or {}
    return RunFiles(
        name,
        scores,
        group,
        metric=run.get("metric"),
        plan=run["plan"],
        stream=run.get("stream", {}),
        config=run.get("config", {}),
        describes=run.get("describes", {}),
        environment=run["environment"],
        start=origin,
        began_s=began_s,
        steps=steps,
        evaluations=[line for line in metrics if "loss" not in line],
        num_damaged=num_damaged,
        step_times=read_json(times) if times.is_file() else (),
        sections=sections,
        seconds=seconds,
        starts=starts,
        scored_on=scored_on,
        kept=kept,
        in_memory=run.get("in_memory", {}),
    )


def read_evaluation(folder: Path, name: str, group: str = "") -> RunFiles:
    """The run in a folder of a model that was evaluated alone, and not trained there."""
    file = folder / result_file(trains=False)
    result = read_object(file)
    run = result[RUN]
    starts = masked(history.read(folder))
    return RunFiles(
        name,
        scores_in(result, file),
        group,
        metric=run["metric"],
        config=run["config"],
        describes=run["describes"],
        environment=run["environment"],
        start=run["start"],
        began_s=starts[-1]["began"] if starts else None,
        sections=result.get(REPORT, ()),
        seconds=result["seconds"],
        starts=starts,
        scored_on=result.get(SCORED_ON, ()),
        in_memory=run.get("in_memory", {}),
    )
