"""bert-report: a page with the curves and scores of runs, drawn from their files.

    bert-report squad_output [other_output …]

writes report.html into the first folder. It reads run.json, metrics.jsonl and result.json (or
predict_result.json), and needs neither TensorFlow nor MPI. It also works while a run is still going on.
"""

import base64
import html
import io
import math
import shlex
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ringbase.errors import InputError, one_line
from ringbase.files import write_text
from tasks import flags
from tasks.run_files import RunFiles, read_runs

PARTS = ("data_s", "compute_s", "reduce_s", "apply_s")
LARGEST_SHOWN = 1e12  # larger numbers are damage: shown in short, and not drawn
MOST_LINES = 50  # in a picture
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
    try:
        write_text(path, make_page(read_runs(folders)), sync=False)
    except (InputError, OSError) as error:
        flags.stop(f"bert-report: error: {one_line(error)}", 1)
    flags.stop(str(path), 0)


# -- scores -------------------------------------------------------------------------------------------------------


def is_score(name: str) -> bool:
    """Whether a value of result.json is a score (higher is better), and not a loss, count or threshold."""
    return not name.endswith(("loss", "total", "thresh"))


def in_percent(scores: Mapping[str, float]) -> bool:
    """Whether scores are percentages, as SQuAD's are; those of the other programs are fractions."""
    return any(value > 1 for name, value in scores.items() if is_score(name))


def shown(name: str, scores: Mapping[str, float]) -> str:
    """A value as text: percentages with two decimals, other scores with four, counts as whole numbers."""
    value = scores[name]
    if abs(value) > LARGEST_SHOWN:
        return f"{value:.4g}"
    if name.endswith("total"):
        return f"{value:,.0f}"
    return f"{value:.2f}" if is_score(name) and in_percent(scores) else f"{value:.4f}"


# -- the page -----------------------------------------------------------------------------------------------------


def make_page(runs: Sequence[RunFiles]) -> str:
    """The page as one HTML file, with the picture inside. Raises InputError: matplotlib is not installed."""
    heads = ("run", "steps", "ranks", "global batch", "learning rate", "last loss", "examples/s (median)")
    rows = [
        (
            run.name,
            f"{run.steps[-1]['step']:,} of {run.plan['steps']:,}",
            str(run.plan["size"]),
            str(run.plan["global_batch_size"]),
            f"{run.plan['learning_rate']:.3g}",
            shown("loss", run.steps[-1]),
            f"{run.median('examples_per_s'):.1f}",
        )
        for run in runs
    ]
    commands = "".join(
        f"<p><b>{html.escape(run.name)}</b>: <code>{html.escape(command_of(run))}</code>"
        f"<br>{html.escape(run.machine)}{html.escape(note_of(run))}</p>"
        for run in runs
    )
    title = html.escape(" · ".join(run.name for run in runs))
    picture = base64.b64encode(draw(runs)).decode()
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"<h1>{title}</h1>{table(heads, rows)}<h2>Scores</h2>{score_table(runs)}"
        f'<h2>Curves</h2><img alt="curves over steps" src="data:image/png;base64,{picture}">'
        f"<h2>How they were run</h2>{commands}</html>\n"
    )


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{html.escape(text)}</th>" for text in heads)
    body = ("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{''.join(body)}</table>"


def score_table(runs: Sequence[RunFiles]) -> str:
    """A line for each score, a column for each run."""
    names = dict.fromkeys(name for run in runs for name in run.scores or {})
    if not names:
        return "<p>Not yet.</p>" if any(run.scores is None for run in runs) else "<p>None.</p>"

    def cell(run: RunFiles, name: str) -> str:
        if run.scores is None:
            return "not yet"
        return shown(name, run.scores) if name in run.scores else ""

    return table(("", *(run.name for run in runs)), [(name, *(cell(run, name) for run in runs)) for name in names])


def note_of(run: RunFiles) -> str:
    """What is left out of the page."""
    return f"; {run.num_damaged:,} damaged lines of metrics.jsonl are left out" if run.num_damaged else ""


def command_of(run: RunFiles) -> str:
    """The shell command that starts the run again. run.json has the command of a rank, without the launcher."""
    program, *arguments = run.command
    path = Path(program)
    words = [path.name]
    if path.name == "__main__.py":
        words = ["python", "-m", f"{path.parent.parent.name}.{path.parent.name}"]
    elif path.suffix == ".py":
        words = ["python", program]
    size = run.plan["size"]
    return shlex.join([*(["mpirun", "-np", str(size)] if size > 1 else []), *words, *arguments])


# -- the picture --------------------------------------------------------------------------------------------------


def draw(runs: Sequence[RunFiles]) -> bytes:
    """PNG: loss, rate, gradient norm and speed over steps, where the time of a step goes, and the scores."""
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("plots need matplotlib: pip install matplotlib (ringbert's extra `report`)") from error

    matplotlib.use("Agg")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)  # names in any script
        return _picture(runs)


def _picture(runs: Sequence[RunFiles]) -> bytes:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 2, figsize=(11, 10.5), layout="constrained")
    for axis, (key, label) in zip(axes.flat, PANELS.items(), strict=False):
        for number, run in enumerate(runs):
            axis.plot(
                *points_of(run.steps, key),
                label=label_of(run.name if len(runs) > 1 else key),
                linewidth=1.3,
                color=f"C{number}",
            )
        axis.set(title=label, xlabel="step")
        axis.locator_params("x", integer=True)
        axis.grid(alpha=0.3)
    draw_evaluations(axes[0, 0], runs, losses=True)
    for axis in (axes[0, 0], axes[1, 0], axes[1, 1]):
        axis.set_ylim(bottom=0)
    if len(runs) > 1 or runs[0].evaluations:
        axes[0, 0].legend(fontsize=8)
    draw_parts(axes[2, 0], runs)
    if any(run.evaluations for run in runs):
        draw_evaluations(axes[2, 1], runs, losses=False)
        axes[2, 1].set(title="scores on held-out data", xlabel="step")
        axes[2, 1].grid(alpha=0.3)
        axes[2, 1].legend(fontsize=8)
    else:
        draw_scores(axes[2, 1], runs)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    pyplot.close(figure)
    return buffer.getvalue()


def points_of(lines: Iterable[Mapping[str, float]], key: str) -> tuple[list[float], list[float]]:
    """The steps and the values of a figure; a gap for a value that cannot be drawn."""
    present = [line for line in lines if key in line]
    values = [line[key] if abs(line[key]) < LARGEST_SHOWN else math.nan for line in present]
    return [line["step"] for line in present], values


def label_of(name: str) -> str:
    """A name as matplotlib's text: no formulas, and no leading underscore, which would hide it in a legend."""
    return f"{' ' * name.startswith('_')}{name}".replace("$", r"\$")


def draw_evaluations(axis: Any, runs: Sequence[RunFiles], losses: bool) -> None:
    """Draws the evaluations during training over steps: a dashed line for each loss, or for each score."""
    for run in runs:
        names = {name for line in run.evaluations for name in line} - {"step", "time", "rows"}
        chosen = [name for name in sorted(names) if (name.endswith("loss") if losses else is_score(name))]
        for name in chosen[:MOST_LINES]:
            label = label_of(f"{run.name} {name}" if len(runs) > 1 else name)
            axis.plot(*points_of(run.evaluations, name), "o--", label=label, linewidth=1, markersize=3)


def draw_parts(axis: Any, runs: Sequence[RunFiles]) -> None:
    names = [label_of(run.name) for run in runs]
    left = [0.0] * len(runs)
    for part in PARTS:
        widths = [1e3 * run.median(part) if abs(run.median(part)) < LARGEST_SHOWN else 0.0 for run in runs]
        axis.barh(names, widths, left=left, label=part.removesuffix("_s"), height=0.5)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axis.set(title="where a step's time goes (median)", xlabel="ms", ylim=(len(runs), -0.8))
    axis.legend(ncols=4, fontsize=8, loc="lower right")


def draw_scores(axis: Any, runs: Sequence[RunFiles]) -> None:
    """Draws the final scores as bars, in percent if any run's are; leaves out losses, counts and thresholds."""
    percent = any(in_percent(run.scores or {}) for run in runs)
    lowest = 0.0  # correlations may be negative
    for number, run in enumerate(runs):
        scores = run.scores or {}
        scale = 100 if percent and not in_percent(scores) else 1
        drawn = [name for name, value in scores.items() if is_score(name) and abs(value) < LARGEST_SHOWN]
        values = {name: scale * scores[name] for name in drawn[:MOST_LINES]}
        lowest = min(lowest, *values.values(), 0.0)
        labels = [label_of(f"{run.name} {name}" if len(runs) > 1 else name) for name in values]
        bars = axis.barh(labels, list(values.values()), height=0.5, color=f"C{number}")
        axis.bar_label(bars, fmt="%.2f" if percent else "%.4f", padding=3)
    if not axis.patches:
        axis.set_axis_off()
        return
    axis.set(title="scores (percent)" if percent else "scores", xlim=(1.2 * lowest, 120 if percent else 1.2))
    axis.invert_yaxis()


if __name__ == "__main__":
    main()
