"""The task that contributing.md adds: it learns how many animals a text names, and gets all that
our tasks have."""

import sys

import numpy as np
import pytest
import tensorflow as tf
from harness.classifier_runs import model_flags, write_data
from harness.jobs import shell
from harness.mpi import ROOT
from harness.program_runs import metrics_in

import ringbert
from ringbase.files import read_json

sys.path.insert(0, str(ROOT / "examples"))
from own_task import Reviews, Stars

SCRIPT = ROOT / "examples/own_task.py"
SEEDS, NEW = (1, 2, 3), ("saw saw saw saw", "cat cat saw saw")


def write_reviews(path, number):
    stars = np.random.default_rng(number).integers(0, 3, number)
    lines = [" ".join(["cat"] * count + ["saw"] * (4 - count)) for count in stars]
    path.write_text("\n".join(["text,stars", *map("{},{}".format, lines, stars)]))
    return str(path)


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
def test_a_task_of_ones_own_has_all_that_ours_have(tmp_path):
    given = model_flags(write_data(tmp_path / "model"))
    model = dict(flag.removeprefix("--").split("=") for flag in given)
    (tmp_path / "new.csv").write_text("\n".join(["text", *NEW]))
    job = ringbert.Script(
        SCRIPT,
        **model,
        output_dir=str(tmp_path / "stars"),
        do_train=True,
        do_eval=True,
        do_predict=True,
        train_file=write_reviews(tmp_path / "train.csv", 512),
        dev_file=write_reviews(tmp_path / "dev.csv", 40),
        predict_file=str(tmp_path / "new.csv"),
        learning_rate=1e-3,
        num_train_epochs=12,
        early_stopping_patience=1,
        seeds=",".join(map(str, SEEDS)),
    )
    result = ringbert.launch(job, ranks=2, progress=False)

    folders = [tmp_path / "stars" / f"seed-{seed}" for seed in SEEDS]
    scores = []
    for folder in folders:
        lines = metrics_in(folder)
        measured = [line["eval_minus_error"] for line in lines if "eval_minus_error" in line]
        assert len(measured) > 2
        scores.append(read_json(folder / "result.json")["scores"]["eval_minus_error"])
        # the model is the best one, and not the last where the training stopped early
        assert scores[-1] == pytest.approx(max(measured), rel=1e-6)
        assert "report.html" in {path.name for path in folder.iterdir()}
        none, two = map(float, (folder / "stars.txt").read_text().split())
        assert abs(none) < 0.5
        assert abs(two - 2) < 0.5
    assert result.scores["eval_minus_error"] == pytest.approx(np.mean(scores))
    last_steps = [metrics_in(folder)[-1]["step"] for folder in folders]
    planned = read_json(folders[0] / "run.json")["plan"]["steps"]
    assert min(last_steps) < planned

    predicted = ringbert.TaskPredictor(folders[0], Stars)(Reviews(NEW))
    written = [f"{value:.2f}" for value in predicted[:, 0]]
    assert written == (folders[0] / "stars.txt").read_text().split()
    ringbert.export(folders[0], tmp_path / "exported", Stars)
    exported = tf.saved_model.load(str(tmp_path / "exported")).signatures["ids"]
    assert list(exported.structured_outputs) == ["stars"]

    (tmp_path / "train.csv").write_text("text,stars\nsaw,1\ncat,\n")
    command = sys.executable, SCRIPT, *given, "--do_train", f"--train_file={tmp_path}/train.csv"
    done = shell(*command, "--output_dir", tmp_path / "none", status=1)
    assert "train.csv: line 3: stars" in done.stderr.splitlines()[-1]
