"""Measurements on small inputs: they run to their end and their figures add up."""

import json

import pytest
from harness.program_runs import command, shell

TINY = ("--model_size=tiny", "--batch_size=2", "--seq_length=32")
SHORT = ("--num_warmup=0", "--num_steps=2")


@pytest.fixture
def figures(tmp_path):
    """Runs a measurement; its figures."""

    def measured(module, *flags, ranks=1):
        shell(command(module, *flags, f"--output_file={tmp_path}/figures", ranks=ranks))
        return json.loads((tmp_path / "figures").read_text())

    return measured


def test_sums_and_scaling(figures):
    sums = figures("tasks.bench", "allreduce", "--megabytes=1,4", "--repeat=1", "--device=cpu", ranks=2)
    assert all(seconds["ours_s"] > 0 for seconds in sums.values())
    found = figures("tasks.bench", "scaling", *TINY, *SHORT, "--repeat=1", "--max_ranks=2")
    first, second = list(found["layouts"].values())[:2]
    assert second["speedup"] == pytest.approx(second["examples_per_s"] / first["examples_per_s"])
    assert second["efficiency"] == pytest.approx(second["speedup"] / 2)


def test_starts_on_one_and_two_ranks(figures):
    found = figures("tasks.bench", "start", *TINY, "--num_examples=64", "--repeat=1")
    for seconds in (found[ranks][cache] for ranks in "12" for cache in ("cold", "warm")):
        parts = [value for name, value in seconds.items() if not name.startswith("to_")]
        assert min(parts) > 0
        assert seconds["to_second_step_s"] == pytest.approx(sum(parts))
