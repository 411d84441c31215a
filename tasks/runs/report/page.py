"""bert-report: one HTML file, without anything outside it, that shows how runs went.

    bert-report squad_output
    bert-report squad_output other_output … [other_program.json …] [--output_file NEW.html]

The page of one run, of its seeds, or of a folder of runs is report.html in that folder; every run
writes its own at its end. That of several is comparison.html in the working directory. It reads
run.json, history.json, metrics.jsonl, step_times.json and result.json (or predict_result.json), and
needs neither TensorFlow nor MPI. It also works while a run is still going on. A JSON file
{"scores": {"f1": 88.5}} is a column of scores of another program.
"""

import html
import itertools
import math
import shlex
import statistics
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ringbase.errors import InputError
from ringbase.files import write_text
from tasks.runs import flags
from tasks.runs.report.charts import Curve, chart, key, smoothed
from tasks.runs.report.files import NO_SCORES, Lines, RunFiles, date, is_score, read_runs
from tasks.runs.report.sections import Best, section, table

COMPARISON = "comparison.html"  # of several places
PAGE, STYLE = "report.html", Path(__file__).with_name("style.css")
PARTS = {
    "data_s": "data",
    "compute_s": "compute",
    "reduce_s": "sum over ranks",
    "apply_s": "update",
}
MOST_COLORS, MOST_TILES = 6, 4
MODEL_FLAGS, DATA_FLAGS = (
    ("model", "init_checkpoint", "bert_config_file"),
    (
        "task_name",
        "data_dir",
        "dataset_name",
        "train_file",
        "input_file",
        "dev_file",
        "predict_file",
    ),
)
NOT_COMPARED = ("output_dir", "seeds")


def main(argv: Sequence[str] | None = None) -> None:
    words = deque(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        usage = (
            "usage: bert-report OUTPUT_DIR [OUTPUT_DIR or FILE.json ...] [--output_file FILE]\n\n"
        )
        flags.stop(usage + str(__doc__), 0 if words else 2)
    places, output_file = list[Path](), None
    with flags.reporting("bert-report"):
        while words:
            name, equals, value = words.popleft().partition("=")
            if name in ("--output_file", "-output_file"):
                output_file = Path(value if equals else words.popleft() if words else "")
            elif name.startswith("-"):
                raise InputError(f"unknown flag {name[:80]}: the only one is --output_file")
            else:
                places.append(Path(name + equals + value))
        path = write_page(places, output_file)
    flags.stop(str(path), 0)


def write_page(places: Sequence[Path], output_file: Path | None = None) -> Path:
    """Writes the page of these runs, of one into its folder. Raises InputError: a file is missing
    or damaged."""
    if not places or not places[0].is_dir():
        raise InputError(f"{places[0] if places else 'OUTPUT_DIR'}: no such folder of a run")
    path = output_file or (places[0] / PAGE if len(places) == 1 else Path(COMPARISON))
    if path.exists() and path.suffix != ".html":
        raise InputError(f"--output_file {path} must be an HTML file")
    write_text(path, page_of(read_runs(places)))
    return path


def page_of(places: Sequence[RunFiles]) -> str:
    title = html.escape(" · ".join(dict.fromkeys(place.group or place.name for place in places)))
    score = next(filter(None, (place.main_score(place.scores or ()) for place in places)), "")
    places = sorted(places, key=lambda place: -(place.scores or {}).get(score, -math.inf))
    runs = [place for place in places if place.steps]
    groups = list(dict.fromkeys(run.group or run.name for run in runs))
    colors = {run.name: groups.index(run.group or run.name) % MOST_COLORS for run in runs}
    parts = [
        f"<header><h1>{title}</h1>{summary(runs, score)}</header>",
        score_table(places),
        f'<h2>Training</h2><div class="charts">{"".join(charts_of(runs, colors))}</div>',
        step_bars(runs),
        differences(runs),
        *(part for run in runs for part in sections_of(run, len(runs) > 1)),
        f"<h2>How {'it was' if len(runs) == 1 else 'they were'} run</h2>{facts_table(runs)}",
        *map(history_of, runs),
        *map(command_of, runs),
    ]
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width,initial-scale=1"><title>{title}</title><style>{STYLE.read_text()}</style></head>'
    )
    return f"{head}<body><main>{''.join(parts)}</main></body></html>\n"


def summary(runs: Sequence[RunFiles], score: str) -> str:
    """A line with date and size of a single run, and its main scores in large figures; of several
    the score by which they are sorted."""
    if len(runs) > 1:
        order = f", the highest {html.escape(score)} first" if score else ""
        return f'<p class="quiet">{len(runs)} runs{order}</p>'
    run, size = runs[0], runs[0].plan["size"]
    ranks, scores = f"{size:.0f} rank{'s' * (size != 1)}", run.scores or {}
    facts = [run.began(), *by_flags(run, MODEL_FLAGS), ranks, duration(run.seconds)]
    tiles = "".join(
        f'<div class="tile"><b>{shown(name, scores)}</b>'
        f"<span>{html.escape(name.replace('_', ' '))}</span></div>"
        for name in tiles_of(scores)
    )
    return (
        f'<p class="quiet">{html.escape(" · ".join(filter(None, facts)))}</p><div'
        f' class="tiles">{tiles}</div>'
    )


def tiles_of(scores: Mapping[str, float]) -> list[str]:
    """The main scores, which a task gives first, and losses if there is room."""
    return sorted(scores, key=is_score, reverse=True)[:MOST_TILES]


def duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min {rest} s"
        if minutes
        else f"{rest} s"
    )


def by_flags(run: RunFiles, names: Iterable[str]) -> Iterator[str]:
    """The last parts of the paths that these flags have."""
    for name in names:
        if value := run.config.get(name):
            yield str(value).rstrip("/").rsplit("/", 1)[-1]


# -- scores ----------------------------------------------------------------------------------------


def score_table(places: Sequence[RunFiles]) -> str:
    """A row for each score; columns for each run, and for the mean of several seeds. Of a single
    run only what its tiles do not show."""
    by_run = [place.scores for place in places]
    measured = [scores for scores in by_run if scores]
    hidden = {*NO_SCORES, *(tiles_of(measured[0]) if len(by_run) == len(measured) == 1 else ())}
    groups: dict[str, Mapping[str, str]] = {}
    for group in filter(None, dict.fromkeys(place.group for place in places)):
        members = [place.scores for place in places if place.group == group and place.scores]
        groups[f"{group}: mean ± deviation"] = means(members) if len(members) > 1 else {}
    rows = []
    for name in dict.fromkeys(name for scores in measured for name in scores):
        values = {scores[name] for scores in measured if name in scores}
        best = max(values) if is_score(name) else min(values) if name.endswith("loss") else None
        row: list[str] = [name]
        for scores in by_run:
            text = "not yet"
            if scores is not None:
                text = shown(name, scores) if name in scores else ""
                if len(values) > 1 and scores.get(name, math.nan) == best:
                    text = Best(text)
            row.append(text)
        row += [group.get(name, "") for group in groups.values()]
        if name not in hidden:
            rows.append(row)
    if rows:
        return f"<h2>Scores</h2>{table(['', *(place.name for place in places), *groups], rows)}"
    return "<p>No scores yet.</p>" if None in by_run else ""


def means(members: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """Mean and standard deviation of each score that all have."""
    shared = [name for name in members[0] if all(name in scores for scores in members)]
    columns = {name: [scores[name] for scores in members] for name in shared}
    mean = {name: statistics.mean(values) for name, values in columns.items()}
    return {name: f"{shown(name, mean)} ± {statistics.stdev(columns[name]):.2g}" for name in shared}


def shown(name: str, scores: Mapping[str, float]) -> str:
    """A value as text: counts are whole, percentages, as SQuAD's scores are, have two decimals,
    others four."""
    if name.endswith("total"):
        return f"{scores[name]:,.0f}"
    is_percent = is_score(name) and any(
        value > 1 for other, value in scores.items() if is_score(other)
    )
    return f"{scores[name]:.2f}" if is_percent else f"{scores[name]:.4f}"


# -- curves ----------------------------------------------------------------------------------------


def charts_of(runs: Sequence[RunFiles], colors: Mapping[str, int]) -> Iterator[str]:
    several = len(runs) > 1

    def curves(key: str) -> list[Curve]:
        return [Curve(run.name * several, points(run.steps, key), colors[run.name]) for run in runs]

    marks = [(float(best[0]), f"best {best[1]}") for run in runs[:1] if (best := run.best())]
    breaks = [] if several else runs[0].interruptions()
    losses = curves("loss")
    # of several runs the raw curves would hide each other
    drawn = [] if several else [Curve("training", losses[0].points, style="raw")]
    drawn += [
        Curve(loss.name or "training, smoothed", smoothed(loss.points), loss.color)
        for loss in losses
    ]
    scores: list[Curve] = []
    for run in runs:
        measured = dict.fromkeys(name for line in run.evaluations for name in line)
        for name in measured:
            is_loss = name.endswith("loss")
            if is_loss or (name == run.main_score(measured) if several else is_score(name)):
                number = len(drawn) - 1 if is_loss else len(scores)
                color = colors[run.name] + (0 if several else number)
                label = f"{run.name} {name}" if several else name
                curve = Curve(label, points(run.evaluations, name), color % MOST_COLORS, "dots")
                (drawn if is_loss else scores).append(curve)
    yield chart(f"loss{', smoothed' * several}", drawn, [*marks, *breaks])
    yield chart("scores on held-out data", scores, marks, from_zero=False)
    yield chart("examples per second of the whole job", curves("examples_per_s"), breaks)
    yield chart("learning rate", curves("learning_rate"), from_zero=False)
    yield chart("gradient norm before clipping", curves("gradient_norm"))


def points(lines: Lines, key: str) -> list[tuple[float, float]]:
    return [(line["step"], line[key]) for line in lines if key in line]


def step_bars(runs: Sequence[RunFiles]) -> str:
    """A bar for each rank, or run of several, of the median milliseconds of each part of a step."""
    labels = dict(PARTS)
    if all(run.plan["size"] == 1 for run in runs):
        del labels["reduce_s"]
    bars: dict[str, list[float]] = {}
    for run in runs:
        times = run.step_times if len(runs) == 1 else run.step_times[:1]
        for rank, parts in enumerate(times or [{part: run.median(part) for part in labels}]):
            name = f"rank {rank}" if len(runs) == 1 else run.name
            bars[name] = [1e3 * parts.get(part, 0.0) for part in labels]
    longest = max(map(sum, bars.values()))
    if not longest:
        return ""
    rows = []
    for name, parts_ms in bars.items():
        titles = [
            f"{label} {ms:,.0f} ms" for label, ms in zip(labels.values(), parts_ms, strict=True)
        ]
        pieces = (
            f'<i class="c{color}" style="width:{100 * ms / longest:.2f}%" title="{title}"></i>'
            for color, (title, ms) in enumerate(zip(titles, parts_ms, strict=True))
        )
        rows.append(
            f'<div class="bar"><span>{html.escape(name)}</span><div>{"".join(pieces)}</div>'
            f"<span>{sum(parts_ms):,.0f} ms</span></div>"
        )
    shown_labels = titles if len(bars) == 1 else labels.values()
    legend = "".join(map(key, shown_labels, itertools.count()))
    return (
        f'<h2>Where a step\'s time goes (median)</h2><div class="bars">{"".join(rows)}</div>'
        f'<div class="legend">{legend}</div>'
    )


# -- facts -----------------------------------------------------------------------------------------


def differences(runs: Sequence[RunFiles]) -> str:
    """The flags that all runs have, with values that differ."""

    def text(value: object) -> str:
        return (
            "not set"
            if value is None
            else str(value).lower()
            if isinstance(value, bool)
            else str(value)
        )

    rows = [
        [f"--{name}", *(text(run.config[name]) for run in runs)]
        for name in runs[0].config
        if name not in NOT_COMPARED and all(name in run.config for run in runs)
    ]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    return (
        f"<h2>Flags that differ</h2>{table(['', *(run.name for run in runs)], rows)}"
        if rows
        else ""
    )


def sections_of(run: RunFiles, several: bool) -> Iterator[str]:
    if run.sections:
        yield f"<h2>Predictions{f' of {html.escape(run.name)}' if several else ''}</h2>"
        yield f'<div class="sections">{"".join(map(section, run.sections))}</div>'


def facts_table(runs: Sequence[RunFiles]) -> str:
    """A row for each fact, a column for each run."""
    facts = {
        "steps": [f"{run.steps[-1]['step']:,} of {run.plan['steps']:,.0f}" for run in runs],
        "ranks": [f"{run.plan['size']:.0f}" for run in runs],
        "global batch": [f"{run.plan['global_batch_size']:.0f}" for run in runs],
        "learning rate": [f"{run.plan['learning_rate']:.3g}" for run in runs],
        "warmup steps": [
            f"{run.plan['warmup_steps']:,.0f}" if "warmup_steps" in run.plan else "" for run in runs
        ],
        "last loss": [shown("loss", run.steps[-1]) for run in runs],
        "examples/s (median)": [f"{run.median('examples_per_s'):.1f}" for run in runs],
        "precision": [str(run.config.get("precision", "")) for run in runs],
        "model": [", ".join(by_flags(run, MODEL_FLAGS)) for run in runs],
        "weights from": [run.origin() for run in runs],
        "data": [", ".join(by_flags(run, DATA_FLAGS)) for run in runs],
        "started": [run.began() for run in runs],
        "took": [duration(run.seconds) for run in runs],
        "machine": [str(run.environment.get("machine", "")) for run in runs],
        "packages": [versions_of(run) for run in runs],
    }
    return table(
        ["", *(run.name for run in runs)],
        [[name, *cells] for name, cells in facts.items() if any(cells)],
    )


def history_of(run: RunFiles) -> str:
    """A row for each start, if there were several."""
    if len(run.starts) < 2:
        return ""
    rows = []
    for entry in run.starts:
        what = ", ".join([str(entry["what"]), *entry.get("predicted", ())])
        changes = [f"--{k} {old} → {new}" for k, (old, new) in entry.get("changed", {}).items()]
        took = duration(entry.get("seconds"))
        place = entry["step"], entry["ranks"], str(entry.get("machine", ""))
        rows.append([date(entry["began"]), what, *place, took, entry["from"], ", ".join(changes)])
    columns = ["started", "what", "step", "ranks", "machine", "took", "from", "flags that changed"]
    return f"<h2>Starts of {html.escape(run.name)}</h2>{table(columns, rows)}"


def versions_of(run: RunFiles) -> str:
    versions = dict(run.environment.get("packages") or {}, commit=run.environment.get("git_commit"))
    names = ("ringbert", "tensorflow", "tensorflow-cpu", "keras", "commit")
    return ", ".join(f"{name} {versions[name]}" for name in names if versions.get(name))


def command_of(run: RunFiles) -> str:
    """A paragraph with the command as it was typed, and that of each rank, as a shell takes it."""
    launched = run.environment.get("launched_by")
    lines = [f"<code>{html.escape(str(launched))}</code>", "on each rank:"] if launched else []
    lines.append(f"<code>{html.escape(shlex.join(run.environment['command']))}</code>")
    if run.num_damaged:
        lines.append(f"{run.num_damaged:,} damaged lines of metrics.jsonl are left out")
    return f"<p><b>{html.escape(run.name)}</b><br>{'<br>'.join(lines)}</p>"
