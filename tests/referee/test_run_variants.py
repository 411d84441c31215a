"""A run computes the same whatever computes its steps: XLA, micro-batches, recomputed layers, fewer
bits."""

import keras
import numpy as np
import pytest
from harness import classifier_runs
from harness.classifier_runs import LEARN, classify, model_flags, own_files, write_rows
from harness.program_runs import metrics_in

from tasks.runs.execute.job import set_precision

pytestmark = pytest.mark.slow

STEPS = 8


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Examples of similar lengths, so that XLA compiles for one shape."""
    folder = classifier_runs.write_data(tmp_path_factory.mktemp("data"))
    rows = [
        example
        for example in classifier_runs.TRAIN
        if 6 <= len(f"{example.first} {example.second}".split()) <= 13
    ]
    write_rows(folder / "train.csv", classifier_runs.COLUMNS, rows, ",")
    return folder


@pytest.fixture(scope="module")
def base(data, tmp_path_factory):
    return trained(data, tmp_path_factory.mktemp("base"))


def trained(data, folder, *flags):
    """Loss of each step, and the norm of its gradient."""
    own = [*model_flags(data), *own_files(data), *LEARN, "--log_steps=1"]
    own += ["--max_seq_length=16", "--global_batch_size=6", f"--num_train_steps={STEPS}"]
    policy = keras.config.dtype_policy()
    precision = [flag for flag in flags if flag.startswith("--precision=")]
    set_precision(precision[0].removeprefix("--precision=") if precision else "fp32")
    try:
        classify(folder, *own, *flags)
    finally:
        keras.config.set_dtype_policy(policy)
    lines = [line for line in metrics_in(folder) if "gradient_norm" in line]
    return [[line[name] for line in lines] for name in ("loss", "gradient_norm")]


@pytest.mark.parametrize(
    ("flags", "tolerance"),
    [  # float32 sums in other orders, over some steps; bfloat16 and float16 round to 2^-9 and 2^-12
        ("--recompute --gradient_accumulation_steps=3", 1e-4),
        ("--xla=on --gradient_accumulation_steps=2", 1e-4),
        ("--precision=bf16", 0.05),
        ("--precision=fp16", 0.01),
    ],
)
def test_a_variant_takes_the_steps_of_the_plain_run(flags, tolerance, data, base, tmp_path):
    numbers = trained(data, tmp_path, *flags.split())
    assert len(base[0]) == STEPS
    np.testing.assert_allclose(numbers, base, rtol=tolerance)
    if "--precision" in flags:
        assert not np.allclose(numbers, base, rtol=1e-4)  # it did round
