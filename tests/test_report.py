"""bert-report: what the page shows of a run's files, and what it says about damaged ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks import report

ROOT = Path(__file__).resolve().parent.parent
SQUAD_V2 = {
    "exact": 61.25, "f1": 65.5, "total": 11873, "HasAns_exact": 55.0, "HasAns_f1": 62.5, "HasAns_total": 5928,
    "best_exact": 63.0, "best_exact_thresh": -2.5,
}  # fmt: skip


@pytest.fixture
def run_folder(tmp_path) -> Path:
    return make_run(tmp_path / "some_run")


def make_run(folder: Path, size: int = 2, scores: dict | None = None) -> Path:
    """A run folder with three logged steps, and a line of the fourth that is being written."""
    folder.mkdir(parents=True)
    plan = {"steps": 40, "size": size, "global_batch_size": 64, "learning_rate": 1e-3}
    command = ["/venv/bin/bert-squad", "--do_train", "--train_file=my data.json"]
    environment = {"command": command, "machine": "2 cores"}
    (folder / "run.json").write_text(json.dumps({"plan": plan, "environment": environment}))
    figures = {"learning_rate": 1e-4, "gradient_norm": 1.0, "examples_per_s": 480.0}
    parts = {"data_s": 0.0, "compute_s": 0.1, "reduce_s": 0.02, "apply_s": 0.01}
    lines = [json.dumps({"step": step, "loss": 4 - step / 20, **figures, **parts}) for step in (1, 20, 40)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 4')
    if scores is not None:
        (folder / "result.json").write_text(json.dumps({"scores": scores}))
    return folder


def page_of(*folders: Path) -> str:
    with pytest.raises(SystemExit) as stop:
        report.main([str(folder) for folder in folders])
    assert stop.value.code == 0
    return (folders[0] / "report.html").read_text()


def error_of(*folders: Path, capsys) -> str:
    with pytest.raises(SystemExit) as stop:
        report.main([str(folder) for folder in folders])
    assert stop.value.code == 1
    printed = capsys.readouterr().err
    assert printed.startswith("bert-report: error: ")
    assert printed.count("\n") == 1
    return printed.removeprefix("bert-report: error: ").rstrip("\n")


def bars_of(*folders: Path):
    """The axis on which the scores at the end are drawn."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots()
    report.draw_scores(axis, report.read_runs(folders))
    pyplot.close(figure)
    return axis


def names_of(axis) -> list[str]:
    return [label.get_text() for label in axis.get_yticklabels()]


def test_a_run_that_goes_on(run_folder, capsys):
    page = page_of(run_folder)
    assert capsys.readouterr().out == f"{run_folder}/report.html\n"
    assert "40 of 40" in page
    assert "<td>2.0000</td>" in page  # the last loss
    assert "Not yet" in page
    assert "data:image/png;base64,iVBOR" in page


def test_the_command_can_be_repeated(run_folder, tmp_path):
    assert "<code>mpirun -np 2 bert-squad --do_train &#x27;--train_file=my data.json&#x27;</code>" in page_of(
        run_folder
    )
    assert "<code>bert-squad --do_train" in page_of(make_run(tmp_path / "alone", size=1))
    (run,) = report.read_runs([run_folder])
    run.command[:] = ["/home/me/ringbert/tasks/squad/__main__.py", "--seed=1"]
    assert report.command_of(run) == "mpirun -np 2 python -m tasks.squad --seed=1"


def test_squads_totals_and_thresholds_are_no_percentages(tmp_path):
    folder = make_run(tmp_path / "v2", scores=SQUAD_V2)
    page = page_of(folder)
    for name, value in (("exact", "61.25"), ("total", "11,873"), ("best_exact_thresh", "-2.5000")):
        assert f"<td>{name}</td><td>{value}</td>" in page
    axis = bars_of(folder)
    assert names_of(axis) == ["exact", "f1", "HasAns_exact", "HasAns_f1", "best_exact"]
    assert axis.get_title() == "scores (percent)"
    assert axis.get_xlim() == (0, 120)


def test_shares_of_one_stay_shares_alone_and_become_percent_beside_percentages(tmp_path):
    scores = {"eval_accuracy": 0.75, "eval_loss": 2.5, "eval_pearson": -0.5}
    shares = make_run(tmp_path / "shares", scores=scores)
    percent = make_run(tmp_path / "percent", scores={"exact_match": 81.25})
    page = page_of(shares)
    assert "<td>eval_accuracy</td><td>0.7500</td>" in page
    assert "<td>eval_loss</td><td>2.5000</td>" in page
    axis = bars_of(shares)
    assert [patch.get_width() for patch in axis.patches] == [0.75, -0.5]
    assert axis.get_xlim()[0] < -0.5
    axis = bars_of(shares, percent)
    assert [patch.get_width() for patch in axis.patches] == [75, -50, 81.25]
    assert names_of(axis) == ["shares eval_accuracy", "shares eval_pearson", "percent exact_match"]


def test_evaluations_while_training_are_curves(run_folder):
    measured = {"rows": 1, "time": 1.0, "eval_accuracy": 0.75, "eval_total": 9, "eval_loss": 0.5}
    lines = (run_folder / "metrics.jsonl").read_text().splitlines()[:-1]
    lines += [json.dumps({"step": step, **measured}) for step in (20, 40)]
    (run_folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert "<td>2.0000</td>" in page_of(run_folder)  # the last loss, of an earlier line
    from matplotlib import pyplot

    figure, axis = pyplot.subplots()
    report.draw_evaluations(axis, report.read_runs([run_folder]), losses=False)
    pyplot.close(figure)
    assert [(line.get_label(), *line.get_xdata()) for line in axis.lines] == [("eval_accuracy", 20, 40)]


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path):
    folders = [make_run(tmp_path / name / "out") for name in ("a", "b")]
    page = page_of(*folders)
    assert f"<td>{tmp_path}/a/out</td>" in page
    assert f"<td>{tmp_path}/b/out</td>" in page


def test_no_run_is_one_line(tmp_path, capsys):
    assert error_of(tmp_path, capsys=capsys) == f"{tmp_path}: no run of RingBERT here (run.json is missing)"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.json", '{"plan": {', "not valid JSON"),
        ("run.json", '{"plan": {}}', "damaged: there is no object 'environment' in it"),
        ("run.json", "[]", "expected a JSON object, got a list"),
        ("result.json", "", "not valid JSON"),
        ("metrics.jsonl", "", "no step is logged yet"),
    ],
)
def test_a_damaged_file_is_one_line(run_folder, capsys, name, text, message):
    (run_folder / name).write_text(text)
    assert message in error_of(run_folder, capsys=capsys)


def test_a_closed_pipe_is_no_error(run_folder):
    reader, writer = os.pipe()
    os.close(reader)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tasks.report", str(run_folder)]
    done = subprocess.run(command, env=environment, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
