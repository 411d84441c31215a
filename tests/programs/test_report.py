"""bert-report: what the page shows of a run's files, and what it says about damaged ones."""

import json
import re
import shutil
from pathlib import Path

import pytest
from harness.program_runs import refusal

from tasks import report

SQUAD_V2 = {"exact": 61.25, "f1": 65.5, "total": 11873, "best_exact": 63.0, "best_exact_thresh": -2.5}


def make_run(folder, scores=None, evaluations=()):
    """A run folder with three logged steps, and a line of the fourth that is being written."""
    folder.mkdir(parents=True)
    plan = {"steps": 40, "size": 2, "global_batch_size": 64, "learning_rate": 1e-3}
    command = ["/venv/bin/bert-squad", "--do_train", "--train_file=my data.json"]
    environment = {"command": command, "machine": "2 cores"}
    (folder / "run.json").write_text(json.dumps({"plan": plan, "environment": environment}))
    figures = {"learning_rate": 1e-4, "gradient_norm": 1.0, "examples_per_s": 480.0, "compute_s": 0.1}
    lines = [{"step": step, "loss": 4 - step / 20, **figures} for step in (1, 20, 40)]
    lines += [{"step": step, "rows": 1, "time": 1.0, **scores} for step, scores in evaluations]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"step": 4')
    if scores is not None:
        (folder / "result.json").write_text(json.dumps({"scores": scores}))
    return folder


def page_of(*folders):
    with pytest.raises(SystemExit) as stop:
        report.main([str(folder) for folder in folders])
    assert stop.value.code == 0
    return (folders[0] / "report.html").read_text()


def rows_of(page):
    """The cells of each row of the page's tables."""
    return [re.findall("<t[dh]>(.*?)</t[dh]>", row) for row in re.findall("<tr>(.*?)</tr>", page)]


def test_a_run_that_goes_on(tmp_path, capsys):
    folder = make_run(tmp_path / "some_run")
    metrics = folder / "metrics.jsonl"
    metrics.write_text("{}\n[1]\n" + metrics.read_text())
    page = page_of(folder)
    assert capsys.readouterr().out == f"{folder}/report.html\n"
    assert ["some_run", "40 of 40", "2", "64", "0.001", "2.0000", "480.0"] in rows_of(page)
    assert "2 damaged lines" in page  # without the one that is being written
    assert "<code>/venv/bin/bert-squad --do_train &#x27;--train_file=my data.json&#x27;</code>" in page
    assert "Not yet" in page
    assert "data:image/png;base64,iVBOR" in page
    for name, shown, hidden in (("predict_result", "12.34", "56.78"), ("result", "56.78", "12.34")):
        (folder / f"{name}.json").write_text(json.dumps({"scores": {"f1": float(shown)}}))  # training's come first
        assert (shown in page_of(folder), hidden in page_of(folder)) == (True, False)


def test_scores_stand_side_by_side_percentages_with_two_decimals_and_shares_with_four(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shares = {"eval_accuracy": 0.75, "eval_loss": 2.5, "eval_pearson": -0.5}
    folders = [Path("v2"), Path("a/run"), Path("b/run")]  # alike names are told apart by their paths
    for folder, scores in zip(folders, (SQUAD_V2, shares, None), strict=True):
        make_run(folder, scores=scores)
    rows = rows_of(page_of(*folders))
    for row in (
        ["", "v2", "a/run", "b/run"],
        ["exact", "61.25", "", "not yet"],
        ["total", "11,873", "", "not yet"],
        ["best_exact_thresh", "-2.5000", "", "not yet"],
        ["eval_accuracy", "", "0.7500", "not yet"],
        ["eval_pearson", "", "-0.5000", "not yet"],
    ):
        assert row in rows


def test_evaluations_are_drawn_long_names_fit_and_the_last_loss_stays(tmp_path):
    """Warnings, such as matplotlib's of axes without room, are errors here."""
    scores = {"eval_accuracy": 0.75, "eval_total": 9, "eval_loss": 0.5, "eval_" + "x" * 300: 1e300}
    folders = [make_run(tmp_path / f"{n}{'y' * 200}", evaluations=[(20, scores), (40, scores)]) for n in range(4)]
    page = page_of(*folders)
    assert "2.0000" in rows_of(page)[1]
    for folder in folders:
        shutil.rmtree(folder)
        make_run(folder)
    assert page != page_of(*folders)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.json", None),
        ("run.json", '{"plan": {}}'),
        ("result.json", '{"scores": {"f1": "high"}}'),
        ("metrics.jsonl", ""),
    ],
)
def test_a_missing_or_damaged_file_is_one_line_that_names_it(tmp_path, capsys, name, text):
    folder = make_run(tmp_path / "some_run")
    (folder / name).write_text(text) if text is not None else (folder / name).unlink()
    refusal(capsys, "bert-report", lambda: report.main([str(folder)]), folder, name)
