"""How bert-classifier trains: class weights, seeds, the best model, early stopping, and on after a kill."""

import json
import math
import signal
import statistics
import subprocess
import time
from pathlib import Path

import pytest
from classifier_runs import (
    COLUMNS,
    LEARN,
    TRAIN,
    classify,
    model_flags,
    own_files,
    scores_in,
    table_in,
    write_data,
    write_rows,
)
from program_runs import ROOT, command, environment, metrics_in, shell, weights_in
from texts import KINDS

from distributed import train


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The files of `write_data`; the caches of this file's runs are new."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RINGBERT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield write_data(tmp_path_factory.mktemp("data"))


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same_bits(data, tmp_path):
    """SIGKILL after the second evaluation; the same command ends with the weights and history of a whole run."""
    flags = [
        *model_flags(data), *own_files(data), *LEARN, "--num_train_steps=100", "--eval_steps=10",
        "--load_best_model_at_end", "--keep_checkpoints=2",
    ]  # fmt: skip
    shell(command("tasks.classifier", *flags, f"--output_dir={tmp_path}/whole"))
    killed = tmp_path / "killed"
    arguments = command("tasks.classifier", *flags, f"--output_dir={killed}")
    job = subprocess.Popen(arguments, env=environment(), cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not (killed / "checkpoints" / f"rows-{32 * 20:012d}").exists():
            assert time.monotonic() < deadline
            assert job.poll() is None
            time.sleep(0.02)
    finally:
        job.send_signal(signal.SIGKILL)
        job.wait()
    assert not (killed / "result.json").exists()
    assert not (killed / "model").exists()
    printed = shell(arguments)
    assert f"checkpoint {killed}/checkpoints/rows-" in printed
    newest = f"checkpoints/rows-{32 * 100:012d}"
    for folder in ("model", newest):
        assert weights_in(killed / folder) == weights_in(tmp_path / "whole" / folder)
    states = [json.loads((run / newest / "state.json").read_text()) for run in (killed, tmp_path / "whole")]
    assert states[0] == states[1]
    assert len(states[0]["evaluations"]) == 10
    steps = [line["step"] for line in metrics_in(killed) if "loss" in line]
    assert steps == sorted(set(steps))


@pytest.mark.slow
def test_class_weights_reach_the_training(data, tmp_path):
    """With nearly all weight on one label that label alone is learnt: everything is called so."""
    flags = [*model_flags(data), *own_files(data), *LEARN, "--num_train_steps=20", "--do_predict"]
    classify(tmp_path, *flags, "--class_weights=animal=0.0001,colour=1000,tool=0.0001")
    assert {label for _, label in table_in(tmp_path / "predictions.tsv")[1:]} == {"colour"}


@pytest.mark.slow
def test_seeds_give_mean_and_deviation(data, tmp_path, capsys):
    flags = [*model_flags(data), *own_files(data), *LEARN, "--num_train_steps=10", "--do_eval"]
    classify(tmp_path / "both", *flags, "--seeds=1,2")
    assert capsys.readouterr().err.count("building the training step") == 1
    runs = [scores_in(tmp_path / "both" / f"seed-{seed}") for seed in (1, 2)]
    assert runs[0] != runs[1]
    result = json.loads((tmp_path / "both/result.json").read_text())
    assert result["seeds"] == {"1": runs[0], "2": runs[1]}
    written = dict(line.split(" = ") for line in (tmp_path / "both/eval_results.txt").read_text().splitlines())
    assert set(written) == set(runs[0])
    for name, text in written.items():
        values = [run[name] for run in runs]
        mean, deviation = statistics.mean(values), statistics.stdev(values)
        assert text == f"{mean:.4f} ± {deviation:.4f} (2 seeds)"
        assert deviation == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2))
        assert result["scores"][name] == pytest.approx(mean)
        assert result["standard_deviations"][name] == pytest.approx(deviation)
    alone = classify(tmp_path / "alone", *flags, "--seed=2")
    assert alone == runs[1]
    assert weights_in(tmp_path / "alone/model") == weights_in(tmp_path / "both/seed-2/model")


@pytest.mark.slow
def test_runs_of_a_sweep_are_those_of_separate_commands(data, tmp_path, capsys, monkeypatch):
    """Other rates, steps and batches: each weight has the same bits, and the step is built once for the short runs
    and once for the long one."""
    monkeypatch.setattr(train, "OPTIMIZED_FROM", 6)
    flags = [*model_flags(data), *own_files(data), *LEARN, "--do_eval"]
    runs = {
        "short": ["--num_train_steps=3", "--learning_rate=1e-3"],
        "pieces": ["--num_train_steps=3", "--gradient_accumulation_steps=2"],
        "long": ["--num_train_steps=6", "--global_batch_size=24", "--num_warmup_steps=2", "--seed=5"],
    }
    for name, own in runs.items():
        lines = [flag.removeprefix("--").replace("=", " = ") + "\n" for flag in own]
        (tmp_path / f"{name}.toml").write_text("".join(lines))
    sweep = ",".join(str(tmp_path / f"{name}.toml") for name in runs)
    classify(tmp_path / "all", *flags, f"--sweep={sweep}")
    assert capsys.readouterr().err.count("building the training step") == 2
    scores = {name: classify(tmp_path / "alone" / name, *flags, *own) for name, own in runs.items()}
    for name in runs:
        assert weights_in(tmp_path / "alone" / name / "model") == weights_in(tmp_path / "all" / name / "model")
    assert json.loads((tmp_path / "all/result.json").read_text())["runs"] == scores
    header, *rows = table_in(tmp_path / "all/eval_results.txt")
    assert header == ["run", *sorted(scores["short"])]
    assert rows == [[name, *(f"{scores[name][column]:.4f}" for column in header[1:])] for name in runs]


@pytest.mark.slow
def test_the_best_model_is_kept_and_training_stops(data, tmp_path, capsys):
    """Trained on wrong labels the dev score falls: the best evaluation is an early one, and training stops."""
    wrong = dict(zip(KINDS, (*KINDS[1:], KINDS[0]), strict=True))
    write_rows(tmp_path / "train.csv", COLUMNS, [(e.first, e.second, wrong[e.kind]) for e in TRAIN], ",")
    out = tmp_path / "out"
    flags = [
        *model_flags(data), *own_files(data), f"--train_file={tmp_path}/train.csv", *LEARN, "--num_train_steps=60",
        "--eval_steps=4", "--early_stopping_patience=3", "--keep_checkpoints=1", "--do_eval",
    ]  # fmt: skip
    scores = classify(out, *flags)
    measured = {line["step"]: line["eval_accuracy"] for line in metrics_in(out) if "eval_accuracy" in line}
    best = max(measured, key=lambda step: (measured[step], -step))
    last = max(measured)
    assert best + 3 * 4 == last < 60
    assert list(measured) == list(range(4, last + 1, 4))
    assert max(line["step"] for line in metrics_in(out)) == last  # no step was trained after it
    assert f"stopped after step {last}: eval_accuracy did not improve 3 times" in capsys.readouterr().err
    checkpoints = {int(path.name.removeprefix("rows-")) // 32: path for path in (out / "checkpoints").iterdir()}
    assert sorted(checkpoints) == [best, last]  # one is kept, and the best
    assert weights_in(out / "model") == weights_in(checkpoints[best])
    assert weights_in(out / "model") != weights_in(checkpoints[last])
    assert scores["eval_accuracy"] == measured[best] > measured[last]
    state = json.loads((checkpoints[last] / "state.json").read_text())
    assert state["evaluations"] == [[32 * step, value] for step, value in measured.items()]

    def files() -> dict[Path, bytes]:
        """All but those about the last command."""
        changing = ("result.json", "run.json")
        return {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name not in changing}

    before = files()
    assert classify(out, *flags) == scores  # the same command does not train on
    assert (
        classify(out, *model_flags(data), *own_files(data), "--do_eval") == scores
    )  # nor is the last model scored
    assert before == files()
