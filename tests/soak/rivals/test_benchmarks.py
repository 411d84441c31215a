"""Measurements on small inputs: they run to their end and their figures add up."""

import json

import pytest
from harness.jobs import shell
from harness.program_runs import command


def test_sums_and_scaling(tmp_path):
    path = tmp_path / "figures"
    written = ("--repeat=1", f"--output_file={path}")
    shell(*command("benchmarks.allreduce", "--megabytes=1,4", "--device=cpu", *written, ranks=2))
    assert all(seconds["ours_s"] > 0 for seconds in json.loads(path.read_text()).values())
    load = (
        "--model_size=tiny",
        "--batch_size=2",
        "--seq_length=32",
        "--num_warmup=0",
        "--num_steps=2",
    )
    shell(*command("benchmarks.scaling", *load, "--max_ranks=2", *written))
    first, second = list(json.loads(path.read_text())["layouts"].values())[:2]
    assert second["speedup"] == pytest.approx(second["examples_per_s"] / first["examples_per_s"])
    assert second["efficiency"] == pytest.approx(second["speedup"] / 2)
