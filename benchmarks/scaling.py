"""Runs `bert-bench step` on 1, 2, 4 … N ranks of this machine in turn, and gives the efficiency.

    python -m benchmarks.scaling --repeat 3 --model_size minilm --precision bf16

All other flags go to bert-bench step. Without GPUs each rank has one core, and one rank on N cores comes last. The
efficiency of N ranks is their speed divided by N times the speed of the first.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.timing import alone, in_turn, last_error, medians, ratios
from distributed.devices import visible_gpus
from distributed.world import World
from ringbase.errors import InputError
from tasks import SITE
from tasks.bench.__main__ import PARTS


def bench(max_ranks: int | None, repeat: int, flags: list[str], world: World) -> dict[str, Any]:
    """Runs every layout in turn, prints the medians as a table and returns them."""
    cores, num_gpus = sorted(os.sched_getaffinity(0)), len(visible_gpus())
    largest = max_ranks or num_gpus or len(cores)
    counts = [1 << power for power in range(largest.bit_length()) if 1 << power < largest] + [largest]
    # label -> number of ranks, the cores that they may use, and how many cores or GPUs compute
    layouts = {f"{count} ranks": (count, cores if num_gpus else cores[:count], count) for count in counts}
    if not num_gpus and largest > 1:
        layouts[f"1 rank, {largest} cores"] = (1, cores[:largest], largest)
    turns = in_turn({label: partial(figures_of, flags, *layout[:2]) for label, layout in layouts.items()}, repeat)
    rates = {label: [turn["examples_per_s"] for turn in turns[label]] for label in turns}
    world.say(f"{' '.join(flags)}; medians of {repeat} turns")
    world.say(f"{'examples/s':>28s}{'tokens/s':>11s}{'efficiency':>12s}   data, compute, reduce, apply (ms)")
    figures: dict[str, Any] = {}
    for label, (ranks, _, units) in layouts.items():
        speedup = statistics.median(ratios(rates[label], rates["1 ranks"]))
        values = medians(turns[label], ("examples_per_s", "deviation", "tokens_per_s", *PARTS))
        figures[label] = {
            **values,
            "ranks": ranks,
            "units": units,
            "speedup": speedup,
            "efficiency": speedup / units,
        }
        speed = f"{values['examples_per_s']:8.2f} ±{values['deviation']:5.2f}{values['tokens_per_s']:9.0f}"
        parts = ", ".join(f"{values[name] * 1e3:.0f}" for name in PARTS)
        world.say(f"{label:16s}{speed}{speedup / units:12.1%}   {parts}")
    return {"layouts": figures}


def figures_of(flags: list[str], ranks: int, cores: list[int]) -> dict[str, Any]:
    """The figures that `bert-bench step` writes. Raises InputError: it failed."""
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
        path, python = Path(folder, "figures.json"), (sys.executable, "-m")
        command = [*python, "distributed.launch", f"-np={ranks}", "--", *python, "tasks.bench", "step", *flags]
        environment, on_cores = os.environ | {"PYTHONPATH": str(SITE)}, partial(os.sched_setaffinity, 0, cores)
        done = subprocess.run([*command, f"--output_file={path}"], env=environment, capture_output=True, text=True,
                              preexec_fn=on_cores)  # fmt: skip
        if done.returncode:
            raise InputError(f"bert-bench step on {ranks} ranks failed: {last_error(done)}")
        return json.loads(path.read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--max_ranks", type=int, help="largest number of ranks (default: a rank per GPU or core)")
    parser.add_argument("--repeat", type=int, default=3, help="turns (default: 3)")
    parser.add_argument("--output_file", help="JSON file for the figures")
    options, flags = parser.parse_known_args()
    alone(options.output_file, partial(bench, options.max_ranks, options.repeat, flags), "benchmarks.scaling")
