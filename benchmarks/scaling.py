"""Runs bert-bench step on 1 to N ranks of this machine, and gives the efficiency.

    python -m benchmarks.scaling --model_size minilm --precision bf16

One rank is measured on one core and on all cores, or with GPUs on one GPU. The efficiency of N
ranks is their speed divided by N times the speed of one rank on one core.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.timing import TurnSettings, alone, in_turn, last_error, ratios
from distributed.clock import PARTS
from distributed.devices import visible_gpus
from distributed.world import World
from ringbase.errors import InputError
from ringbase.settings import Settings, flat, setting
from tasks import SITE
from tasks.bench.settings import LoadSettings
from tasks.bench.timing import medians
from tasks.runs import flags
from tasks.runs.environment import set_environment


class ScalingConfig(Settings):
    """Training steps on 1 to N ranks of this machine, as a table."""

    load: LoadSettings
    turns: TurnSettings
    max_ranks: int | None = setting(
        None,
        "largest number of ranks",
        "load",
        shown_default="one for each GPU, else one for each core",
        at_least=1,
        at_most=4096,
    )


class Layout(NamedTuple):
    """A number of ranks and the cores that they may use; `units` counts the cores, or GPUs, that
    compute."""

    label: str
    ranks: int
    cores: Sequence[int]
    units: int


def layouts(max_ranks: int | None) -> list[Layout]:
    """Layouts of 1, 2, 4, … N ranks. Without GPUs each rank has one core, and the last layout is
    one rank on N cores."""
    cores, num_gpus = sorted(os.sched_getaffinity(0)), len(visible_gpus())
    largest = max_ranks or num_gpus or len(cores)
    counts = [1 << power for power in range(largest.bit_length()) if 1 << power < largest] + [
        largest
    ]
    labels = {count: f"{count} rank{'s' * (count > 1)}" for count in counts}
    if num_gpus:
        return [Layout(label, count, cores, count) for count, label in labels.items()]
    rows = [
        Layout(f"{label}, a core each", count, cores[:count], count)
        for count, label in labels.items()
    ]
    used = cores[:largest]
    return (
        [*rows, Layout(f"1 rank, {len(used)} threads", 1, used, len(used))]
        if len(used) > 1
        else rows
    )


def main(argv: Sequence[str] | None = None) -> None:
    prog = "benchmarks.scaling"
    config = flags.parse(ScalingConfig, argv, prog=prog, description=str(__doc__))
    set_environment()
    alone(config.turns.output_file, partial(bench_scaling, config), prog)


def bench_scaling(config: ScalingConfig, world: World) -> dict[str, Any]:
    """Runs every layout in turn, prints the medians as a table and returns them."""
    rows = layouts(config.max_ranks)
    turns = in_turn(
        {row.label: partial(figures_of, config.load, row) for row in rows}, config.turns.repeat
    )
    rates = {label: [turn["examples_per_s"] for turn in turns[label]] for label in turns}
    world.say(f"{config.load}; medians of {config.turns.repeat} turns")
    columns = (
        f"{'examples/s':>12s}{'tokens/s':>11s}{'efficiency':>12s}   data, compute, reduce, apply"
        " (ms)"
    )
    world.say(f"{'':26s}{columns}")
    figures: dict[str, Any] = {}
    for row in rows:
        speedup = statistics.median(ratios(rates[row.label], rates[rows[0].label]))
        values = medians(turns[row.label], ("examples_per_s", "deviation", "tokens_per_s", *PARTS))
        counts = {"ranks": row.ranks, "units": row.units}
        figures[row.label] = (
            values | counts | {"speedup": speedup, "efficiency": speedup / row.units}
        )
        speed = (
            f"{values['examples_per_s']:8.2f}"
            f" ±{values['deviation']:5.2f}{values['tokens_per_s']:9.0f}"
        )
        parts = ", ".join(f"{values[name] * 1e3:.0f}" for name in PARTS)
        world.say(f"{row.label:26s}{speed}{speedup / row.units:12.1%}   {parts}")
    return {"layouts": figures}


def figures_of(load: LoadSettings, layout: Layout) -> dict[str, Any]:
    """The figures that `bert-bench step` writes. Raises InputError: it failed."""
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
        path = Path(folder, "figures.json")
        given = [f"--{name}={value}" for name, value in flat(load).items() if value is not None]
        launch = (
            "distributed.launch",
            f"-np={layout.ranks}",
            "--",
            sys.executable,
            "-m",
            "tasks.bench",
            "step",
        )
        command = [sys.executable, "-m", *launch, *given, f"--output_file={path}"]
        environment = {**os.environ, "PYTHONPATH": str(SITE)}
        on_cores = partial(os.sched_setaffinity, 0, layout.cores)
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, preexec_fn=on_cores
        )
        if done.returncode:
            raise InputError(f"bert-bench step on {layout.label} failed: {last_error(done)}")
        return json.loads(path.read_text())


if __name__ == "__main__":
    main()
