"""Examples on two ranks, with fewer epochs; tests/soak/install runs them all as their README says."""

import re
import runpy
import sys

import keras
import pytest
from harness.mpi import ROOT

pytestmark = pytest.mark.filterwarnings("ignore")  # they are scripts of Keras 3


@pytest.fixture
def numbers_of(hvd, monkeypatch, capsys, tmp_path):
    """Runs an example, and returns the numbers in what rank 0 prints, by a pattern; none on the others."""

    def run(pattern: str, name: str, *arguments: str) -> list[list[float]]:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        monkeypatch.chdir(tmp_path)
        keras.backend.clear_session()
        keras.utils.set_random_seed(hvd.rank())  # the ranks start from other weights
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        out = capsys.readouterr().out
        assert bool(out) == (hvd.rank() == 0)
        return [[float(number) for number in match.groups()] for match in re.finditer(pattern, out)]

    return run


@pytest.mark.parametrize("name", ["lenet_loop.py", "lenet_fit.py"])
def test_lenet_learns_digits(name, numbers_of, hvd):
    accuracies = numbers_of(r"([\d.]+)% of (?:360|the test) digits", name, "--epochs=4")
    assert [accuracy > 60 for (accuracy,) in accuracies] == [True] * (hvd.rank() == 0)


def test_metrics_over_unequal_shares_are_those_over_all_digits(numbers_of):
    if rows := numbers_of(r"loss ([\d.]+), accuracy ([\d.]+)", "metrics_by_rank.py", "--epochs=3"):
        first, second, mean_of_means, whole = rows
        assert whole[1] > 0.7
        assert whole == pytest.approx([(a + 2 * b) / 3 for a, b in zip(first, second, strict=True)], abs=2e-5)
        assert abs(mean_of_means[0] - whole[0]) > 1e-3
