"""Compares the sum of a model's gradients inside a training step with Horovod's, on several ranks.

    python -m benchmarks.horovod_sums --rival_python HOROVOD/bin/python --rival_mpirun /usr/bin/mpirun

Both run the same step (gradient_step.py), in turn, each several times with the sum of the gradients and without;
the difference is the time of the sum. Horovod needs an environment of its own, with TensorFlow 2.12.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import gradient_step
from distributed.mpirun import LaunchError, Mpi, Options, build_command, find_mpi, mpi_of
from distributed.world import World
from ringbase.errors import InputError
from ringbase.settings import Settings, setting
from tasks import SITE, flags
from tasks.bench.settings import TurnSettings
from tasks.bench.timing import in_turn, ratio
from tasks.bench.worlds import alone, last_error
from tasks.environment import set_environment

TIME_LIMIT_S = 10 * 60  # for one program in one turn
OURS, HOROVOD = "ringbert.horovod", "horovod.tensorflow"
LABELS = {OURS: "RingBERT", HOROVOD: "Horovod"}


@dataclass(frozen=True, kw_only=True)
class SumsConfig(Settings):
    """The sum of gradients inside a step, compared with Horovod's."""

    rival_python: str = setting(help="Python that has Horovod and TensorFlow", group="machine")
    rival_mpirun: str | None = setting(
        None, "mpirun of the MPI that Horovod was built with", "machine", shown_default="that of RingBERT's MPI"
    )
    models: str = setting(
        ",".join(gradient_step.SHAPES), "models whose gradients are summed, separated by commas", "load"
    )
    num_ranks: int = setting(2, "number of ranks", "load", at_least=2)
    width: int = setting(384, "width of the matrices multiplied before each gradient", "load", at_least=1)
    num_pairs: int = setting(15, "pairs of steps per turn, without and with the sum", "load", at_least=1)
    num_warmup: int = setting(4, "pairs before the measurement", "load", at_least=2)
    turns: TurnSettings

    def check(self) -> None:
        if unknown := [name for name in self.models.split(",") if name not in gradient_step.SHAPES]:
            raise ValueError(f"--models must be among {', '.join(gradient_step.SHAPES)}, got {unknown[0]!r}")


def main(argv: Sequence[str] | None = None) -> None:
    prog = "benchmarks.horovod_sums"
    config = flags.parse(SumsConfig, argv, prog=prog, description=str(__doc__))
    set_environment()
    alone(config.turns, partial(bench_sums, config), prog)


def bench_sums(config: SumsConfig, world: World) -> dict[str, Any]:
    """For each model, both programs' medians over the turns, in seconds, and the ratios of Horovod's to ours."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="ringbert-bench-") as folder:
        for model in config.models.split(","):
            figures[model] = compare_sums(Contest(config, Path(folder), model))
            numbers = figures[model]
            world.say(
                f"{model}: {numbers['variables']} variables, {numbers['parameters'] / 1e6:.1f} M parameters, "
                f"{config.num_ranks} ranks, medians of {config.turns.repeat} turns of {config.num_pairs} pairs"
            )
            for package, label in LABELS.items():
                world.say(
                    f"  {label}: a step {numbers[package]['step_s'] * 1e3:.0f} ms without the sum, "
                    f"the sum {numbers[package]['sum_s'] * 1e3:.1f} ms"
                )
            times = numbers["ratio"]
            world.say(
                f"  Horovod's sum takes {times[0]:.2f} times as long (turns: {times[1]:.2f} to {times[2]:.2f})"
            )
    return figures


def compare_sums(contest: "Contest") -> dict[str, Any]:
    """The figures of one model."""
    turns = in_turn({package: partial(contest.run, package) for package in LABELS}, contest.config.turns.repeat)
    shapes = list(gradient_step.SHAPES[contest.model]())
    figures: dict[str, Any] = {"variables": len(shapes), "parameters": sum(map(_size, shapes))}
    for package, results in turns.items():
        figures[package] = {name: statistics.median(turn[name] for turn in results) for name in results[0]}
    sums = [[turn["sum_s"] for turn in turns[package]] for package in (HOROVOD, OURS)]
    return figures | {"ratio": list(ratio(*sums))}


def _size(shape: tuple[int, ...]) -> int:
    return shape[0] * _size(shape[1:]) if shape else 1


@dataclass(frozen=True)
class Contest:
    """The flags, a temporary folder and the name of a model."""

    config: SumsConfig
    folder: Path
    model: str
    num_threads: int = field(init=False)

    def __post_init__(self) -> None:
        threads = max(1, len(os.sched_getaffinity(0)) // self.config.num_ranks)
        object.__setattr__(self, "num_threads", threads)

    def run(self, package: str) -> dict[str, float]:
        """One turn of one program: median seconds of a step without the sum, and of the sum."""
        described, report = self.folder / "settings.json", self.folder / "report.json"
        names = ("num_ranks", "width", "num_pairs", "num_warmup")
        settings = {name: getattr(self.config, name) for name in names}
        described.write_text(json.dumps(settings | {"model": self.model, "num_threads": self.num_threads}))
        report.unlink(missing_ok=True)
        python = sys.executable if package == OURS else self.config.rival_python
        program = (python, gradient_step.__file__, package, str(described), str(report))
        environment = os.environ | {"PYTHONPATH": str(SITE) if package == OURS else ""}
        built = build_command(self.mpi(package), Options(program, self.config.num_ranks), environment)
        try:
            done = subprocess.run(
                built.argv, env=environment | dict(built.variables), capture_output=True, text=True,
                timeout=TIME_LIMIT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise InputError(f"{package} took more than {TIME_LIMIT_S / 60:.0f} minutes") from None
        if done.returncode or not report.is_file():
            raise InputError(f"{package} failed under {built.argv[0]}: {last_error(done)}")
        pairs = json.loads(report.read_text())
        return {
            "step_s": statistics.median(without for without, _ in pairs),
            "sum_s": statistics.median(with_sum - without for without, with_sum in pairs),
        }

    def mpi(self, package: str) -> Mpi:
        mpirun = self.config.rival_mpirun
        if package == OURS or mpirun is None:
            return find_mpi()
        try:
            return mpi_of(mpirun)
        except LaunchError as error:
            raise InputError(f"--rival_mpirun: {error}") from error


if __name__ == "__main__":
    main()
