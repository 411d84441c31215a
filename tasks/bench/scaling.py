"""bert-bench scaling: runs bert-bench step on 1 to N ranks of this machine; gives efficiency and a picture.

One rank is measured on one core and on all cores, or with GPUs on one GPU. The efficiency of N ranks is their
speed divided by N times the speed of one rank on one core. The all-reduce of N ranks is measured too.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringbase.errors import InputError
from ringbase.settings import check_at_least, check_at_most, setting
from tasks.bench.load import StepLoad
from tasks.bench.process import ROOT, last_error, on_ranks
from tasks.bench.scaling_picture import draw
from tasks.bench.settings import BufferSettings, TurnSettings, refuse_local
from tasks.bench.step import PARTS
from tasks.bench.timing import in_turn, medians, ratio

if TYPE_CHECKING:
    from distributed.world import World

MOST_RANKS = 4096


@dataclass(frozen=True, kw_only=True)
class ScalingConfig(StepLoad, BufferSettings, TurnSettings):
    """Training steps on 1 to N ranks of this machine, as a table and a picture."""

    max_ranks: int | None = setting(
        None, "largest number of ranks", "load", shown_default="one for each GPU, else one for each core"
    )
    picture: str | None = setting(
        None, ".png or .svg file to draw (needs matplotlib)", "machine", shown_default="none"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "max_ranks")
        check_at_most(self, MOST_RANKS, "max_ranks")
        refuse_local(self)


@dataclass(frozen=True)
class Layout:
    """A number of ranks and the cores that they may use; `units` counts the cores, or GPUs, that compute."""

    label: str
    ranks: int
    cores: frozenset[int]
    units: int


def layouts(max_ranks: int | None, cores: Sequence[int], num_gpus: int) -> list[Layout]:
    """Layouts of 1, 2, 4, … N ranks. Without GPUs each rank has one core, and the last layout is one rank on N
    cores."""
    largest = max_ranks or num_gpus or len(cores)
    counts = [1 << power for power in range(largest.bit_length()) if 1 << power < largest] + [largest]
    labels = {count: f"{count} rank{'s' * (count > 1)}" for count in counts}
    if num_gpus:
        return [Layout(label, count, frozenset(cores), count) for count, label in labels.items()]
    rows = [Layout(f"{label}, a core each", n, frozenset(cores[:n]), n) for n, label in labels.items()]
    used = frozenset(cores[:largest])
    return [*rows, Layout(f"1 rank, {len(used)} threads", 1, used, len(used))] if len(used) > 1 else rows


def bench_scaling(config: ScalingConfig, world: "World") -> dict[str, Any]:
    """Runs every layout in turn, prints the medians as a table and returns them."""
    from distributed.devices import visible_gpus

    rows = layouts(config.max_ranks, sorted(os.sched_getaffinity(0)), len(visible_gpus()))
    flags = [*step_flags(config), "--num_pairs=1"]
    turns = in_turn({row.label: partial(_bench, "step", row, flags) for row in rows}, config.repeat)
    rates = {label: [turn["examples_per_s"] for turn in turns[label]] for label in turns}
    world.say(
        f"{config.model_name}, {config.rows_name} per rank, {config.precision}; medians of {config.repeat} turns"
    )
    world.say(
        f"{'':26s}{'examples/s':>12s}{'tokens/s':>11s}{'efficiency':>12s}   data, compute, reduce, apply (ms)"
    )
    figures: dict[str, Any] = {"layouts": {}, "allreduce": None}
    for row in rows:
        speedup = ratio(rates[row.label], rates[rows[0].label]).median
        values = medians(turns[row.label], ("examples_per_s", "deviation", "tokens_per_s", *PARTS))
        figures["layouts"][row.label] = values | {
            "ranks": row.ranks, "units": row.units, "speedup": speedup, "efficiency": speedup / row.units
        }  # fmt: skip
        parts = ", ".join(f"{values[name] * 1e3:.0f}" for name in PARTS)
        world.say(
            f"{row.label:26s}{values['examples_per_s']:8.2f} ±{values['deviation']:5.2f}"
            f"{values['tokens_per_s']:9.0f}{speedup / row.units:12.1%}   {parts}"
        )
    widest = max(rows, key=lambda row: row.ranks)
    if widest.ranks > 1:
        figures["allreduce"] = _bench_sums(config, widest, world)
    if config.picture:
        draw(figures, statistics.median(rates[rows[0].label]), Path(config.picture).expanduser())
        world.say(f"picture: {config.picture}")
    return figures


def step_flags(config: StepLoad) -> list[str]:
    """The flags for `bert-bench step` to measure the same load."""
    values = {field.name: getattr(config, field.name) for field in fields(StepLoad)}
    return [f"--{name}={value}" for name, value in values.items() if value is not None]


def _bench_sums(config: ScalingConfig, layout: Layout, world: "World") -> dict[str, Any]:
    sums = _bench("allreduce", layout, [f"--megabytes={config.megabytes}", f"--backend={config.backend}"])
    for size, seconds in sums.items():
        ours, plain = (float(size) / 1e3 / seconds[name] for name in ("ours_s", "plain_s"))
        world.say(f"all-reduce over {layout.ranks} ranks, {size} MB: {ours:.2f} GB/s, one Allreduce {plain:.2f}")
    return sums


def _bench(command: str, layout: Layout, flags: list[str]) -> dict[str, Any]:
    """Runs `bert-bench COMMAND` in separate processes and returns its figures. Raises InputError: it failed."""
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
        report = Path(folder, "report.json")
        program = [sys.executable, "-m", "tasks.bench", command, *flags, f"--output_file={report}"]
        done = subprocess.run(
            on_ranks(program, layout.ranks),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, layout.cores),
        )
        if done.returncode or not report.is_file():
            raise InputError(f"bert-bench {command} on {layout.label} failed: {last_error(done)}")
        return json.loads(report.read_text())
