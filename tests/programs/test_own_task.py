"""The task that contributing.md adds, on two ranks: it learns how many animals a text names."""

import sys

import numpy as np
import pytest
from harness.classifier_runs import model_flags, write_data
from harness.jobs import launch, shell
from harness.mpi import ROOT


@pytest.mark.slow
def test_a_task_of_ones_own(tmp_path):
    stars = np.random.default_rng(0).integers(0, 3, 512)
    lines = [" ".join(["cat"] * count + ["saw"] * (4 - count)) for count in stars]
    (tmp_path / "train.csv").write_text(
        "\n".join(["text,stars", *map("{},{}".format, lines, stars)])
    )
    (tmp_path / "new.csv").write_text("\n".join(["text", "saw saw saw saw", "cat cat saw saw"]))
    files = (
        "--do_train",
        f"--train_file={tmp_path}/train.csv",
        f"--predict_file={tmp_path}/new.csv",
    )
    flags = (
        *model_flags(write_data(tmp_path / "model")),
        *files,
        "--learning_rate=1e-3",
        "--num_train_epochs=3",
    )
    command = (sys.executable, ROOT / "examples/own_task.py", *flags)
    shell(
        *launch(2, *command, f"--output_dir={tmp_path}/stars"),
        RINGBERT_CACHE=str(tmp_path / "cache"),
    )
    none, two = map(float, (tmp_path / "stars/stars.txt").read_text().split())
    assert abs(none) < 0.5
    assert abs(two - 2) < 0.5
    (tmp_path / "train.csv").write_text("text,stars\nsaw,1\ncat,\n")
    done = shell(*command, "--output_dir", tmp_path / "none", status=1)
    assert done.stderr.splitlines()[-1].endswith("train.csv: row 2 has no stars")
