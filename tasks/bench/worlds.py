"""How a benchmark starts: on the ranks of a launcher, or as one process that starts programs; and its figures."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distributed.devices import DeviceSettings, cores_of_machine
from distributed.launcher import launched_size
from distributed.world import World
from ringbase.errors import InputError
from ringbase.files import write_json
from tasks import SITE
from tasks.bench.settings import FiguresSettings


def on_ranks(device: DeviceSettings, figures: FiguresSettings, measure: Callable[[World], dict[str, Any]]) -> None:
    """Joins the ranks, calls `measure(world)` on each, and writes the figures of rank 0."""
    with World.join(device, "bert-bench") as world:
        measured = measure(world)
        world.on_first(write, figures, measured)


def alone(
    figures: FiguresSettings, measure: Callable[[World], dict[str, Any]], program: str = "bert-bench"
) -> None:
    """Calls `measure(world)` in a process without MPI, which may start others, and writes the figures."""
    with World(program=program) as world:
        if launched_size()[1] > 1:
            raise InputError("this benchmark starts its own processes: run it without mpirun or srun")
        write(figures, measure(world))


def write(settings: FiguresSettings, figures: dict[str, Any]) -> None:
    if settings.output_file:
        write_json(Path(settings.output_file).expanduser(), figures, indent=1)


def run_module(
    what: str,
    arguments: Sequence[str],
    num_ranks: int = 1,
    variables: Mapping[str, str] | None = None,
    cores: Sequence[int] = (),
) -> None:
    """Runs `python -m arguments` on ranks of this machine, which may use these cores (none for all).

    Raises InputError, with `what` and the error: it failed.
    """
    command = launched([sys.executable, "-m", *arguments], num_ranks)
    environment = {**os.environ, "PYTHONPATH": str(SITE), **(variables or {})}
    with cores_of_machine(frozenset(cores)):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"{what} failed: {last_error(done)}")


def launched(command: Sequence[str], num_ranks: int) -> list[str]:
    """The command that starts `command` on ranks of this machine."""
    launch = [sys.executable, "-m", "distributed.launch", "-np", str(num_ranks), "--"]
    return [*launch, *command] if num_ranks > 1 else list(command)


def last_error(done: "subprocess.CompletedProcess[str]") -> str:
    """The error of a failed program: its last line that contains "error", else its last line."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [f"exit status {done.returncode}"])[-1]
