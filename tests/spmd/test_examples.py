"""Examples on two ranks, with fewer epochs; tests/soak/install runs them all as their README says."""

import re
import runpy
import sys

import pytest
from harness.mpi import ROOT

pytestmark = pytest.mark.filterwarnings("ignore")  # they are scripts of Keras 3


@pytest.fixture
def printed(hvd, monkeypatch, capsys):
    """Runs an example; what rank 0 prints, nothing on the others."""

    def run(name: str, *arguments: str) -> str:
        import keras

        monkeypatch.setattr(sys, "argv", [name, *arguments])
        keras.backend.clear_session()
        keras.utils.set_random_seed(hvd.rank())  # the ranks start from other weights
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        out = capsys.readouterr().out
        assert bool(out) == (hvd.rank() == 0)
        return out

    return run


def test_lenet_by_a_loop(printed):
    if text := printed("lenet_loop.py", "--epochs=3"):
        losses = [float(loss) for loss in re.findall(r"step \d+ of 67: loss ([\d.]+)", text)]
        assert losses[0] > 2  # ten digits, nothing learned: ln(10) = 2.3
        assert max(losses[-3:]) < 1
        assert float(re.search(r"2 rank\(s\): ([\d.]+)% of 360 digits", text)[1]) > 70


def test_lenet_by_fit(printed, tmp_path):
    if text := printed("lenet_fit.py", "--epochs=4", f"--model_file={tmp_path}/digits.keras"):
        assert len(re.findall(r"^22/22 - ", text, re.MULTILINE)) == 4  # epochs; 1437 / 32 / 2 steps
        accuracy = float(re.search(r"digits\.keras: ([\d.]+)% of the test digits", text)[1])
        best = max(map(float, re.findall(r"val_accuracy: ([\d.]+)", text)))
        assert accuracy / 100 == pytest.approx(best, abs=1e-4)
        assert accuracy > 60


def test_metrics_over_unequal_shares_are_those_over_all_digits(printed):
    if text := printed("metrics_by_rank.py", "--epochs=3"):
        rows = re.findall(r"loss ([\d.]+), accuracy ([\d.]+)", text)
        first, second, mean_of_means, whole = [tuple(map(float, row)) for row in rows]
        assert whole[1] > 0.7
        assert whole == pytest.approx([(a + 2 * b) / 3 for a, b in zip(first, second, strict=True)], abs=2e-5)
        assert abs(mean_of_means[0] - whole[0]) > 1e-3
