"""Turns, medians and ratios of the benchmarks."""

import itertools
import time

import pytest

from tasks.bench.timing import in_turn, medians, ratio, seconds_of


def test_contenders_alternate_and_warm_up():
    calls: list[str] = []
    counters = {name: itertools.count() for name in "ab"}

    def contender(name):
        calls.append(name)
        return next(counters[name])

    results = in_turn({name: lambda name=name: contender(name) for name in "ab"}, num_turns=2, num_warmup=1)
    assert "".join(calls) == "abbaab"
    assert results == {"a": [1, 2], "b": [1, 2]}


def test_a_ratio_is_that_of_turns_not_of_medians():
    """The machine is three times as slow in the second turn; one contender always takes twice as long."""
    assert ratio([2.0, 6.0, 2.0], [1.0, 3.0, 1.0]) == (2.0, 2.0, 2.0)
    assert ratio([1.0, 9.0, 4.0], [1.0, 3.0, 2.0]) == (2.0, 1.0, 3.0)
    assert ratio([1.0, 10.0, 8.0], [2.0, 2.0, 8.0]).median == 1.0  # the medians' ratio is 4
    with pytest.raises(ValueError, match="shorter"):
        ratio([1.0, 2.0], [1.0])


def test_medians_of_some_figures():
    turns = [{"x": 1.0, "y": 0.0, "name": "one"}, {"x": 5.0, "y": 2.0}, {"x": 2.0, "y": 1.0}]
    assert medians(turns, ("x", "y")) == {"x": 2.0, "y": 1.0}


def test_seconds_are_those_of_the_clock():
    assert 0.05 <= seconds_of(lambda: time.sleep(0.05)) < 1
