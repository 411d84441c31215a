"""bert-bench scaling: bert-bench step on 1 to N ranks, with efficiency and a picture.

One rank is measured on one core, and on all of them; with GPUs, on one GPU. The efficiency of N ranks is their
speed over N times that of one rank (on one core). The all-reduce of N ranks is measured beside it.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ringbert.errors import InputError
from ringbert.settings import setting
from tasks.bench.load import StepLoad
from tasks.bench.step import positive_numbers

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("data_s", "compute_s", "reduce_s", "apply_s")


@dataclass(frozen=True)
class ScalingConfig(StepLoad):
    """bert-bench scaling: whole training steps on 1 to N ranks of this machine, a table and a picture."""

    max_ranks: int | None = setting(None, "N; default: one for each GPU, without GPUs for each core", "load")
    repeat: int = setting(3, "turns; medians are printed", "load")
    megabytes: str = setting("1,16,88,440", "sizes of the all-reduce, separated by commas (10^6 bytes)", "load")
    picture: str | None = setting(None, "a .png or .svg to draw (needs matplotlib)", "machine")
    output_file: str | None = setting(None, "write the figures as JSON too", "machine")

    def __post_init__(self):
        super().__post_init__()
        for name in ("max_ranks", "repeat"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"--{name} is {getattr(self, name)}, needed is at least 1")
        positive_numbers("megabytes", self.megabytes)
        if self.backend == "local":
            raise ValueError("--backend local is for one rank: auto, mpi, nccl and ring sum over several")


@dataclass(frozen=True)
class Layout:
    """So many ranks, and the cores that they may use; `units`: how many cores, or GPUs, compute."""

    label: str
    ranks: int
    cores: frozenset[int]
    units: int


def layouts(max_ranks: int | None, cores: Sequence[int], num_gpus: int) -> list[Layout]:
    """1, 2, 4, … N ranks; without GPUs each on a core of its own, and one rank on all cores of the N."""
    most = max_ranks or num_gpus or len(cores)
    counts = [1 << power for power in range(most.bit_length()) if 1 << power < most] + [most]
    named = {count: f"{count} rank{'s' * (count > 1)}" for count in counts}
    if num_gpus:
        return [Layout(name, count, frozenset(cores), count) for count, name in named.items()]
    found = [Layout(f"{name}, a core each", n, frozenset(cores[:n]), n) for n, name in named.items()]
    used = frozenset(cores[:most])
    return [*found, Layout(f"1 rank, {len(used)} threads", 1, used, len(used))] if len(used) > 1 else found


def bench_scaling(config: ScalingConfig, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs every layout in turn; the medians, which it also prints as a table."""
    from distributed.world import visible_gpus

    rows = layouts(config.max_ranks, sorted(os.sched_getaffinity(0)), len(visible_gpus()))
    turns: dict[str, list[dict[str, Any]]] = {row.label: [] for row in rows}
    for _ in range(config.repeat):
        for row in rows:
            turns[row.label].append(_measured(row, "step", [*_step_flags(config), "--num_pairs=1"]))
    one = statistics.median(turn["examples_per_s"] for turn in turns[rows[0].label])
    figures: dict[str, Any] = {"layouts": {}, "allreduce": None}
    say(f"{config.model_name}, {config.rows_name} per rank, {config.precision}; medians of {config.repeat} turns")
    say(f"{'':26s}{'examples/s':>12s}{'tokens/s':>11s}{'efficiency':>12s}   data, compute, reduce, apply (ms)")
    for row in rows:
        found = {
            name: statistics.median(turn[name] for turn in turns[row.label])
            for name in ("examples_per_s", "deviation", "tokens_per_s", *PARTS)
        }
        speedup = statistics.median(
            turn["examples_per_s"] / first["examples_per_s"]
            for turn, first in zip(turns[row.label], turns[rows[0].label], strict=True)
        )
        found |= {"ranks": row.ranks, "units": row.units, "speedup": speedup, "efficiency": speedup / row.units}
        figures["layouts"][row.label] = found
        parts = ", ".join(f"{found[name] * 1e3:.0f}" for name in PARTS)
        say(
            f"{row.label:26s}{found['examples_per_s']:8.2f} ±{found['deviation']:5.2f}"
            f"{found['tokens_per_s']:9.0f}{found['efficiency']:12.1%}   {parts}"
        )
    widest = max(rows, key=lambda row: row.ranks)
    if widest.ranks > 1:
        given = [f"--megabytes={config.megabytes}", f"--backend={config.backend}"]
        figures["allreduce"] = _measured(widest, "allreduce", given)
        for size, sums in figures["allreduce"].items():
            say(
                f"all-reduce over {widest.ranks} ranks, {size} MB: {float(size) / 1e3 / sums['ours_s']:.2f} GB/s, "
                f"one Allreduce {float(size) / 1e3 / sums['plain_s']:.2f}"
            )
    if config.picture:
        draw(figures, one, Path(config.picture).expanduser())
        say(f"picture: {config.picture}")
    return figures


def _step_flags(config: ScalingConfig) -> list[str]:
    values = {field.name: getattr(config, field.name) for field in fields(StepLoad)}
    return [f"--{name}={value}" for name, value in values.items() if value is not None]


def _measured(row: Layout, command: str, given: list[str]) -> dict[str, Any]:
    """The figures of `bert-bench COMMAND` in processes of their own. Raises InputError: it failed."""
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
        report = Path(folder, "report.json")
        launch = ["-m", "distributed.launch", "-np", str(row.ranks), "--", sys.executable] if row.ranks > 1 else []
        done = subprocess.run(
            [sys.executable, *launch, "-m", "tasks.bench", command, *given, f"--output_file={report}"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, row.cores),
        )
        if done.returncode or not report.is_file():
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise InputError(f"bert-bench {command} on {row.label} failed: {lines[-1]}")
        return json.loads(report.read_text())


def draw(figures: dict[str, Any], one: float, path: Path) -> None:
    """Speed beside N times one rank's, the parts of a step, the all-reduce by size.

    Raises InputError: no matplotlib, or a path that cannot be written.
    """
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise InputError(
            "--picture needs matplotlib: pip install matplotlib (ringbert's extra `report`)"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels, found = list(figures["layouts"]), list(figures["layouts"].values())
    sums = figures["allreduce"]
    figure, axes = pyplot.subplots(1, 3 if sums else 2, figsize=(14 if sums else 10, 4), layout="constrained")
    places = range(len(labels))
    shown = [label.replace(", ", "\n") for label in labels]
    rates, deviations = [f["examples_per_s"] for f in found], [f["deviation"] for f in found]
    axes[0].bar(places, rates, yerr=deviations, capsize=4, label="measured")
    axes[0].plot(places, [one * f["units"] for f in found], "k_", markersize=30, label="N times one rank")
    axes[0].set_title("examples/s over all ranks")
    axes[0].margins(y=0.3)  # room for the legend above the bars
    axes[0].legend(loc="upper left")
    bottom = [0.0] * len(found)
    for part in PARTS:
        heights = [f[part] * 1e3 for f in found]
        axes[1].bar(places, heights, bottom=bottom, label=part.removesuffix("_s"))
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes[1].set_title("a step, ms")
    axes[1].margins(y=0.3)
    axes[1].legend(ncols=2)
    for axis in axes[:2]:
        axis.set_xticks(list(places), shown)
    if sums:
        sizes = [float(size) for size in sums]
        for name, label in (("ours_s", "as in training"), ("plain_s", "one Allreduce")):
            speeds = [size / 1e3 / sums[f"{size:g}"][name] for size in sizes]
            axes[2].plot(sizes, speeds, "o-", label=label)
        axes[2].set_xscale("log")
        axes[2].set_xticks(sizes, [f"{size:g}" for size in sizes])
        axes[2].minorticks_off()
        axes[2].set_title("all-reduce, GB/s by MB")
        axes[2].set_ylim(bottom=0)
        axes[2].legend()
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise InputError(f"--picture {path}: {error}") from error
    finally:
        pyplot.close(figure)
