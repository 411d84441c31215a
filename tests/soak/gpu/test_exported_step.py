"""The training step that gpu_compile exports trains through JAX, which is what a GPU machine
without TensorFlow runs; here on the CPU."""

import json
import math
import re
import sys

import pytest
from harness.jobs import install, shell

ROWS, LENGTH = 2, 64


@pytest.mark.timeout(1800)
def test_jax_trains_the_exported_step(tmp_path):
    install("jax", into=tmp_path / "jax")
    shape = ("--size=tiny", f"--batch_size={ROWS}", f"--seq_length={LENGTH}", "--precision=fp32")
    exported = ("benchmarks.gpu_compile", *shape, f"--output_file={tmp_path}/step")
    shell(sys.executable, "-m", *exported)
    run = (sys.executable, "benchmarks/jax_step.py", tmp_path / "step.mlir", "--device=cpu")

    compared = shell(*run, "--within=1e-6", PYTHONPATH=str(tmp_path / "jax")).stdout
    numbers = re.search(r"losses and gradient norms (\[\[.*?\]\])", compared)
    (first, norm), (second, _) = json.loads(numbers[1])
    assert first == pytest.approx(math.log(LENGTH), rel=0.02)  # chance: every token as likely
    assert norm > 1
    assert second < first

    # Weights and moments are written back: a model learns its one batch by heart.
    printed = shell(*run, PYTHONPATH=str(tmp_path / "jax")).stdout
    losses = [float(loss) for loss in re.findall(r"examples/sec: [\d.]+, loss ([\d.]+)", printed)]
    assert len(losses) == 3
    assert losses[-1] < 0.1 * first
