"""Measures contenders in turn, and computes medians and ratios over the turns.

The speed of a machine changes within a minute. So the contenders run one after the other in each of several turns,
and a ratio is the median of the ratios within each turn, not the ratio of two medians.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

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
