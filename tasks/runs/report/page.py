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
import shlex
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ringbase.errors import InputError
from ringbase.files import write_text
from tasks.runs import flags
from tasks.runs.report.charts import Curve, chart, key, smoothed
from tasks.runs.report.files import Lines, RunFiles, date, is_score, read_runs
from tasks.runs.report.scores import best_first, grouped, score_table, shown, tiles_of
from tasks.runs.report.sections import section, table

COMPARISON = "comparison.html"  # of several places
PAGE, STYLE = "report.html", Path(__file__).with_name("style.css")
PARTS = {
    "data_s": "data",
    "compute_s": "compute",
    "reduce_s": "sum over ranks",
    "apply_s": "update",
}
MOST_COLORS = 6
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
    places, order = best_first(places)
    runs = [place for place in places if place.steps]
    groups = [*grouped(runs).values()]
    if len(groups) == 1:
        groups = [[run] for run in runs]
    colors = dict[str, int]()
    for number, members in enumerate(groups):
        colors |= {run.name: number % MOST_COLORS for run in members}
    parts = [
        f"<header><h1>{title}</h1>{summary(runs, order)}</header>",
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


def summary(runs: Sequence[RunFiles], order: str | None) -> str:
    """A line with date and size of a single run, and its main scores in large figures. `order`:
    the score by which several are sorted."""
    if len(runs) > 1:
        sorted_by = f", the best {html.escape(order)} first" if order else ""
        return f'<p class="quiet">{len(runs)} runs{sorted_by}</p>'
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


# -- curves ----------------------------------------------------------------------------------------


def charts_of(runs: Sequence[RunFiles], colors: Mapping[str, int]) -> Iterator[str]:
    several = len(runs) > 1

    def curves(key: str) -> list[Curve]:
        return [Curve(run.name * several, points(run.steps, key), colors[run.name]) for run in runs]

    best = None if several else runs[0].best()
    marks = [(float(best[0]), f"best {best[1]}")] if best else []
    breaks = [] if several else runs[0].interruptions()
    drawn = []
    for loss in curves("loss"):
        drawn.append(Curve("" if several else "training", loss.points, loss.color, "raw"))
        if len(loss.points) > 1:
            name = loss.name or "training, smoothed"
            drawn.append(Curve(name, smoothed(loss.points), loss.color))
    scores, losses = list[Curve](), list[Curve]()
    for run in runs:
        measured = dict.fromkeys(name for line in run.evaluations for name in line)
        for name in measured:
            is_loss = name.endswith("loss")
            is_shown = name == run.compared_by(measured) if several else is_score(name)
            if is_loss or is_shown:
                color = colors[run.name]
                if not several:
                    color += 1 + len(losses) if is_loss else len(scores)
                label = f"{run.name} {name}" if several else name
                curve = Curve(label, points(run.evaluations, name), color % MOST_COLORS, "dots")
                (losses if is_loss else scores).append(curve)
    has_ranks = has_several_ranks(runs)
    title = "loss, mean over all ranks" if has_ranks else "loss"
    yield chart(title, [*drawn, *losses], [*marks, *breaks])
    yield chart("scores on held-out data", scores, marks, from_zero=False)
    speed = curves("examples_per_s")
    if not several:
        speed = [Curve("while training", speed[0].points, speed[0].color)]
        speed.append(
            Curve("with evaluations and checkpoints", with_pauses(runs[0].steps), 1, "raw")
        )
    title = "examples per second, over all ranks" if has_ranks else "examples per second"
    yield chart(title, speed, breaks)
    yield chart("learning rate", curves("learning_rate"), from_zero=False)
    yield chart("gradient norm before clipping", curves("gradient_norm"))


def has_several_ranks(runs: Sequence[RunFiles]) -> bool:
    return any(run.plan["size"] > 1 for run in runs)


def points(lines: Lines, key: str) -> list[tuple[float, float]]:
    return [(line["step"], line[key]) for line in lines if key in line]


def with_pauses(steps: Lines) -> list[tuple[float, float]]:
    """Examples per second of wall-clock time between two logged steps."""
    return [
        (after["step"], (after["rows"] - before["rows"]) / (after["time"] - before["time"]))
        for before, after in itertools.pairwise(steps)
        if {"rows", "time"} <= before.keys() & after.keys() and after["time"] > before["time"]
    ]


def step_bars(runs: Sequence[RunFiles]) -> str:
    """A bar for each rank, or run of several, of the median milliseconds of each part of a step."""
    parts = [*PARTS] if has_several_ranks(runs) else [part for part in PARTS if part != "reduce_s"]
    bars: dict[str, list[float]] = {}
    for run in runs:
        measured = run.step_times if len(runs) == 1 else run.step_times[:1]
        for rank, times in enumerate(measured or [{part: run.median(part) for part in parts}]):
            name = f"rank {rank}" if len(runs) == 1 else run.name
            bars[name] = [1e3 * times.get(part, 0.0) for part in parts]
    longest = max(map(sum, bars.values()))
    if not longest:
        return ""
    labels = [PARTS[part] for part in parts]
    colors = [[*PARTS].index(part) for part in parts]
    rows = []
    for name, parts_ms in bars.items():
        pieces = "".join(
            f'<i class="c{color}" style="width:{100 * ms / longest:.2f}%" title="{label}:'
            f' {milliseconds(ms)}"></i>'
            for color, label, ms in zip(colors, labels, parts_ms, strict=True)
        )
        total = milliseconds(sum(parts_ms))
        rows.append(
            f'<div class="bar"><span>{html.escape(name)}</span><div>{pieces}</div>'
            f"<span>{total}</span></div>"
        )
    if len(bars) == 1:
        labels = [
            f"{label} {milliseconds(ms)}" for label, ms in zip(labels, *bars.values(), strict=True)
        ]
    legend = "".join(map(key, labels, colors))
    return (
        f'<h2>Where a step\'s time goes (median)</h2><div class="bars">{"".join(rows)}</div>'
        f'<div class="legend">{legend}</div>'
    )


def milliseconds(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 10 else f"{value:.1f} ms"


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
