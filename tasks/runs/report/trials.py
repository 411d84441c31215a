"""The trials of a search as their folders have them: what `bert-search` writes and the page reads.

SEARCH/search.json            what must not change, and how scores are compared
SEARCH/trial-NNN,…/trial.json number, values, state, scores; the rest of the folder is a run
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ringbase.errors import InputError
from ringbase.files import read_object
from ringbase.secrets import masked
from tasks.runs.environment import result_file
from tasks.runs.history import figures, read_metrics
from tasks.runs.report.files import is_score, main_score

SEARCH, TRIAL = "search.json", "trial.json"
UNSAFE = re.compile(r"[^\w.+-]")  # in the name of a folder
LONGEST_VALUE, LONGEST_NAME = 40, 200  # characters there
BEGUN, COMPLETE, FAILED, PRUNED = "begun", "complete", "failed", "pruned"


@dataclass(frozen=True)
class Trial:
    """A run of a search."""

    folder: Path
    number: int
    values: Mapping[str, Any]  # by the names of flags
    state: str = BEGUN
    score: float | None = None  # that by which trials are compared
    scores: Mapping[str, float] | None = None
    measured: Sequence[float] = ()  # the score while training, in order
    seconds: float | None = None
    error: str = ""  # the line with which it failed

    @property
    def name(self) -> str:
        return f"trial-{self.number:03}"

    @property
    def text(self) -> str:
        """Its values, as they are shown."""
        return ", ".join(f"{name} {as_text(value)}" for name, value in self.values.items())

    @property
    def has_ended(self) -> bool:
        return self.state != BEGUN

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "folder"}

    @classmethod
    def of(cls, folder: Path) -> "Trial":
        """Raises InputError: its file is damaged."""
        file = folder / TRIAL
        try:
            return cls(folder=folder, **read_object(file))
        except TypeError as error:
            raise InputError(f"{file}: damaged: {error}") from None

    def runs(self) -> list[Path]:
        """The folders of its runs: one, or one for each of `--seeds`."""
        of_seeds = [file.parent for file in sorted(self.folder.glob("seed-*/run.json"))]
        return of_seeds or [self.folder]


def as_text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def folder_name(number: int, values: Mapping[str, Any]) -> str:
    """That of a trial, which says what differs."""
    parts = [f"trial-{number:03}"]
    for name, value in values.items():
        parts.append(f"{name}={UNSAFE.sub('_', as_text(value))[:LONGEST_VALUE]}")
    return ",".join(parts)[:LONGEST_NAME]


def trials_in(folder: Path) -> list[Trial]:
    """Those of a search's folder that have begun, by number. Raises InputError: a file is
    damaged."""
    trials = [Trial.of(file.parent) for file in folder.glob(f"trial-*/{TRIAL}")]
    return sorted(trials, key=lambda trial: trial.number)


def ranked(trials: Sequence[Trial], metric: str | None) -> list[Trial]:
    """Those with the best score first, the earlier of equal ones; those without one last.
    `metric`: the score that the user names, which may be a loss."""

    def place(trial: Trial) -> tuple[bool, float, int]:
        if trial.state != COMPLETE or trial.score is None:
            return True, 0.0, trial.number
        return False, trial.score if is_loss(metric) else -trial.score, trial.number

    return sorted(trials, key=place)


def is_loss(metric: str | None) -> bool:
    """Whether a lower score is better."""
    return metric is not None and not is_score(metric)


def metric_of(trial: Trial, wanted: str | None, measured: Iterable[str]) -> str | None:
    """Which of the scores that were measured says how good a trial is: the `wanted` one, else the
    program's."""
    if wanted:
        return wanted if wanted in measured else None
    file = trial.runs()[0] / "run.json"
    return main_score(read_object(file).get("metric") if file.is_file() else None, measured)


def ended(trial: Trial, wanted: str | None) -> Trial | None:
    """A trial whose training is complete, with its scores; None before."""
    file = trial.folder / result_file(trains=True)
    if not file.is_file():
        return None
    result = read_object(file)
    scores = figures(result.get("scores", {}))
    name = metric_of(trial, wanted, scores)
    if name is None:
        missing = wanted or "a score"
        error = f"{missing} was not measured (scores: {', '.join(scores) or 'none'})"
        return replace(trial, state=FAILED, scores=scores, error=error)
    return replace(
        trial,
        state=COMPLETE,
        score=scores[name],
        scores=scores,
        measured=measured_so_far(trial, wanted),
        seconds=result.get("seconds"),
    )


def measured_so_far(trial: Trial, wanted: str | None) -> list[float]:
    """The score of held-out data while training, in order; none of several seeds."""
    lines, _ = read_metrics(trial.folder / "metrics.jsonl")
    evaluations = [line for line in lines if "loss" not in line]
    name = metric_of(trial, wanted, evaluations[0]) if evaluations else None
    return [line[name] for line in evaluations if name in line]


def table_of(trials: Sequence[Trial]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of a table of trials: what they scored, and what differs."""
    flags: dict[str, None] = {}
    for trial in trials:
        flags |= dict.fromkeys(trial.values)
    rows = []
    for trial in trials:
        score = "" if trial.score is None else f"{trial.score:.4f}"
        seconds = "" if trial.seconds is None else f"{trial.seconds:.0f}"
        values = [as_text(trial.values.get(name, "")) for name in flags]
        rows.append([str(trial.number), score, trial.state, *values, seconds])
    return ["trial", "score", "state", *flags, "seconds"], rows


def failures_of(trials: Sequence[Trial]) -> list[str]:
    """A line for each trial that failed."""
    failed = sorted((trial.number, trial) for trial in trials if trial.error)
    return [masked(f"{trial.name} failed: {trial.error}") for _, trial in failed]
