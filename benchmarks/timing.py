"""What benchmarks share: contenders measured in turn, medians and ratios over the turns, and programs run alone.

The speed of a machine changes within a minute. So the contenders run one after the other in each of several turns,
and a ratio is the median of the ratios within each turn, not the ratio of two medians.
"""

import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from distributed.launcher import launched_size
from distributed.world import World
from ringbase.errors import InputError
from ringbase.files import write_json

Result = TypeVar("Result")


def in_turn(contenders: Mapping[str, Callable[[], Result]], num_turns: int) -> dict[str, list[Result]]:
    """What each contender returns in each turn. Every second turn is in the opposite order, because the first
    contender may warm up the machine for the next."""
    results: dict[str, list[Result]] = {name: [] for name in contenders}
    for turn in range(num_turns):
        for name in list(contenders)[:: -1 if turn % 2 else 1]:
            results[name].append(contenders[name]())
    return results


def medians(turns: Sequence[Mapping[str, float]], names: Iterable[str]) -> dict[str, float]:
    """The median of each of these figures over the turns."""
    return {name: statistics.median(turn[name] for turn in turns) for name in names}


def ratios(numerators: Iterable[float], denominators: Iterable[float]) -> list[float]:
    """The ratios of two contenders' figures, turn by turn, the lowest first."""
    return sorted(one / other for one, other in zip(numerators, denominators, strict=True))


def alone(output_file: str | None, measure: Callable[[World], Any], program: str) -> None:
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
    lines = done.stderr.split("\n") if done.stderr.strip() else [f"exit status {done.returncode}"]
    lines = [line for line in lines if line.strip()]
    return next((line for line in reversed(lines) if "error" in line.lower()), lines[-1])
