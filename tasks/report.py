"""bert-report: a page with the curves and scores of runs, drawn from the files that they left.

    bert-report squad_output [other_output …]

writes report.html into the first folder. It reads run.json, metrics.jsonl and result.json, of a run that goes on
too, and needs neither TensorFlow nor the ranks.
"""

import base64
import html
import io
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ringbert.errors import InputError
from tasks import flags

PARTS = ("data_s", "compute_s", "reduce_s", "apply_s")
PANELS = (
    ("loss", "loss (mean over all ranks)"),
    ("learning_rate", "learning rate"),
    ("gradient_norm", "gradient norm before clipping"),
    ("examples_per_s", "examples/s over all ranks"),
)
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .8em;border-bottom:1px solid #ddd;text-align:left}
img{max-width:100%}code{background:#f3f3f3;padding:.1em .3em}"""


def main(argv: Sequence[str] | None = None) -> None:
    folders = [Path(name) for name in (sys.argv[1:] if argv is None else argv)]
    if not folders or str(folders[0]) in ("-h", "--help"):
        flags.stop("usage: bert-report OUTPUT_DIR [OUTPUT_DIR ...]\n\n" + str(__doc__), 0 if folders else 2)
    try:
        page = make_page([read_run(folder) for folder in folders])
    except InputError as error:
        flags.stop(f"bert-report: error: {error}", 1)
    path = folders[0] / "report.html"
    path.write_text(page, encoding="utf-8")
    print(path)


def read_run(folder: Path) -> dict[str, Any]:
    """What a run folder tells. Raises InputError when there is no run."""
    try:
        run = json.loads((folder / "run.json").read_text())
        lines = (folder / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError as error:
        raise InputError(f"{folder}: no run of ringbert ({Path(error.filename).name} is missing)") from error
    metrics = []
    for line in lines:
        try:
            metrics.append(json.loads(line))
        except ValueError:  # a line that is being written
            continue
    steps = [line for line in metrics if "loss" in line]
    if not steps:
        raise InputError(f"{folder}: no step is logged yet")
    result = folder / "result.json"
    return {
        "folder": folder,
        "steps": steps,
        "evaluations": [line for line in metrics if "loss" not in line],
        **run,
        "result": json.loads(result.read_text()) if result.is_file() else {},
    }


def make_page(runs: list[dict[str, Any]]) -> str:
    """The page as one HTML file, pictures inside."""
    rows = []
    for run in runs:
        plan, last = run["plan"], run["steps"][-1]
        scores = ", ".join(
            f"{name} {value:.2f}" if value > 1 else f"{name} {value:.4f}"
            for name, value in run["result"].get("scores", {}).items()
        )
        cells = (
            run["folder"].name,
            f"{last['step']:,} of {plan['steps']:,}",
            str(plan["size"]),
            str(plan["global_batch_size"]),
            f"{plan['learning_rate']:.3g}",
            f"{last['loss']:.4f}",
            f"{_median(run, 'examples_per_s'):.1f}",
            scores or "not yet",
        )
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    heads = ("run", "steps", "ranks", "global batch", "rate", "last loss", "examples/s (median)", "scores")
    head = "".join(f"<th>{name}</th>" for name in heads)
    commands = "".join(
        f"<p><b>{html.escape(run['folder'].name)}</b>: "
        f"<code>{html.escape(' '.join(run['environment']['command']))}</code>"
        f"<br>{html.escape(run['environment']['machine'])}</p>"
        for run in runs
    )
    title = html.escape(" · ".join(run["folder"].name for run in runs))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"<h1>{title}</h1><table><tr>{head}</tr>{''.join(rows)}</table>"
        f'<img alt="curves over steps" src="data:image/png;base64,{base64.b64encode(draw(runs)).decode()}">'
        f"<h2>How they were run</h2>{commands}</html>\n"
    )


def draw(runs: list[dict[str, Any]]) -> bytes:
    """PNG: loss, rate, gradient norm, speed over steps, and where the time of a step goes."""
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("plots need matplotlib: pip install matplotlib (ringbert's extra `report`)") from error

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 2, figsize=(11, 10.5), layout="constrained")
    for axis, (key, label) in zip(axes.flat, PANELS, strict=False):
        for number, run in enumerate(runs):
            points = [(m["step"], m[key]) for m in run["steps"] if key in m]
            axis.plot(*zip(*points, strict=True), label=run["folder"].name, linewidth=1.3, color=f"C{number}")
            if key == "loss":
                _draw_evaluations(axis, run, lambda name: name.endswith("loss"), alpha=0.6)
        axis.set(title=label, xlabel="step")
        axis.grid(alpha=0.3)
        if key in ("loss", "examples_per_s", "gradient_norm"):
            axis.set_ylim(bottom=0)
    if len(runs) > 1 or runs[0]["evaluations"]:
        axes[0, 0].legend(fontsize=8)
    time_axis = axes[2, 0]
    names = [run["folder"].name for run in runs]
    left = [0.0] * len(runs)
    for part in PARTS:
        widths = [_median(run, part) * 1e3 for run in runs]
        time_axis.barh(names, widths, left=left, label=part.removesuffix("_s"), height=0.5)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    time_axis.set(title="where a step's time goes (median)", xlabel="ms", ylim=(-0.8, len(runs)))
    time_axis.legend(ncols=4, fontsize=8)
    _draw_scores(axes[2, 1], runs)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    pyplot.close(figure)
    return buffer.getvalue()


def _draw_evaluations(axis: Any, run: dict[str, Any], is_wanted: Callable[[str], bool], **style: Any) -> None:
    """What was measured while training, over steps: one dashed line per score."""
    names = {name for line in run["evaluations"] for name in line if is_wanted(name)} - {"step", "time", "rows"}
    for name in sorted(names):
        points = [(line["step"], line[name]) for line in run["evaluations"] if name in line]
        axis.plot(
            *zip(*points, strict=True), "o--", label=f"{run['folder'].name} {name}", linewidth=1, markersize=3
        )


def _draw_scores(axis: Any, runs: list[dict[str, Any]]) -> None:
    """The scores over steps where they were measured while training, else those of the end as bars."""
    if any(run["evaluations"] for run in runs):
        for run in runs:
            _draw_evaluations(axis, run, lambda name: not name.endswith("loss"))
        axis.set(title="scores on held-out data", xlabel="step")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
        return
    scores = [(run["folder"].name, run["result"].get("scores", {})) for run in runs]
    bars = [
        (f"{run} {name}", value) for run, found in scores for name, value in found.items() if "loss" not in name
    ]
    if not bars:
        axis.set_axis_off()
        return
    percent = max(value for _, value in bars) > 1
    drawn = axis.barh([name for name, _ in bars], [value for _, value in bars], height=0.5)
    axis.bar_label(drawn, fmt="%.2f" if percent else "%.4f", padding=3)
    axis.set(title="scores (percent)" if percent else "scores", xlim=(0, 112 if percent else 1.2))
    axis.invert_yaxis()


def _median(run: dict[str, Any], key: str) -> float:
    # The first entry holds the compilation, unless it is the only one.
    values = [m[key] for m in run["steps"] if key in m]
    return statistics.median(values[1:] or values) if values else 0.0


if __name__ == "__main__":
    main()
