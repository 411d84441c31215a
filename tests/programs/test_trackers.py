"""`--report_to`; scripts/soak.sh install tries MLflow and Weights & Biases themselves."""

from functools import partial

import pytest
from harness.classifier_runs import classify, model_flags, own_files, write_data
from harness.program_runs import refusal


def test_none_leaves_event_files_out_and_a_library_that_is_missing_is_named(tmp_path, capsys):
    data = write_data(tmp_path / "data")
    flags = [*model_flags(data), *own_files(data), "--do_train", "--num_train_steps=2"]
    classify(tmp_path / "out", *flags, "--report_to=none")
    assert (tmp_path / "out/metrics.jsonl").is_file()
    assert not (tmp_path / "out/tensorboard").exists()
    capsys.readouterr()
    other = partial(classify, tmp_path / "other", *flags, "--report_to=tensorboard,mlflow")
    refusal(capsys, "bert-classifier", other, "--report_to mlflow", "pip install mlflow")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("value", ["comet", "none,mlflow", ""])
def test_other_trackers_are_refused(tmp_path, capsys, value):
    run = partial(classify, tmp_path, f"--report_to={value}", "--do_train", "--train_file=a.csv")
    refusal(capsys, "bert-classifier", run, "none or of tensorboard, mlflow, wandb", status=2)
