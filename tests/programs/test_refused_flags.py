"""Flags that are missing or do not fit each other: one line that names them, and exit status 2."""

import importlib

import pytest
from harness.program_runs import refusal

SQUAD_TRAINS = ("--output_dir=x", "--do_train", "--train_file=t")
SQUAD_PREDICTS = ("--output_dir=x", "--do_predict", "--predict_file=p")
EVALUATES = ("--output_dir=x", "--do_eval", "--dev_file=f")
MRPC = ("--output_dir=x", "--do_eval", "--task_name=MRPC")
PRETRAINS = ("--output_dir=x", "--input_file=x.arrow", "--do_train")
FEATURES = ("--input_file=i", "--output_file=o")
CASES = {
    "squad": [
        (["--output_dir=x"], ["--do_train", "--do_predict"]),
        (["--output_dir=x", "--do_train"], ["--do_train", "--train_file"]),
        (["--output_dir=x", "--do_predict"], ["--do_predict", "--predict_file"]),
        ([*SQUAD_TRAINS, "--max_seq_length=60"], ["--max_seq_length", "--max_query_length"]),
        ([*SQUAD_PREDICTS, "--metric=squad_v2"], ["--metric", "--version_2_with_negative"]),
    ],
    "classifier": [
        (["--output_dir=x"], ["--do_train"]),
        (["--do_train"], ["--output_dir"]),
        (["--output_dir=x", "--do_train"], ["--do_train", "--train_file"]),
        (["--output_dir=x", "--do_train", "--train_file=t", "--eval_steps=5"], ["--dev_file"]),
        (["--output_dir=x", "--do_predict"], ["--do_predict", "--predict_file"]),
        (MRPC, ["--task_name", "--data_dir"]),
        ([*MRPC, "--data_dir=d", "--dev_file=f"], ["--task_name"]),
        ([*MRPC, "--data_dir=d", "--regression"], ["--regression"]),
        ([*EVALUATES, "--from_hub"], ["--from_hub", "--task_name"]),
        ([*EVALUATES, "--seeds=1,2,01"], ["--seeds", "1,2,01"]),
    ],
    "pretraining": [
        (PRETRAINS[:2], ["--do_train"]),
        ([*PRETRAINS, "--num_train_steps=5", "--num_train_epochs=1"], ["--num_train_steps", "--num_train_epochs"]),
        ([*PRETRAINS, "--init_moments"], ["--init_moments", "--init_checkpoint"]),
    ],
    "features": [
        (FEATURES[:1], ["--output_file"]),
        (FEATURES, ["--init_checkpoint", "--model"]),
        ([*FEATURES, "--model=m", "--layers=last"], ["--layers", "last"]),
    ],
}


@pytest.mark.parametrize(
    ("program", "argv", "named"), [(program, *case) for program, cases in CASES.items() for case in cases]
)
def test_flags_that_do_not_fit_are_one_line(program, argv, named, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = refusal(
        capsys,
        f"bert-{program}",
        lambda: importlib.import_module(f"tasks.{program}.__main__").main(argv),
        *named,
        status=2,
    )
    assert len(line) < 300
    assert not list(tmp_path.iterdir())
