"""Measurements on small inputs: they run to their end and their figures add up."""

import json

import pytest
from harness.program_runs import command, shell
from harness.squad_files import make_entries, write_squad
from harness.texts import write_model

PHASES = ("launch", "imports", "ranks", "backend", "data", "model", "first_step", "second_step")


def test_sums_and_scaling(tmp_path):
    path = tmp_path / "figures"
    written = ("--repeat=1", f"--output_file={path}")
    shell(command("benchmarks.allreduce", "--megabytes=1,4", "--device=cpu", *written, ranks=2))
    assert all(seconds["ours_s"] > 0 for seconds in json.loads(path.read_text()).values())
    load = ("--model_size=tiny", "--batch_size=2", "--seq_length=32", "--num_warmup=0", "--num_steps=2")
    shell(command("benchmarks.scaling", *load, "--max_ranks=2", *written))
    first, second = list(json.loads(path.read_text())["layouts"].values())[:2]
    assert second["speedup"] == pytest.approx(second["examples_per_s"] / first["examples_per_s"])
    assert second["efficiency"] == pytest.approx(second["speedup"] / 2)


def test_the_phases_of_a_start_on_two_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGBERT_PHASES", f"{tmp_path}/phases")
    write_model(tmp_path, num_layers=1)
    write_squad(tmp_path / "train.json", make_entries(40, 1))
    files = {"vocab_file": "vocab.txt", "bert_config_file": "bert_config.json", "train_file": "train.json"}
    flags = [f"--{flag}={tmp_path}/{name}" for flag, name in files.items()] + ["--max_seq_length=40"]
    flags += ["--doc_stride=9", "--max_query_length=9", "--num_train_steps=4", f"--output_dir={tmp_path}/run"]
    shell(command("tasks.squad", "--do_train", *flags, ranks=2))
    lines = [json.loads(line) for line in (tmp_path / "phases").read_text().splitlines()]
    ends = [[line["time"] for line in lines if line["phase"] == phase] for phase in PHASES]
    assert {len(times) for times in ends} == {2}
    assert [max(times) for times in ends] == sorted(max(times) for times in ends)
