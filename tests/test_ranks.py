"""The number of ranks changes speed, never the result: one rank against 2, 3 and 4 at the same global batch.

tests/programs/ranks.py trains, and its numbers are compared here. What it asserts itself (skipped steps, clipping,
weights, broadcast, equal replicas) fails its launch, and so every test of that number of ranks.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from mpi import Done, alone, mpirun

FAULTS = ("row", "rate", "means")
TOYS = ("toy", "toy again", "toy, accumulation")
# Packed rows on several ranks are compared with unpacked ones on one.
TRAININGS_OF_ONE, TRAININGS_OF_SEVERAL = (*TOYS, "bert"), (*TOYS, "packed")
SLOW_TRAININGS = ("bert", "packed", "classifier", "pretraining", "compiled", "fastest")
RANKS = (2, *(pytest.param(num_ranks, marks=pytest.mark.slow) for num_ranks in (3, 4)))

# float64: 20 steps add a few roundings of 1e-16 each.
TOY_TOLERANCE = 1e-12
# float32: the sums of other shares round otherwise. Measured 6e-7 to 1.1e-6 of
# the movement, where 0.1 % of the rate is 1.0e-3; of the losses 9e-8.
MOVEMENT_TOLERANCE = 1e-5
LOSS_TOLERANCE = 1e-6

Results = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Done, Results]]:
    """Number of ranks, trainings -> what ranks.py printed and its arrays; each is launched once."""
    known: dict[tuple, tuple[Done, Results]] = {}

    def launch(num_ranks: int, trainings: tuple[str, ...] = ()) -> tuple[Done, Results]:
        trainings = trainings or (TRAININGS_OF_ONE if num_ranks == 1 else TRAININGS_OF_SEVERAL)
        if (num_ranks, trainings) not in known:
            folder: Path = tmp_path_factory.mktemp("ranks")
            run = alone if num_ranks == 1 else partial(mpirun, num_ranks)
            done = run("ranks.py", folder, *trainings, timeout=250)
            assert done.json()["size"] == num_ranks
            known[num_ranks, trainings] = done, dict(np.load(folder / f"ranks-{num_ranks}.npz"))
        return known[num_ranks, trainings]

    return launch


def assert_same_toy(one: Results, many: Results, name: str = "toy") -> None:
    np.testing.assert_allclose(many[f"{name}: last"], one["toy: last"], rtol=TOY_TOLERANCE, atol=TOY_TOLERANCE)
    np.testing.assert_allclose(many[f"{name}: losses"], one["toy: losses"], rtol=TOY_TOLERANCE)


def assert_same_bert(one: Results, many: Results, name: str = "bert", reference: str = "bert") -> None:
    first, last = one[f"{reference}: first"], one[f"{reference}: last"]
    np.testing.assert_array_equal(many[f"{name}: first"], first)
    movement = np.linalg.norm(last - first)
    assert movement > 0
    difference = np.linalg.norm(many[f"{name}: last"] - last) / movement
    assert difference <= MOVEMENT_TOLERANCE, f"weights differ by {difference:.1e} of the movement"
    np.testing.assert_allclose(many[f"{name}: losses"], one[f"{reference}: losses"], rtol=LOSS_TOLERANCE)


@pytest.mark.slow
def test_the_trainings_train(launched: Callable) -> None:
    _, one = launched(1)
    assert len(one["toy: losses"]) == len(one["bert: losses"]) == 20
    assert one["toy: losses"][-5:].mean() < one["toy: losses"][:5].mean()


@pytest.mark.parametrize("num_ranks", RANKS)
def test_float64_training_is_one_ranks(launched: Callable, num_ranks: int) -> None:
    assert_same_toy(launched(1)[1], launched(num_ranks)[1])


@pytest.mark.parametrize("num_ranks", [1, *RANKS])
def test_accumulation_is_one_large_batch(launched: Callable, num_ranks: int) -> None:
    assert_same_toy(launched(1)[1], launched(num_ranks)[1], "toy, accumulation")


@pytest.mark.parametrize("num_ranks", RANKS)
def test_packed_training_is_one_rank_s_unpacked(launched: Callable, num_ranks: int) -> None:
    assert_same_bert(launched(1)[1], launched(num_ranks)[1], "packed")


@pytest.mark.slow
def test_packed_training_of_one_rank_is_its_unpacked(launched: Callable) -> None:
    _, one = launched(1, SLOW_TRAININGS)
    assert_same_bert(one, one, "packed")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["bert", "classifier", "pretraining"])
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_training_is_one_ranks(launched: Callable, num_ranks: int, task: str) -> None:
    """The span loss; the label loss with class weights; masked words and next sentences, of which the ranks have
    unequal numbers."""
    one, several = launched(1, SLOW_TRAININGS)[1], launched(num_ranks, SLOW_TRAININGS)[1]
    assert_same_bert(one, several, task, task)


@pytest.mark.slow
@pytest.mark.parametrize("xla", ["compiled", "fastest"])
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_training_that_xla_compiles_is_one_rank_s_unpacked(launched: Callable, num_ranks: int, xla: str) -> None:
    done, arrays = launched(num_ranks, SLOW_TRAININGS)
    assert_same_bert(launched(1, SLOW_TRAININGS)[1], arrays, xla)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("--xla auto: ")]
    match = re.search(r"auto: (on|off); .* takes ([\d.e+]+) ms compiled .*, ([\d.e+]+) ms without$", line)
    assert match, line
    if match[2] != match[3]:  # as they are printed, to 3 digits
        assert (float(match[2]) < float(match[3])) == (match[1] == "on"), line


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_comparison_sees_faults(launched: Callable, fault: str) -> None:
    """One row lost on one rank in one step; the rate off by 0.1 %; the mean of per-rank means."""
    with pytest.raises(AssertionError):
        assert_same_bert(launched(1)[1], launched(2, FAULTS)[1], fault)


@pytest.mark.parametrize("num_ranks", [1, *RANKS])
def test_the_same_training_gives_the_same_bits(launched: Callable, num_ranks: int) -> None:
    _, arrays = launched(num_ranks)
    assert arrays["toy: last"].tobytes() == arrays["toy again: last"].tobytes()
    assert arrays["toy: losses"].tobytes() == arrays["toy again: losses"].tobytes()


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("num_ranks", [1, *RANKS])
def test_each_loss_term_is_averaged_over_its_own_weight(
    launched: Callable, num_ranks: int, accumulation: int
) -> None:
    _, arrays = launched(num_ranks)
    np.testing.assert_allclose(arrays[f"two terms, {accumulation}"], arrays["on paper"], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("num_ranks", [1, *RANKS])
def test_a_skipped_step_is_reported_once(launched: Callable, num_ranks: int) -> None:
    done, _ = launched(num_ranks)
    lines = [line for line in done.stderr.splitlines() if line.startswith("step 3: the gradient is not finite")]
    # Once in the training with one such step, once in the one in which all are.
    assert len(lines) == 2, done.stderr
