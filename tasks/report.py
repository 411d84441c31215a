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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert import InputError
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
    if not metrics:
        raise InputError(f"{folder}: no step is logged yet")
    result = folder / "result.json"
    return {
        "folder": folder,
        "metrics": metrics,
        **run,
        "result": json.loads(result.read_text()) if result.is_file() else {},
    }


def make_page(runs: list[dict[str, Any]]) -> str:
    """The page as one HTML file, pictures inside."""
    rows = []
    for run in runs:
        plan, last = run["plan"], run["metrics"][-1]
        scores = ", ".join(f"{name} {value:.2f}" for name, value in run["result"].get("scores", {}).items())
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
        for run in runs:
            points = [(m["step"], m[key]) for m in run["metrics"] if key in m]
            axis.plot(*zip(*points, strict=True), label=run["folder"].name, linewidth=1.3)
        axis.set(title=label, xlabel="step")
        axis.grid(alpha=0.3)
        if key in ("loss", "examples_per_s", "gradient_norm"):
            axis.set_ylim(bottom=0)
    if len(runs) > 1:
        axes[0, 0].legend()
    time_axis = axes[2, 0]
    names = [run["folder"].name for run in runs]
    left = [0.0] * len(runs)
    for part in PARTS:
        widths = [_median(run, part) * 1e3 for run in runs]
        time_axis.barh(names, widths, left=left, label=part.removesuffix("_s"), height=0.5)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    time_axis.set(title="where a step's time goes (median)", xlabel="ms", ylim=(-0.8, len(runs)))
    time_axis.legend(ncols=4, fontsize=8)
    score_axis = axes[2, 1]
    named = [(run["folder"].name, run["result"].get("scores", {})) for run in runs]
    bars = [(f"{run} {name}", value) for run, scores in named for name, value in scores.items()]
    shown = [(name, value) for name, value in bars if name.split()[-1] in ("exact_match", "exact", "f1")]
    if shown:
        drawn = score_axis.barh([name for name, _ in shown], [value for _, value in shown], height=0.5)
        score_axis.bar_label(drawn, fmt="%.2f", padding=3)
        score_axis.set(title="scores (percent)", xlim=(0, 112))
        score_axis.invert_yaxis()
    else:
        score_axis.set_axis_off()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    pyplot.close(figure)
    return buffer.getvalue()


def _median(run: dict[str, Any], key: str) -> float:
    # The first entry holds the compilation, unless it is the only one.
    values = [m[key] for m in run["metrics"] if key in m]
    return statistics.median(values[1:] or values) if values else 0.0


if __name__ == "__main__":
    main()
