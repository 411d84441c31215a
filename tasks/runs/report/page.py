"""bert-report: one HTML file, without anything outside it, that shows how runs went.

    bert-report squad_output
    bert-report squad_output other_output other_program.json

The page of one run, of its seeds, or of a folder of runs is report.html in that folder; every
training writes its own at its end. That of several is comparison.html in the working directory. An
evaluation alone, such as that of a baseline, is a run too. It reads run.json, history.json,
metrics.jsonl, step_times.json and result.json (or predict_result.json), and needs neither
TensorFlow nor MPI. It also works while a run is still going on. A JSON file {"scores": {"f1":
88.5}} is a column of scores of another program.
"""

import html
import itertools
import math
import shlex
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ringbase.errors import InputError
from ringbase.files import write_text
from ringbase.settings import Settings, setting
from tasks.runs import flags
from tasks.runs.history import DAMAGED, NEW, duration
from tasks.runs.report.charts import Curve, Points, chart, key, smoothed
from tasks.runs.report.files import Lines, RunFiles, Scores, date, is_score, read_runs
from tasks.runs.report.search import (
    best_of,
    command_of_search,
    heading,
    is_search,
    trial_table,
    trials_of,
    value_tables,
)
from tasks.runs.report.sections import Best, section, table
from tasks.runs.resolve.past import MODEL
from tasks.runs.rows.memory import in_words
from tasks.runs.settings import recipe_in

COMPARISON = "comparison.html"  # of several places
PAGE, STYLE = "report.html", Path(__file__).with_name("style.css")
PARTS = {
    "data_s": "data",
    "compute_s": "compute",
    "reduce_s": "sum over ranks",
    "apply_s": "update",
}
MOST_COLORS, MOST_TILES = 6, 4
FACTS_OF_TRAININGS = (
    "steps",
    "model of step",
    "global batch",
    "learning rate",
    "warmup steps",
    "recipe",
    "last loss",
    "examples/s (median)",
)
JSON_FILES = "run.json, history.json, result.json, step_times.json or the scores of another program"

Runs = Sequence[RunFiles]


class ReportConfig(Settings):
    """Draw how runs went as one HTML file. FOLDERS are output folders of runs, or folders of runs,
    and after these JSON files {"scores": {"f1": 88.5}} of other programs."""

    folders: tuple[str, ...] = setting(help="what the page shows", is_positional=True)
    output_file: str | None = setting(
        None,
        "HTML file to write",
        shown_default=f"{PAGE} in the folder, of several places {COMPARISON} here",
    )


def main(argv: list[str] | None = None) -> None:
    config = flags.parse(ReportConfig, argv, prog="bert-report")
    places = [Path(folder).expanduser() for folder in config.folders]
    output_file = None if config.output_file is None else Path(config.output_file).expanduser()
    with flags.reporting("bert-report"):
        path = write_page(places, output_file)
    flags.stop(str(path), 0)


def write_page(places: Sequence[Path], output_file: Path | None = None) -> Path:
    """Writes the page of these runs, of one into its folder. Raises InputError: a file is missing
    or damaged."""
    if not places[0].is_dir():
        raise InputError(f"{places[0]}: no such folder of a run")
    default = places[0] / PAGE if len(places) == 1 else Path(COMPARISON)
    path = output_file or default
    if path.exists() and path.suffix != ".html":
        raise InputError(f"--output_file {path} must be an HTML file")
    try:
        if len(places) == 1 and is_search(places[0]):
            page = page_of_search(places[0])
        else:
            page = page_of(read_runs(places))
    except InputError:
        raise
    except DAMAGED as error:
        names = ", ".join(map(str, places))
        raise InputError(f"{names}: {JSON_FILES}: damaged: {error!r:.200}") from error
    write_text(path, page)
    return path


def page_of(places: Runs) -> str:
    names = dict.fromkeys(place.group or place.name for place in places)
    title = html.escape(" · ".join(names))
    shown = " · ".join(f'<span class="name">{html.escape(name)}</span>' for name in names)
    main_scores = (place.main_score(place.measured) for place in places)
    score = next(filter(None, main_scores), "")
    places = sorted(places, key=lambda place: -place.measured.get(score, -math.inf))
    header = f"<header><h1>{shown}</h1>{summary(runs_among(places), score)}</header>"
    return document(title, [header, *parts_of(places)])


def runs_among(places: Runs) -> Runs:
    return [place for place in places if place.is_of_ringbert]


def page_of_search(folder: Path) -> str:
    """The page of a search: its trials, and the best of them side by side."""
    trials, metric = trials_of(folder)
    if not trials:
        raise InputError(f"{folder}: no trial has begun")
    name = folder.resolve().name
    parts = [heading(name, trials), trial_table(trials), value_tables(trials, metric)]
    runs = best_of(trials, MOST_COLORS)
    if runs:
        parts += [f"<h2>The best {len(runs)} runs</h2>", *parts_of(runs)]
    return document(html.escape(name), [*parts, command_of_search(folder)])


def parts_of(places: Runs) -> list[str]:
    """What a page says of trainings, evaluations, and scores of other programs."""
    runs = runs_among(places)
    several = len(runs) > 1
    return [
        score_table(places),
        training_of([run for run in runs if run.steps]),
        *(sections_of(run, several) for run in runs),
        f"<h2>How it was run</h2>{facts_table(runs)}",
        *map(history_of, runs),
        *map(command_of, runs),
    ]


def training_of(runs: Runs) -> str:
    """What a page says of the steps of trainings; "" without any."""
    if not runs:
        return ""
    color_of_group = dict[str, int]()
    colors = {}
    for run in runs:
        number = color_of_group.setdefault(run.group or run.name, len(color_of_group))
        colors[run.name] = number % MOST_COLORS
    charts = "".join(charts_of(runs, colors))
    figures = f'<h2>Training</h2><div class="charts">{charts}</div>'
    return figures + step_bars(runs) + differences(runs)


def document(title: str, parts: Iterable[str]) -> str:
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width,initial-scale=1"><title>{title}</title>'
        f"<style>{STYLE.read_text()}</style></head>"
    )
    return f"{head}<body><main>{''.join(parts)}</main></body></html>\n"


def summary(runs: Runs, score: str) -> str:
    """A line with date and size of a single run, and its main scores in large figures; of several
    the score by which they are sorted."""
    if len(runs) > 1:
        order = f", the highest {html.escape(score)} first" if score else ""
        return f'<p class="quiet">{len(runs)} runs{order}</p>'
    run = runs[0]
    size = run.ranks
    ranks = f"{size} rank{'s' * (size != 1)}" if size else ""
    facts = [date(run.began_s), *names_of(run, "model"), ranks, duration(run.seconds)]
    line = html.escape(" · ".join(filter(None, facts)))
    tiles = ""
    for name in tiles_of(run.measured):
        label = html.escape(name.replace("_", " "))
        tiles += f'<div class="tile"><b>{shown(name, run.measured)}</b><span>{label}</span></div>'
    return f'<p class="quiet">{line}</p><div class="tiles">{tiles}</div>'


def tiles_of(scores: Scores) -> list[str]:
    """The main scores, which a task gives first, and losses if there is room."""
    return sorted(scores, key=is_score, reverse=True)[:MOST_TILES]


def names_of(run: RunFiles, part: str) -> Iterator[str]:
    """The short names of its "model" or "data"."""
    for path in run.describes.get(part, {}).values():
        yield run.in_memory.get(path, short_name(Path(path)))


def short_name(path: Path) -> str:
    """The last part of a path; that of a run's model with the run's name."""
    is_of_run = path.name == MODEL and path.parent.name
    return f"{path.parent.name}/{path.name}" if is_of_run else path.name


# -- scores ----------------------------------------------------------------------------------------


def score_table(places: Runs) -> str:
    """A row for each score; columns for each run, and for the mean of several seeds. Of a single
    run only what its tiles do not show."""
    names: dict = {}
    for place in places:
        names |= dict.fromkeys(place.measured)
    if len(places) == 1:
        for name in tiles_of(places[0].measured):
            del names[name]
    groups = {}
    for group in dict.fromkeys(place.group for place in places if place.group):
        members = [place.scores for place in places if place.group == group and place.scores]
        groups[f"{group}: mean ± deviation"] = means(members) if len(members) > 1 else {}
    rows = []
    for name in names:
        of_groups = (group.get(name, "") for group in groups.values())
        rows.append([name, *cells_of(name, places), *of_groups])
    if rows:
        heads = ["", *(place.name for place in places), *groups]
        return f"<h2>Scores</h2>{table(heads, rows)}"
    return "<p>No scores yet.</p>" if any(place.scores is None for place in places) else ""


def cells_of(name: str, places: Runs) -> Iterator[str]:
    """A score of each run, of which the best ones are marked."""
    values = {place.measured[name] for place in places if name in place.measured}
    best = None
    if is_score(name):
        best = max(values)
    elif name.endswith("loss"):
        best = min(values)
    for place in places:
        if name in place.measured:
            text = shown(name, place.measured)
            is_best = len(values) > 1 and place.measured[name] == best
            yield Best(text) if is_best else text
        else:
            yield "not yet" if place.scores is None else ""


def means(members: Sequence[Scores]) -> dict[str, str]:
    """Mean and standard deviation of each score that all have."""
    mean = {}
    deviation = {}
    for name in members[0]:
        if all(name in scores for scores in members):
            values = [scores[name] for scores in members]
            mean[name] = statistics.mean(values)
            deviation[name] = statistics.stdev(values)
    return {name: f"{shown(name, mean)} ± {deviation[name]:.2g}" for name in mean}


def shown(name: str, scores: Scores) -> str:
    """A value as text: counts are whole, percentages, as SQuAD's scores are, have two decimals,
    others four."""
    if name.endswith("total"):
        return f"{scores[name]:,.0f}"
    has_percents = any(scores[other] > 1 for other in filter(is_score, scores))
    decimals = 2 if is_score(name) and has_percents else 4
    return f"{scores[name]:.{decimals}f}"


# -- curves ----------------------------------------------------------------------------------------


def charts_of(runs: Runs, colors: Mapping[str, int]) -> Iterator[str]:
    several = len(runs) > 1

    def curves(key):
        for run in runs:
            yield Curve(run.name * several, points(run.steps, key), colors[run.name])

    marks = runs[0].best()
    breaks = [] if several else runs[0].interruptions()
    raw = [*curves("loss")]
    # of several runs the raw curves would hide each other
    losses = [] if several else [Curve("training", raw[0].points, style="raw")]
    for name, values, color, _ in raw:
        losses.append(Curve(name or "training, smoothed", smoothed(values), color))
    scores = list[Curve]()
    for run in runs:
        measured: dict = {}
        for line in run.evaluations:
            measured |= dict.fromkeys(line)
        main = run.main_score(measured)
        for name in measured:
            if name.endswith("loss"):
                shown_curves = losses
            elif name == main or (is_score(name) and not several):
                shown_curves = scores
            else:
                continue
            color, label = len(shown_curves) % MOST_COLORS, name
            if several:
                color, label = colors[run.name], f"{run.name} {name}"
            curve = Curve(label, points(run.evaluations, name), color, "dots")
            shown_curves.append(curve)
    yield chart(f"loss{', smoothed' * several}", losses, [*marks, *breaks])
    parts = [] if several else runs[0].parts_of_losses()
    curves_of_parts = []
    for color, name in enumerate(parts):
        values = smoothed(points(runs[0].steps, name))
        curves_of_parts.append(Curve(name, values, color % MOST_COLORS))
    yield chart("parts of the loss, smoothed", curves_of_parts, breaks)
    yield chart("scores on held-out data", scores, marks, from_zero=False)
    yield chart("examples per second of the whole job", curves("examples_per_s"), breaks)
    rates = [*curves("learning_rate")]
    if not several:
        rates = [Curve("planned", runs[0].planned_rates(), style="raw"), *rates]
    yield chart("learning rate", rates, from_zero=False)
    yield chart("gradient norm before clipping", curves("gradient_norm"))


def points(lines: Lines, key: str) -> Points:
    return [(line["step"], line[key]) for line in lines if key in line]


def step_bars(runs: Runs) -> str:
    """A bar for each rank, or run of several, of the median milliseconds of each part of a step."""
    labels = dict(PARTS)
    if all(run.plan["size"] == 1 for run in runs):
        del labels["reduce_s"]
    bars: dict[str, list[float]] = {}
    for run in runs:
        times = run.step_times or [{part: run.median(part) for part in labels}]
        for rank, parts_s in enumerate(times):
            name = run.name if len(runs) > 1 else f"rank {rank}"
            parts_ms = [1e3 * parts_s.get(part, 0.0) for part in labels]
            # of several runs only the first rank
            bars.setdefault(name, parts_ms)
    longest = max(map(sum, bars.values()))
    if not longest:
        return ""
    rows = ""
    for name, parts_ms in bars.items():
        pieces = ""
        for color, (label, ms) in enumerate(zip(labels.values(), parts_ms, strict=True)):
            width = f"{100 * ms / longest:.2f}%"
            title = f"{label} {ms:,.0f} ms"
            pieces += f'<i class="c{color}" style="width:{width}" title="{title}"></i>'
        rows += (
            f'<div class="bar"><span>{html.escape(name)}</span><div>{pieces}</div>'
            f"<span>{sum(parts_ms):,.0f} ms</span></div>"
        )
    legend = "".join(map(key, labels.values(), itertools.count()))
    return (
        f'<h2>Where a step\'s time goes (median)</h2><div class="bars">{rows}</div>'
        f'<div class="legend">{legend}</div>'
    )


# -- facts -----------------------------------------------------------------------------------------


def differences(runs: Runs) -> str:
    """The flags that all runs have, with values that differ."""
    rows = []
    for name in runs[0].config:
        if name not in NEW and all(name in run.config for run in runs):
            values = [in_words(as_flag(run.config[name]), run.in_memory) for run in runs]
            if len(set(values)) > 1:
                rows.append([f"--{name}", *values])
    return f"<h2>Flags that differ</h2>{side_by_side(runs, rows)}" if rows else ""


def as_flag(value: object) -> str:
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value)


def side_by_side(runs: Runs, rows: Iterable[Sequence[str]]) -> str:
    return table(["", *(run.name for run in runs)], rows)


def sections_of(run: RunFiles, several: bool) -> str:
    if not run.sections:
        return ""
    of_run = f" of {html.escape(run.name)}" if several else ""
    sections = "".join(map(section, run.sections))
    return f'<h2>Predictions{of_run}</h2><div class="sections">{sections}</div>'


def facts_table(runs: Runs) -> str:
    """A row for each fact, a column for each run."""
    columns = [facts_of(run) for run in runs]
    rows = []
    for name in columns[0]:
        values = [facts[name] for facts in columns]
        if any(values):
            rows.append([name, *values])
    return side_by_side(runs, rows)


def facts_of(run: RunFiles) -> dict[str, str]:
    """The same facts of all runs; those that a run has not are empty."""
    training = dict.fromkeys(FACTS_OF_TRAININGS, "")
    if run.steps:
        training = dict(zip(FACTS_OF_TRAININGS, facts_of_training(run), strict=True))
    return {
        **training,
        "ranks": str(run.ranks or ""),
        "precision": run.config.get("precision", ""),
        "model": ", ".join(names_of(run, "model")),
        "weights from": run.start,
        "data": ", ".join(names_of(run, "data")),
        "scored on": in_words(", ".join(run.scored_on), run.in_memory),
        "corpora": ", ".join(seen(run)),
        "started": date(run.began_s),
        "took": duration(run.seconds),
        "machine": run.environment.get("machine", ""),
        "packages": versions_of(run),
    }


def facts_of_training(run: RunFiles) -> list[str]:
    """In the order of FACTS_OF_TRAININGS."""
    plan, last = run.plan, run.steps[-1]
    recipe = [f"--{name} {value}" for name, value in recipe_in(run.config).items()]
    return [
        f"{last['step']:,} of {plan['steps']:,.0f}",
        kept_step(run),
        f"{plan['global_batch_size']:.0f}",
        f"{plan['learning_rate']:.3g}",
        f"{plan.get('warmup_steps', 0):,.0f}",
        ", ".join(recipe),
        shown("loss", last),
        f"{run.median('examples_per_s'):.1f}",
    ]


def kept_step(run: RunFiles) -> str:
    """The step whose model was kept, and why; "" before the end."""
    if run.kept is None:
        return ""
    reasons = [label for _, label in run.best()] or ["the last"]
    return f"{run.kept:,} ({reasons[0]})"


def seen(run: RunFiles) -> Iterator[str]:
    """How often the training sees each corpus of a mixture."""
    for corpus in run.stream.get("corpora", ()):
        yield f"{corpus['name']} {corpus['seen']:.3g} times"


def history_of(run: RunFiles) -> str:
    """A row for each start, if there were several."""
    if len(run.starts) < 2:
        return ""
    rows = []
    for entry in run.starts:
        what = ", ".join([entry["what"], *entry.get("predicted", ())])
        changed = entry.get("changed", {})
        changes = [f"--{flag} {old} → {new}" for flag, (old, new) in changed.items()]
        row = [date(entry["began"]), what, entry["step"], entry["ranks"]]
        row += [entry.get("machine", ""), duration(entry.get("seconds")), entry["from"]]
        rows.append([*row, ", ".join(changes)])
    columns = ["started", "what", "step", "ranks", "machine", "took", "from", "flags that changed"]
    return f"<h2>Starts of {html.escape(run.name)}</h2>{table(columns, rows)}"


def versions_of(run: RunFiles) -> str:
    versions = dict(run.environment.get("packages", {}))
    versions["commit"] = run.environment.get("git_commit")
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)


def command_of(run: RunFiles) -> str:
    """A paragraph with the command as it was typed, and that of each rank, as a shell takes it."""
    command = in_words(shlex.join(map(str, run.environment["command"])), run.in_memory)
    lines = [f"<code>{html.escape(command)}</code>"]
    launched = run.environment.get("launched_by")
    if launched:
        call = in_words(str(launched), run.in_memory)
        lines = [f"<code>{html.escape(call)}</code>", "on each rank:", *lines]
    if run.num_damaged:
        lines.append(f"{run.num_damaged:,} damaged lines of metrics.jsonl are left out")
    return f"<p><b>{html.escape(run.name)}</b><br>{'<br>'.join(lines)}</p>"
