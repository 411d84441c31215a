"""Compares the sum of a model's gradients inside a training step with Horovod's, on several ranks.

    python -m benchmarks.horovod_sums --rival_python HOROVOD/bin/python --rival_mpirun
      /usr/bin/mpirun

Both run the same step (gradient_step.py), in turn, each several times with the sum of the gradients
and without; the difference is the time of the sum. Horovod needs an environment of its own, with
TensorFlow 2.12.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import gradient_step
from benchmarks.timing import TurnSettings, alone, in_turn, last_error, ratios
from distributed.launch import parse_args
from distributed.mpirun import build_command, find_mpi
from distributed.world import World
from ringbase.errors import InputError
from ringbase.settings import Settings, setting
from tasks import SITE
from tasks.bench.timing import medians
from tasks.runs import flags
from tasks.runs.environment import set_environment

TIME_LIMIT_S = 10 * 60  # for one program in one turn
PACKAGES = {"RingBERT": "ringbert.horovod", "Horovod": "horovod.tensorflow"}


class SumsConfig(Settings):
    """The sum of gradients inside a step, compared with Horovod's."""

    rival_python: str = setting(help="Python that has Horovod and TensorFlow", group="machine")
    rival_mpirun: str | None = setting(
        None,
        "mpirun of the MPI that Horovod was built with",
        "machine",
        shown_default="that of RingBERT's MPI",
    )
    num_ranks: int = setting(2, "number of ranks", "load", at_least=2)
    num_pairs: int = setting(
        15, "pairs of steps per turn, without and with the sum", "load", at_least=1
    )
    turns: TurnSettings


def main(argv: Sequence[str] | None = None) -> None:
    prog = "benchmarks.horovod_sums"
    config = flags.parse(SumsConfig, argv, prog=prog, description=str(__doc__))
    set_environment()
    alone(config.turns.output_file, partial(bench_sums, config), prog)


def bench_sums(config: SumsConfig, world: World) -> dict[str, Any]:
    """For each model, both programs' medians over the turns, in seconds, and the ratios of
    Horovod's to ours."""
    figures: dict[str, Any] = {}
    for model, shapes_of in gradient_step.SHAPES.items():
        with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
            runs = {name: partial(run, config, Path(folder), model, name) for name in PACKAGES}
            turns = in_turn(runs, config.turns.repeat)
        sizes = [math.prod(shape) for shape in shapes_of()]
        world.say(
            f"{model}: {len(sizes)} variables, {sum(sizes) / 1e6:.1f} M parameters,"
            f" {config.num_ranks} ranks, medians of {config.turns.repeat} turns of"
            f" {config.num_pairs} pairs"
        )
        figures[model] = {name: medians(each, ("step_s", "sum_s")) for name, each in turns.items()}
        for name, seconds in figures[model].items():
            step, whole = seconds["step_s"] * 1e3, seconds["sum_s"] * 1e3
            world.say(f"  {name}: a step {step:.0f} ms without the sum, the sum {whole:.1f} ms")
        times = ratios(
            *([turn["sum_s"] for turn in turns[name]] for name in ("Horovod", "RingBERT"))
        )
        middle, turns_of = statistics.median(times), f"turns: {times[0]:.2f} to {times[-1]:.2f}"
        world.say(f"  Horovod's sum takes {middle:.2f} times as long ({turns_of})")
        figures[model] |= {"ratio": middle}
    return figures


def run(config: SumsConfig, folder: Path, model: str, name: str) -> dict[str, float]:
    """One turn of one program: median seconds of a step without the sum, and of the sum."""
    is_ours, report = name == "RingBERT", folder / "report.json"
    report.unlink(missing_ok=True)
    threads = max(1, len(os.sched_getaffinity(0)) // config.num_ranks)
    python = sys.executable if is_ours else config.rival_python
    words = (
        PACKAGES[name],
        model,
        str(config.num_ranks),
        str(threads),
        str(config.num_pairs),
        str(report),
    )
    environment = os.environ | {"PYTHONPATH": str(SITE) if is_ours else ""}
    mpi = find_mpi(None if is_ours else config.rival_mpirun)
    options = parse_args(
        [f"-np={config.num_ranks}", "--", python, str(gradient_step.__file__), *words]
    )
    command = build_command(mpi, options, environment)
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"{name} took more than {TIME_LIMIT_S / 60:.0f} minutes") from None
    if done.returncode or not report.is_file():
        raise InputError(f"{name} failed under {command[0]}: {last_error(done)}")
    pairs = json.loads(report.read_text())
    return {
        "step_s": statistics.median(without for without, _ in pairs),
        "sum_s": statistics.median(with_sum - without for without, with_sum in pairs),
    }


if __name__ == "__main__":
    main()
