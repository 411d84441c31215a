"""The examples, alone and on two ranks."""

import json
import re
import subprocess
import sys

import pytest
from mpi import ENVIRONMENT, ROOT, Done, alone, mpirun

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
WRAPPER = "example.py"  # tells whether the ranks' weights are the same
LOSS_OF_EPOCH = re.compile(r" - loss: ([\d.]+) - ")
NUMBERS = re.compile(r"loss ([\d.]+), accuracy ([\d.]+)")


def on_two_ranks(name: str, *args: object) -> str:
    """What an example prints on two ranks, which must end with the same weights."""
    done = mpirun(2, WRAPPER, ROOT / "examples" / name, *args, timeout=240)
    assert done.json() == {"ranks": 2, "different weights": 1}
    return done.stdout


def printed(done: Done) -> str:
    assert done.status == 0, done
    return done.stdout


def share(pattern: str, text: str) -> float:
    """The one percentage in a text that stands where the pattern has it, as a fraction."""
    (percent,) = re.findall(pattern, text)
    return float(percent) / 100


def test_the_examples_are_short_and_listed():
    listed = re.findall(r"^\| `(\w+\.py)` \|", (ROOT / "examples/README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == [path.name for path in EXAMPLES]
    assert len(EXAMPLES) == 5
    for path in EXAMPLES:
        assert len(path.read_text().splitlines()) < 80, path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args", "last"),
    [
        ("lenet_loop.py", ("--epochs=1",), r"1 rank\(s\): [\d.]+% of 360 digits are right"),
        ("lstm_text.py", ("--epochs=1", "--sentences=64"), r"0\.\d\d praise: i found it never funny"),
        (
            "resnet_synthetic.py",
            ("--model=MobileNetV2", "--batch_size=2", "--num_iters=2", "--num_batches_per_iter=1"),
            r"Total img/sec on 1 rank\(s\): [\d.]+ \+-[\d.]+",
        ),
    ],
)
def test_an_example_needs_no_launcher(name, args, last):
    lines = printed(alone(ROOT / "examples" / name, *args)).splitlines()
    assert re.fullmatch(last, lines[-1])


@pytest.mark.slow
def test_lenet_by_a_loop():
    text = on_two_ranks("lenet_loop.py")
    steps = re.findall(r"step (\d+) of (\d+): loss ([\d.]+)", text)
    assert {total for _, total, _ in steps} == {str(8 * 1437 // 32 // 2)}
    losses = [float(loss) for *_, loss in steps]
    assert losses[0] > 2  # ten digits, nothing learned: ln(10) = 2.3
    assert max(losses[-3:]) < 0.5
    assert share(r"2 rank\(s\): ([\d.]+)% of 360 digits", text) > 0.9


@pytest.mark.slow
def test_lenet_by_fit(tmp_path):
    path = tmp_path / "digits.keras"
    text = on_two_ranks("lenet_fit.py", f"--model_file={path}")
    assert [int(epoch) for epoch in re.findall(r"^Epoch (\d+)/8$", text, re.MULTILINE)] == [*range(1, 9)]
    assert len(re.findall(r"^22/22 - ", text, re.MULTILINE)) == 8  # rank 1 is silent; 1437 / 32 / 2 steps
    assert "Epoch 3: finished gradual learning rate warmup to 0.02." in text
    assert re.findall(r" - lr: ([\d.]+)", text) == ["0.0133", "0.0167", *["0.0200"] * 6]
    losses = [float(loss) for loss in LOSS_OF_EPOCH.findall(text)]
    assert losses[-1] < 0.2 < 1 < losses[0]
    accuracy = share(r"digits\.keras: ([\d.]+)% of the test digits", text)
    assert accuracy == pytest.approx(max(map(float, re.findall(r"val_accuracy: ([\d.]+)", text))), abs=1e-4)
    assert accuracy > 0.9

    # A process that knows nothing of hvd goes on with the model.
    program = f"""
import json, sys, keras
model = keras.models.load_model({str(path)!r})
assert not any(name.startswith("ringbert") for name in sys.modules)
steps = int(model.optimizer.iterations)
model.fit(keras.ops.zeros([4, 32, 32, 1]), keras.ops.zeros([4]), verbose=0)
print(json.dumps([type(model.optimizer) is keras.optimizers.SGD, steps, int(model.optimizer.iterations)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env={**ENVIRONMENT, "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    is_plain, saved, after = json.loads(done.stdout)
    assert is_plain
    assert saved % 22 == 0
    assert after == saved + 1


@pytest.mark.slow
def test_lstm_reads_in_order():
    text = on_two_ranks("lstm_text.py")
    assert "Epoch 6/6" in text  # 12 of one rank
    assert "Epoch 7" not in text
    losses = [float(loss) for loss in LOSS_OF_EPOCH.findall(text)]
    assert losses[-1] < 0.2 < 0.6 < losses[0]
    probabilities = {sentence: float(p) for p, sentence in re.findall(r"([\d.]+) praise: (.*)", text)}
    assert probabilities["the film was very dull"] < 0.2
    assert probabilities["the film was not dull at all"] > 0.8
    assert probabilities["i found it never funny"] < 0.2


@pytest.mark.slow
def test_resnet_prints_images_per_second():
    sizes = ["--batch_size=2", "--image_size=32", "--num_iters=2", "--num_batches_per_iter=1"]
    done = mpirun(2, ROOT / "examples/resnet_synthetic.py", *sizes, "--num_warmup_batches=1", timeout=240)
    text = printed(done)
    assert (
        "Model: ResNet101, 44.7 million parameters\nBatch size: 2 images of 32 x 32\nNumber of ranks: 2\n" in text
    )
    rates = [float(rate) for rate in re.findall(r"^Iter #\d: ([\d.]+) img/sec per rank$", text, re.MULTILINE)]
    assert len(rates) == 2
    of_rank, deviation = map(
        float, re.search(r"^Img/sec per rank: ([\d.]+) \+-([\d.]+)$", text, re.MULTILINE).groups()
    )
    total, its = map(
        float, re.search(r"^Total img/sec on 2 rank\(s\): (.*) \+-(.*)$", text, re.MULTILINE).groups()
    )
    rounding = 0.16  # each of up to three figures is rounded to one digit after the point
    assert of_rank == pytest.approx(sum(rates) / 2, abs=rounding)
    assert deviation == pytest.approx(1.96 * abs(rates[0] - rates[1]) / 2, abs=rounding)
    assert total == pytest.approx(2 * of_rank, abs=rounding)
    assert its == pytest.approx(2 * deviation, abs=rounding)


@pytest.mark.slow
def test_metrics_over_unequal_shares_are_those_of_one_rank():
    name = ROOT / "examples/metrics_by_rank.py"
    one, two = (NUMBERS.findall(printed(done)) for done in (alone(name), mpirun(2, name)))
    numbers = [[tuple(map(float, pair)) for pair in pairs] for pairs in (one, two)]
    (rank_0, *_, whole_of_one), (first, second, mean_of_means, whole) = numbers
    assert rank_0 == whole_of_one
    assert whole_of_one[1] > 0.85
    # float32, 230 steps of Adam; accuracy is a number of digits of 360.
    assert whole == pytest.approx(whole_of_one, abs=2e-3)
    assert whole == pytest.approx([(a + 2 * b) / 3 for a, b in zip(first, second, strict=True)], abs=2e-5)
    assert mean_of_means == pytest.approx([(a + b) / 2 for a, b in zip(first, second, strict=True)], abs=2e-5)
    assert abs(mean_of_means[0] - whole[0]) > 1e-3
