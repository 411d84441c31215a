"""bert-report: a page with the curves and scores of runs, drawn from their files.

    bert-report squad_output [other_output …]

writes report.html into the first folder. It reads run.json, metrics.jsonl and result.json (or
predict_result.json), and needs neither TensorFlow nor MPI. It also works while a run is still going on.
"""

import base64
import html
import io
import math
import os
import shlex
import statistics
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringbase.errors import InputError
from ringbase.files import parse_json, read_object, read_text, write_text
from tasks import flags
from tasks.environment import result_file

PARTS = ("data_s", "compute_s", "reduce_s", "apply_s")
LONGEST_LABEL = 24  # characters
LARGEST = 1e12  # of a figure; a larger one is damage or the end of a training, and becomes NaN
PANELS = {
    "loss": "loss (mean over all ranks)",
    "learning_rate": "learning rate",
    "gradient_norm": "gradient norm before clipping",
    "examples_per_s": "examples/s over all ranks",
}
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:64em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .8em;border-bottom:1px solid #ddd;text-align:left}
img{max-width:100%}code{background:#f3f3f3;padding:.1em .3em;overflow-wrap:anywhere}"""


def main(argv: Sequence[str] | None = None) -> None:
    folders = [Path(name) for name in (sys.argv[1:] if argv is None else argv)]
    if not folders or str(folders[0]) in ("-h", "--help"):
        flags.stop("usage: bert-report OUTPUT_DIR [OUTPUT_DIR ...]\n\n" + str(__doc__), 0 if folders else 2)
    path = folders[0] / "report.html"
    with flags.reporting("bert-report"):
        write_text(path, make_page(read_runs(folders)))
    flags.stop(str(path), 0)


# -- a run's files ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunFiles:
    """The contents of a run's files.

    Attributes:
      plan: steps, size, global_batch_size and learning_rate, as in run.json.
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
        plan = {key: float(run["plan"][key]) for key in ("steps", "size", "global_batch_size", "learning_rate")}
        machine = str(run["environment"].get("machine", ""))
        command = [str(word) for word in run["environment"]["command"]]
        scores = [{name: _figure(float(value)) for name, value in each["scores"].items()} for each in results]
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise InputError(f"{', '.join(map(str, files))}: damaged: {error!r:.200}") from error
    best = next(filter(None, scores), {}) if scores else None
    others = [line for line in metrics if "loss" not in line]
    return RunFiles(name, plan, machine, command, steps, others, num_damaged, best)


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


# -- the page -----------------------------------------------------------------------------------------------------


def make_page(runs: Sequence[RunFiles]) -> str:
    """The page as one HTML file, with the picture inside. Raises InputError: matplotlib is not installed."""
    title = html.escape(" · ".join(run.name for run in runs))
    picture = base64.b64encode(draw(runs)).decode()
    facts = [facts_of(run) for run in runs]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"<h1>{title}</h1>{table(facts[0], (each.values() for each in facts))}<h2>Scores</h2>{score_table(runs)}"
        f'<h2>Curves</h2><img alt="curves over steps" src="data:image/png;base64,{picture}">'
        f"<h2>How they were run</h2>{''.join(map(command_of, runs))}</html>\n"
    )


def facts_of(run: RunFiles) -> dict[str, str]:
    return {
        "run": run.name,
        "steps": f"{run.steps[-1]['step']:,} of {run.plan['steps']:,.0f}",
        "ranks": f"{run.plan['size']:.0f}",
        "global batch": f"{run.plan['global_batch_size']:.0f}",
        "learning rate": f"{run.plan['learning_rate']:.3g}",
        "last loss": shown("loss", run.steps[-1]),
        "examples/s (median)": f"{run.median('examples_per_s'):.1f}",
    }


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{html.escape(text)}</th>" for text in heads)
    body = ("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{''.join(body)}</table>"


def score_table(runs: Sequence[RunFiles]) -> str:
    """A line for each score, a column for each run."""
    names = dict.fromkeys(name for run in runs for name in run.scores or {})
    if not names:
        return "<p>Not yet.</p>" if any(run.scores is None for run in runs) else "<p>None.</p>"
    rows = ([name, *(shown(name, run.scores) for run in runs)] for name in names)
    return table(["", *(run.name for run in runs)], rows)


def is_score(name: str) -> bool:
    """Whether a value of result.json is a score (higher is better), and not a loss, count or threshold."""
    return not name.endswith(("loss", "total", "thresh"))


def shown(name: str, scores: Mapping[str, float] | None) -> str:
    """A value as text: counts are whole, percentages, as SQuAD's scores are, have two decimals, others four."""
    if scores is None or name not in scores:
        return "not yet" if scores is None else ""
    if name.endswith("total"):
        return f"{scores[name]:,.0f}"
    is_percent = is_score(name) and any(value > 1 for other, value in scores.items() if is_score(other))
    return f"{scores[name]:.2f}" if is_percent else f"{scores[name]:.4f}"


def command_of(run: RunFiles) -> str:
    """A paragraph with the command of each rank, as a shell takes it, and the machine."""
    damage = f"; {run.num_damaged:,} damaged lines of metrics.jsonl are left out" if run.num_damaged else ""
    name, command, machine = map(html.escape, (run.name, shlex.join(run.command), run.machine))
    return f"<p><b>{name}</b>: <code>{command}</code><br>on each rank; {machine}{damage}</p>"


# -- the picture --------------------------------------------------------------------------------------------------


def draw(runs: Sequence[RunFiles]) -> bytes:
    """PNG: loss, rate, gradient norm and speed over steps, where the time of a step goes, and evaluations."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("plots need matplotlib: pip install matplotlib (ringbert's extra `report`)") from error
    figure = Figure(figsize=(11, 10.5), layout="constrained")
    *panels, parts, scores = figure.subplots(3, 2).flat
    for axis, (key, title) in zip(panels, PANELS.items(), strict=True):
        for run in runs:
            draw_curve(axis, run.steps, key, run.name, linewidth=1.3)
        axis.set(title=title, ylim=(None if key == "learning_rate" else 0, None))
    if len(runs) > 1:
        figure.legend(*panels[0].get_legend_handles_labels(), fontsize=8, ncols=5, loc="outside upper center")
    for run in runs:
        for name in sorted({name for line in run.evaluations for name in line} - {"step", "time", "rows"}):
            axis = panels[0] if name.endswith("loss") else scores if is_score(name) else None
            if axis:
                names = [run.name, name] if len(runs) > 1 else [name]
                draw_curve(axis, run.evaluations, name, *names, linestyle="--", marker="o", markersize=3)
    for axis in (*panels, scores):
        axis.set_xlabel("step")
        axis.locator_params("x", integer=True)
        axis.grid(alpha=0.3)
    for axis in (panels[0], scores):
        if dashed := [line for line in axis.lines if line.get_linestyle() == "--"]:
            axis.legend(handles=dashed, fontsize=8)
    if any(run.evaluations for run in runs):
        scores.set_title("scores on held-out data")
    else:
        scores.set_axis_off()
    draw_parts(parts, runs)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)  # names in any script
        figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def draw_curve(axis: Any, lines: Iterable[Mapping[str, float]], key: str, *names: str, **style: Any) -> None:
    """Draws a figure over steps, from the lines that have it."""
    present = [line for line in lines if key in line]
    axis.plot([line["step"] for line in present], [line[key] for line in present], label=label_of(*names), **style)


def label_of(*names: str) -> str:
    """Names as matplotlib's text: not too long, no formulas, and no leading underscore, which would hide it in a
    legend."""
    name = " ".join(name if len(name) <= LONGEST_LABEL else f"…{name[1 - LONGEST_LABEL :]}" for name in names)
    return f"{' ' * name.startswith('_')}{name}".replace("$", r"\$")


def draw_parts(axis: Any, runs: Sequence[RunFiles]) -> None:
    """A bar for each run, of the median milliseconds that each part of a step takes."""
    left = [0.0] * len(runs)
    for part in PARTS:
        widths = [1e3 * run.median(part) for run in runs]
        axis.barh(range(len(runs)), widths, left=left, label=part.removesuffix("_s"), height=0.5)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axis.set_yticks(range(len(runs)), [label_of(run.name) for run in runs])
    axis.set(title="where a step's time goes (median)", xlabel="ms", ylim=(len(runs) - 0.4, -0.6))
    axis.legend(ncols=4, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16))


if __name__ == "__main__":
    main()
