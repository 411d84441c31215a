"""What comparisons share: contenders measured in turn, ratios over the turns, and programs run
alone.

The speed of a machine changes within a minute. So the contenders run one after the other in each of
several turns, and a ratio is the median of the ratios within each turn, not the ratio of two
medians.
"""

import subprocess
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from distributed.launcher import launched_size
from distributed.world import World
from ringbase.errors import InputError
from ringbase.settings import Settings, setting
from tasks.bench.timing import write

Result = TypeVar("Result")


class TurnSettings(Settings):
    """How often a benchmark measures, and where it writes what it measured."""

    repeat: int = setting(
        3, "number of turns; medians over them are printed", "load", at_least=1, at_most=10_000
    )
    output_file: str | None = setting(None, "JSON file to write the figures to", "machine")


def in_turn(
    contenders: Mapping[str, Callable[[], Result]], num_turns: int
) -> dict[str, list[Result]]:
    """What each contender returns in each turn. Every second turn is in the opposite order, because
    the first contender may warm up the machine for the next."""
    results: dict[str, list[Result]] = {name: [] for name in contenders}
    for turn in range(num_turns):
        for name in list(contenders)[:: -1 if turn % 2 else 1]:
            results[name].append(contenders[name]())
    return results


def ratios(numerators: Iterable[float], denominators: Iterable[float]) -> list[float]:
    """The ratios of two contenders' figures, turn by turn, the lowest first."""
    return sorted(one / other for one, other in zip(numerators, denominators, strict=True))


def alone(output_file: str | None, measure: Callable[[World], Any], program: str) -> None:
    """Calls `measure(world)` in a process without MPI, which may start others, and writes the
    figures."""
    with World(program=program) as world:
        if launched_size()[1] > 1:
            raise InputError(
                "this benchmark starts its own processes: run it without mpirun or srun"
            )
        write(output_file, measure(world))


def last_error(done: "subprocess.CompletedProcess[str]") -> str:
    """The error of a failed program: its last line that contains "error", else its last line."""
    lines = done.stderr.split("\n") if done.stderr.strip() else [f"exit status {done.returncode}"]
    lines = [line for line in lines if line.strip()]
    return next((line for line in reversed(lines) if "error" in line.lower()), lines[-1])
