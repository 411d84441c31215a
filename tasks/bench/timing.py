"""What benchmarks share: contenders measured in turn, medians and ratios over the turns, and programs run alone.

The speed of a machine changes within a minute. So the contenders run one after the other in each of several turns,
and a ratio is the median of the ratios within each turn, not the ratio of two medians.
"""

import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from distributed.launcher import launched_size
from distributed.world import World
from ringbase.errors import InputError
from ringbase.files import write_json

Result = TypeVar("Result")


class Ratio(NamedTuple):
    """Ratios of pairs: the median, the lowest and the highest."""

    median: float
    lowest: float
    highest: float


def in_turn(contenders: Mapping[str, Callable[[], Result]], num_turns: int) -> dict[str, list[Result]]:
    """What each contender returns in each turn.

    Every second turn is in the opposite order, because the first contender may warm up the machine for the next.
    """
    results: dict[str, list[Result]] = {name: [] for name in contenders}
    for turn in range(num_turns):
        for name in list(contenders)[:: -1 if turn % 2 else 1]:
            results[name].append(contenders[name]())
    return results


def medians(turns: Iterable[Mapping[str, float]], names: Iterable[str]) -> dict[str, float]:
    """The median of each of these figures over the turns."""
    turns = list(turns)
    return {name: statistics.median(turn[name] for turn in turns) for name in names}


def ratio(numerators: Iterable[float], denominators: Iterable[float]) -> Ratio:
    """The ratios of two contenders' figures, turn by turn."""
    ratios = [one / other for one, other in zip(numerators, denominators, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def line_up(world: World) -> None:
    """Waits for all ranks in a busy loop. `World.barrier` sleeps while it waits: some ranks would start late."""
    if world.comm is not None:
        world.comm.Barrier()


def alone(output_file: str | None, measure: Callable[[World], Any], program: str = "bert-bench") -> None:
    """Calls `measure(world)` in a process without MPI, which may start others, and writes the figures."""
    with World(program=program) as world:
        if launched_size()[1] > 1:
            raise InputError("this benchmark starts its own processes: run it without mpirun or srun")
        write(output_file, measure(world))


def write(output_file: str | None, figures: Any) -> None:
    if output_file:
        write_json(Path(output_file).expanduser(), figures, indent=1)


def last_error(done: "subprocess.CompletedProcess[str]") -> str:
    """The error of a failed program: its last line that contains "error", else its last line."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [f"exit status {done.returncode}"])[-1]
