"""The examples on two ranks: what they print is what their README says."""

import re
import runpy
import sys

import pytest
from harness.mpi import ROOT

pytestmark = pytest.mark.filterwarnings("ignore")  # they are scripts of Keras 3
EXAMPLES = ROOT / "examples"


@pytest.fixture
def printed(hvd, monkeypatch, capsys):
    """Runs an example; what rank 0 prints, nothing on the others."""

    def run(name: str, *arguments: str) -> str:
        import keras

        monkeypatch.setattr(sys, "argv", [name, *arguments])
        keras.backend.clear_session()
        keras.utils.set_random_seed(hvd.rank())  # the ranks start from other weights
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        out = capsys.readouterr().out
        assert bool(out) == (hvd.rank() == 0)
        return out

    return run


def share(pattern: str, text: str) -> float:
    """The one percentage in a text that stands where the pattern has it, as a fraction."""
    (percent,) = re.findall(pattern, text)
    return float(percent) / 100


def test_the_examples_are_short_and_listed(num_ranks):
    listed = re.findall(r"^\| `(\w+\.py)` \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert all(len((EXAMPLES / name).read_text().splitlines()) < 80 for name in listed)


def test_lenet_by_a_loop(printed):
    if text := printed("lenet_loop.py"):
        losses = [float(loss) for loss in re.findall(r"step \d+ of 179: loss ([\d.]+)", text)]
        assert losses[0] > 2  # ten digits, nothing learned: ln(10) = 2.3
        assert max(losses[-3:]) < 0.5
        assert share(r"2 rank\(s\): ([\d.]+)% of 360 digits", text) > 0.9


def test_lenet_by_fit(printed, folder):
    if text := printed("lenet_fit.py", f"--model_file={folder}/digits.keras"):
        assert len(re.findall(r"^22/22 - ", text, re.MULTILINE)) == 8  # epochs; 1437 / 32 / 2 steps
        assert "Epoch 3: finished gradual learning rate warmup to 0.02." in text
        losses = [float(loss) for loss in re.findall(r" - loss: ([\d.]+) - ", text)]
        assert losses[-1] < 0.2 < 1 < losses[0]
        accuracy = share(r"digits\.keras: ([\d.]+)% of the test digits", text)
        best = max(map(float, re.findall(r"val_accuracy: ([\d.]+)", text)))
        assert accuracy == pytest.approx(best, abs=1e-4)


def test_lstm_reads_in_order(printed):
    if text := printed("lstm_text.py"):
        assert "Epoch 6/6" in text  # 12 of one rank
        praise = {sentence: float(p) for p, sentence in re.findall(r"([\d.]+) praise: (.*)", text)}
        assert praise["the film was very dull"] < 0.2
        assert praise["the film was not dull at all"] > 0.8


def test_synthetic_images(printed):
    if text := printed("resnet_synthetic.py", "--model=MobileNetV2", "--batch_size=2", "--num_iters=2"):
        rates = [float(rate) for rate in re.findall(r"^Iter #\d: ([\d.]+) img/sec per rank$", text, re.MULTILINE)]
        total = float(re.search(r"^Total img/sec on 2 rank\(s\): (.*) \+-", text, re.MULTILINE)[1])
        assert total == pytest.approx(sum(rates), abs=0.3)  # figures are rounded to one digit after the point


def test_metrics_over_unequal_shares_are_those_over_all_digits(printed):
    if text := printed("metrics_by_rank.py"):
        rows = re.findall(r"loss ([\d.]+), accuracy ([\d.]+)", text)
        first, second, mean_of_means, whole = [tuple(map(float, row)) for row in rows]
        assert whole[1] > 0.85
        assert whole == pytest.approx([(a + 2 * b) / 3 for a, b in zip(first, second, strict=True)], abs=2e-5)
        assert abs(mean_of_means[0] - whole[0]) > 1e-3
