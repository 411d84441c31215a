"""`--report_to mlflow,wandb`, with the real libraries and without a server."""

import json
import sys

import pytest
from harness.classifier_runs import model_flags, own_files, write_data
from harness.jobs import install, run, shell
from harness.mpi import ROOT
from harness.program_runs import command, metrics_in, without_newest_checkpoint

from ringbase.files import read_json

FOUND = """
import json, sys
import mlflow
client = mlflow.MlflowClient()
(experiment,) = mlflow.search_experiments(filter_string="name = 'ringbert'")
for each in client.search_runs([experiment.experiment_id]):
    losses = client.get_metric_history(each.info.run_id, "loss")
    files = [file.path for file in client.list_artifacts(each.info.run_id)]
    facts = each.info.status, each.data.params["learning_rate"], each.data.metrics["eval_accuracy"]
    print(json.dumps([*facts, [[m.step, m.value] for m in losses], files]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    install("mlflow-skinny", "wandb", into=folder)
    return folder


@pytest.fixture
def variables(site, tmp_path):
    return {
        "PYTHONPATH": f"{ROOT}:{site}",
        "MLFLOW_TRACKING_URI": f"file:{tmp_path}/mlruns",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "WANDB_MODE": "offline",
    }


def training(folder, *more):
    data = write_data(folder / "data")
    flags = [*model_flags(data), *own_files(data), "--do_train", "--do_eval", "--log_steps=1"]
    steps = "--num_train_steps=6", "--save_checkpoints_steps=2"
    return command("tasks.classifier", *flags, *steps, *more)


@pytest.mark.timeout(1800)
def test_a_run_is_one_run_there_also_when_it_goes_on(tmp_path, variables):
    out = tmp_path / "out"
    job = training(tmp_path, f"--output_dir={out}", "--report_to=tensorboard,mlflow,wandb")
    shell(*job, **variables)
    without_newest_checkpoint(out, tmp_path / "again")
    shell(*job, f"--output_dir={tmp_path}/again", **variables)
    (line,) = shell(sys.executable, "-c", FOUND, **variables).stdout.splitlines()
    status, rate, accuracy, losses, files = json.loads(line)
    assert status == "FINISHED"
    assert float(rate) == 5e-5
    assert accuracy == read_json(out / "result.json")["scores"]["eval_accuracy"]
    logged = {(entry["step"], entry["loss"]) for entry in metrics_in(out) if "rows" in entry}
    assert {(step, value) for step, value in losses} >= logged
    assert {"README.md", "report.html"} <= set(files)
    first, second = (read_json(folder / "trackers.json") for folder in (out, tmp_path / "again"))
    assert first == second
    assert list(out.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.timeout(1800)
def test_a_dead_server_ends_no_training(tmp_path, variables):
    dead = variables | {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    done = run(training(tmp_path, f"--output_dir={tmp_path}/out", "--report_to=mlflow"), **dead)
    assert done.status == 0, done
    warnings = [line for line in done.stderr.splitlines() if "mlflow cannot be written" in line]
    assert len(warnings) == 1, done
    assert (tmp_path / "out/result.json").is_file()
