"""What a search's page shows before its best runs: the trials, and what each value was worth."""

import html
import statistics
from collections.abc import Sequence
from pathlib import Path

from ringbase.errors import InputError
from ringbase.files import read_object
from tasks.runs.report.files import RunFiles, read_run
from tasks.runs.report.sections import Best, table
from tasks.runs.report.trials import (
    SEARCH,
    Trial,
    as_text,
    failures_of,
    is_loss,
    ranked,
    table_of,
    trials_in,
)

MOST_VALUES = 12  # of a flag, for a table of them


def is_search(folder: Path) -> bool:
    return (folder / SEARCH).is_file()


def trials_of(folder: Path) -> tuple[list[Trial], str | None]:
    """The trials of a search, the best first, and the score that the user names."""
    metric = read_object(folder / SEARCH).get("metric")
    return ranked(trials_in(folder), metric), metric


def best_of(trials: Sequence[Trial], most: int) -> list[RunFiles]:
    """The files of the best trials' runs, at most so many."""
    runs: list[RunFiles] = []
    for trial in trials:
        folders = trial.runs() if trial.score is not None else []
        for folder in folders:
            several = len(folders) > 1
            name = f"{trial.name} {folder.name}" if several else trial.name
            try:
                runs.append(read_run(folder, name, group=trial.name if several else ""))
            except InputError:  # of a script that logs nothing
                continue
    return runs[:most]


def heading(name: str, trials: Sequence[Trial]) -> str:
    states = [trial.state for trial in trials]
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    line = " · ".join([f"{len(trials)} trials", *counts])
    return f'<header><h1>{html.escape(name)}</h1><p class="quiet">{line}</p></header>'


def trial_table(trials: Sequence[Trial]) -> str:
    heads, rows = table_of(trials)
    if trials[0].score is not None:
        at = heads.index("score")
        rows[0][at] = Best(rows[0][at])
    lines = "".join(f"<p>{html.escape(line)}</p>" for line in failures_of(trials))
    return f"<h2>Trials</h2>{table(heads, rows)}{lines}"


def value_tables(trials: Sequence[Trial], metric: str | None) -> str:
    """For each flag with few values: how the trials with each did."""
    scored = [trial for trial in trials if trial.score is not None]
    sections = []
    names = dict.fromkeys(name for trial in scored for name in trial.values)
    best = min if is_loss(metric) else max
    for name in names:
        scores_of: dict[str, list[float]] = {}
        for trial in scored:
            if name in trial.values and trial.score is not None:
                scores_of.setdefault(as_text(trial.values[name]), []).append(trial.score)
        if not 1 < len(scores_of) <= MOST_VALUES:
            continue
        means = {value: statistics.mean(scores) for value, scores in scores_of.items()}
        rows = []
        for value, scores in sorted(scores_of.items(), key=lambda item: order_of(item[0])):
            mean = f"{means[value]:.4f}"
            is_best = means[value] == best(means.values())
            row = [value, len(scores), Best(mean) if is_best else mean, f"{best(scores):.4f}"]
            rows.append(row)
        body = table(["value", "trials", "mean score", "best"], rows)
        sections.append(f"<section><h3>--{html.escape(name)}</h3>{body}</section>")
    if not sections:
        return ""
    return f'<h2>What each value was worth</h2><div class="sections">{"".join(sections)}</div>'


def order_of(text: str) -> tuple[float, str]:
    """Numbers in their order, before words."""
    try:
        return float(text), ""
    except ValueError:
        return float("inf"), text


def command_of_search(folder: Path) -> str:
    words = " ".join(map(str, read_object(folder / SEARCH).get("command", ())))
    return f"<p><b>the command of the trials</b><br><code>{html.escape(words)}</code></p>"
