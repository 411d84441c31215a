"""The values of a search, against Optuna's distributions and SciPy, and the shares of its slots."""

import itertools
import math

import pytest
from harness.refusals import refused

from distributed.cores import Slots
from ringbert.searching.command import of_words
from ringbert.searching.slots import shares_of
from ringbert.searching.space import Grid, Random, Space

TABLE = {
    "learning_rate": {"low": 1e-5, "high": 1e-3, "log": True},
    "hidden_dropout_prob": {"low": 0.0, "high": 0.5},
    "train_batch_size": [8, 16, 32],
    "num_train_epochs": {"low": 2, "high": 5},
    "seed": {"low": 1, "high": 9, "step": 2},
    "weight_decay": {"low": 0.0, "high": 0.3, "step": 0.1},
    "warmup_steps": {"low": 1, "high": 64, "log": True},
}


def test_random_values_are_those_that_optuna_allows():
    optuna = pytest.importorskip("optuna")
    distributions = optuna.distributions
    kinds = {
        "learning_rate": distributions.FloatDistribution(1e-5, 1e-3, log=True),
        "hidden_dropout_prob": distributions.FloatDistribution(0.0, 0.5),
        "train_batch_size": distributions.CategoricalDistribution([8, 16, 32]),
        "num_train_epochs": distributions.IntDistribution(2, 5),
        "seed": distributions.IntDistribution(1, 9, step=2),
        "weight_decay": distributions.FloatDistribution(0.0, 0.3, step=0.1),
        "warmup_steps": distributions.IntDistribution(1, 64, log=True),
    }
    random = Random(Space.of(TABLE), 1)
    drawn = [random.values(number) for number in range(300)]
    for values in drawn:
        params = values | {"weight_decay": round(values["weight_decay"], 9)}  # 3 * 0.1
        optuna.trial.create_trial(value=0.0, params=params, distributions=kinds)  # or raises
    assert {values["num_train_epochs"] for values in drawn} == {2, 3, 4, 5}
    assert {values["seed"] for values in drawn} == {1, 3, 5, 7, 9}


def test_random_values_are_spread_evenly():
    stats = pytest.importorskip("scipy").stats
    random = Random(Space.of(TABLE), 7)
    drawn = [random.values(number) for number in range(2000)]
    rates = [math.log(values["learning_rate"]) for values in drawn]
    spread = math.log(1e-3) - math.log(1e-5)
    # the seed is fixed: 0.01 is no matter of luck
    assert stats.kstest(rates, "uniform", (math.log(1e-5), spread)).pvalue > 0.01
    dropouts = [values["hidden_dropout_prob"] for values in drawn]
    assert stats.kstest(dropouts, "uniform", (0, 0.5)).pvalue > 0.01
    assert abs(stats.spearmanr(rates, dropouts).statistic) < 0.06
    sizes = [values["train_batch_size"] for values in drawn]
    assert stats.chisquare([sizes.count(size) for size in (8, 16, 32)]).pvalue > 0.01


def test_values_are_a_function_of_seed_and_number():
    less = {name: values for name, values in TABLE.items() if name != "seed"}
    one, other = Random(Space.of(TABLE), 3), Random(Space.of(less), 3)
    assert one.values(5)["learning_rate"] == other.values(5)["learning_rate"]
    assert one.values(5) == Random(Space.of(TABLE), 3).values(5)
    assert one.values(5) != one.values(6) != Random(Space.of(TABLE), 4).values(6)


def test_a_grid_is_the_product():
    table = {"a": [1, 2], "b": {"low": 0.0, "high": 0.3, "step": 0.1}, "c": [True, False]}
    grid = Grid(Space.of(table), 0)
    found = [tuple(grid.values(number).values()) for number in range(grid.most)]
    steps = [0.0, 0.1, 0.2, pytest.approx(0.3)]
    for expected in itertools.product([1, 2], steps, [True, False]):
        assert sum(expected == values for values in found) == 1
    assert len(found) == 16


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        (3, ["list"]),
        ([], ["list"]),
        ({"low": 1}, ["high"]),
        ({"low": 1, "high": 2, "steps": 1}, ["steps"]),
        ({"low": 2, "high": 1}, ["low must be below high"]),
        ({"low": "a", "high": 1}, ["numbers", "'a'"]),
        ({"low": 0, "high": 1, "log": True}, ["above 0"]),
        ({"low": 0, "high": 1, "step": 2}, ["step"]),
        ({"low": 1, "high": float("nan")}, ["nan"]),
    ],
)
def test_values_that_are_refused(values, parts):
    refused(lambda: Space.of({"rate": values}), "rate", *parts)


def test_a_range_without_steps_is_no_grid():
    refused(lambda: Grid(Space.of(TABLE), 0), "learning_rate", "--sampler random")
    many = {name: [*range(1000)] for name in "abc"}
    refused(lambda: Grid(Space.of(many), 0), "1,000,000,000")


def test_flags_of_the_command_with_several_values():
    """Numbers and choices; what holds a comma itself is one value."""
    words = "bert-classifier --output_dir out --learning_rate 2e-5,3e-5 --train-batch-size=16,32"
    words += " --optimizer adamw,lamb --do_eval --seeds=1,2 --train_file a,b.csv"
    words += " --do_train true,false"
    command, space = of_words(words.split())
    assert {name: values.all for name, values in space.items()} == {
        "learning_rate": (2e-5, 3e-5),
        "train_batch_size": (16, 32),
        "optimizer": ("adamw", "lamb"),
        "do_train": (True, False),
    }
    assert command.argv == ["--do_eval", "--seeds=1,2", "--train_file=a,b.csv"]
    assert command.folder.name == "out"
    values = {"learning_rate": 3e-5, "optimizer": "lamb"}
    assert command.shown(values, "t", ranks=2) == (
        "bert-launch -np 2 -- bert-classifier --do_eval --seeds=1,2"
        " --train_file=a,b.csv --learning_rate=3e-05 --optimizer=lamb --output_dir=t"
    )


@pytest.mark.parametrize(
    ("hosts", "num_slots", "ranks", "expected"),
    [
        ({}, 1, 1, [(None, None)]),
        ({}, 4, 4, [(None, None)]),
        ({}, 5, 2, [(None, "0-1/5"), (None, "2-3/5")]),
        ({"a": 2, "b": 1}, 3, 1, [("a:1", "0-0/2"), ("a:1", "1-1/2"), ("b:1", None)]),
        ({"a": 4, "b": 4}, 8, 4, [("a:4", None), ("b:4", None)]),
        ({"a": 2, "b": 2, "c": 2, "d": 2}, 8, 3, [("a:2,b:1", None), ("c:2,d:1", None)]),
    ],
)
def test_shares_of_slots(hosts, num_slots, ranks, expected):
    shares = shares_of(hosts, num_slots, ranks)
    assert [(share.hosts_flag, str(share.slots or "") or None) for share in shares] == expected


@pytest.mark.parametrize(("num_cores", "total"), [(8, 4), (7, 3), (2, 2), (2, 5), (64, 8)])
def test_slots_divide_the_cores(num_cores, total):
    cores = {*range(100, 100 + num_cores)}
    parts = [Slots(number, 1, total).of(cores) for number in range(total)]
    assert set().union(*parts) == cores
    assert all(parts)
    if num_cores >= total:
        assert sum(map(len, parts)) == num_cores
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert Slots(0, total, total).of(cores) == cores
