"""bert-report: what the page shows of a run's files, and what it says about damaged ones."""

import json
import os
import re
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
from harness import folders
from harness.program_runs import refusal
from harness.refusals import refused

from ringbase.files import read_json, write_json
from tasks.runs.details import examples
from tasks.runs.report import page as report
from tasks.runs.report.files import read_run
from tasks.runs.report.sections import section
from tasks.runs.resolve.past import Past
from tasks.squad.metrics import squad_v2

EVALUATIONS = [(20, {"eval_f1": 0.5}), (40, {"eval_f1": 0.25})]


def make_run(folder, scores=None, evaluations=(), ranks=2, metric=None):
    """A run folder with three logged steps, and a line of the fourth that is being written."""
    folder.mkdir(parents=True)
    plan = {"steps": 40, "size": ranks, "global_batch_size": 64, "learning_rate": 1e-3}
    command = ["/venv/bin/bert-squad", "--do_train", "--train_file=my data.json"]
    environment = {"command": command, "machine": "2 cores"}
    facts = {"plan": plan, "environment": environment, "metric": metric}
    write_json(folder / "run.json", facts)
    figures = {"learning_rate": 1.5e-4, "gradient_norm": 1.0, "examples_per_s": 480.0}
    figures |= {"compute_s": 0.1, "reduce_s": 0.01 * (ranks > 1)}
    lines = [{"step": step, "loss": 4 - step / 20, **figures} for step in (1, 20, 40)]
    lines += [{"step": step, "rows": 1, "time": 1.0, **scores} for step, scores in evaluations]
    (folder / "metrics.jsonl").write_text(
        "".join(f"{json.dumps(line)}\n" for line in lines) + '{"step": 4'
    )
    if scores is not None:
        write_json(folder / "result.json", {"scores": scores})
    return folder


def change_run(folder, **facts):
    """Puts these facts into the run's run.json."""
    write_json(folder / "run.json", read_json(folder / "run.json") | facts)


def page_of(*folders):
    with pytest.raises(SystemExit, match=r"^0$"):
        report.main([str(folder) for folder in folders])
    own = folders[0] / "report.html"
    return (own if len(folders) == 1 else Path("comparison.html")).read_text()


def tree_of(page):
    """Its elements. Raises ParseError: it is not well-formed, but for elements without an end."""
    return ElementTree.fromstring(re.sub("<(!doctype|meta|br)[^>]*>", "", page))


def rows_of(page):
    """The cells of each row of the page's tables."""
    rows = re.findall("<tr>(.*?)</tr>", page)
    return [re.findall("<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]


def test_a_run_that_goes_on(tmp_path, capsys):
    folder = make_run(tmp_path / "some_run")
    metrics = folder / "metrics.jsonl"
    metrics.write_text("{}\n[1]\n" + metrics.read_text())
    page = page_of(folder)
    assert capsys.readouterr().out == f"{folder}/report.html\n"
    facts = dict(row for row in rows_of(page) if len(row) == 2)
    assert (
        facts.items()
        >= {
            "steps": "40 of 40",
            "ranks": "2",
            "global batch": "64",
            "learning rate": "0.001",
            "last loss": "2.0000",
            "examples/s (median)": "480.0",
            "machine": "2 cores",
        }.items()
    )
    assert "2 damaged lines" in page  # without the one that is being written
    assert (
        "<code>/venv/bin/bert-squad --do_train &#x27;--train_file=my data.json&#x27;</code>" in page
    )
    assert "No scores yet" in page
    without = page_of(make_run(tmp_path / "complete", scores={}))
    assert "No scores yet" not in without
    capsys.readouterr()
    for name, shown, hidden in (("predict_result", "12.34", "56.78"), ("result", "56.78", "12.34")):
        # training's come first
        write_json(folder / f"{name}.json", {"scores": {"f1": float(shown)}})
        assert (shown in page_of(folder), hidden in page_of(folder)) == (True, False)


def test_the_page_needs_nothing_from_elsewhere_and_is_well_formed(tmp_path):
    """Every tag is closed, no address is loaded, and names of runs and labels are text."""
    folder = make_run(
        tmp_path / "<b>&x", scores={"f1": 1.0}, evaluations=[(20, {"f1": 0.5}), (40, {"f1": 1.0})]
    )
    cell = {"text": "where <i> it is", "marks": [[0, 5, "answer"], [3, 9, "predicted"]]}
    sections = [
        {"title": "<h1>", "note": "", "columns": ["a&b"], "rows": [[cell], [3], [0.5]]},
        {"title": "Confusion", "note": "", "labels": ["<p>", "q"], "counts": [[3, 0], [1, 2]]},
    ]
    result = {"scores": {"f1": 1.0}, "report": sections, "seconds": 3700}
    write_json(folder / "result.json", result)
    page = page_of(folder)
    tree = tree_of(page)
    assert not re.findall(r"(?:src|href|url)\s*[=(]|https?:|<script", page)
    assert "".join(tree.find(".//h1").itertext()) == "<b>&x"
    marks = {(mark.get("class"), mark.text) for mark in tree.iter("mark")}
    legend = {("answer", "true"), ("predicted", "predicted"), ("answer predicted", "both")}
    assert legend < marks
    assert marks - legend == {("answer", "whe"), ("answer predicted", "re"), ("predicted", " <i>")}
    # on a phone each cell of such a row has its head
    assert [cell.get("data-head") for cell in tree.findall(".//section[1]//td")] == ["a&b"] * 3
    matrix = tree.find(".//table[@class='matrix']")
    assert [cell.text for cell in matrix.iter("td")] == ["3", "0", "1", "2"]
    assert "1 h 1 min" in page
    assert len(page) < 100_000


def test_curves_are_where_their_points_are(tmp_path):
    """The loss of three steps falls along a line; the best evaluation is marked if its model is
    kept."""
    folder = make_run(tmp_path / "run", evaluations=EVALUATIONS)
    page = page_of(folder)
    titles = re.findall(r"<figcaption>(\w+)", page)
    assert titles == ["loss", "scores", "examples", "learning", "gradient"]
    # of the first figure, the loss
    points = re.search('class="raw c0" points="(.*?)"', page)[1].split()
    (x1, y1), (x2, y2), (x3, y3) = (map(float, point.split(",")) for point in points)
    # steps 1, 20, 40; a tenth of a pixel
    assert (x3 - x2) / (x2 - x1) == pytest.approx(20 / 19, rel=0.01)
    assert (y3 - y2) / (y2 - y1) == pytest.approx(20 / 19, rel=0.02)
    assert "best eval_f1" not in page
    keeps_best = {"load_best_model_at_end": True}
    change_run(folder, config=keeps_best)
    assert "best eval_f1" in page_of(folder)
    # by the score that chooses the model, not by the first one
    lines = [(20, {"exact": 0.75, "f1": 0.5}), (40, {"exact": 0.5, "f1": 0.75})]
    folder = make_run(tmp_path / "other", {"exact": 0.5}, lines, metric="f1")
    change_run(folder, config=keeps_best)
    page = tree_of(page_of(folder))
    (mark, *_) = [line for line in page.iter("line") if line.get("class") == "mark"]
    last = page.find(".//polyline[@class='raw c0']").get("points").split()[-1]
    assert "best f1" in {text.text for text in page.iter("text")}
    assert mark.get("x1") == last.split(",")[0]


def test_the_planned_rate_is_drawn_before_the_run_is_there(tmp_path, monkeypatch):
    """Of a run of an earlier version too, whose plan and flags say less: linear, without warmup."""
    folder = make_run(tmp_path / "run")
    planned = dict(read_run(folder, "run").planned_rates())
    assert planned == {step: pytest.approx(1e-3 * (41 - step) / 40) for step in range(1, 41)}
    plan = read_json(folder / "run.json")["plan"] | {"warmup_steps": 4, "decay_steps": 4}
    change_run(folder, plan=plan, config={"lr_scheduler_type": "wsd", "lr_decay_type": "linear"})
    rates = [rate / 1e-3 for _, rate in read_run(folder, "run").planned_rates()]
    assert rates == pytest.approx([0, 0.25, 0.5, 0.75, *[1] * 33, 0.75, 0.5, 0.25])
    page = page_of(folder)
    assert "planned" in page
    facts = dict(row for row in rows_of(page) if len(row) == 2)
    assert facts["recipe"] == "--lr_scheduler_type wsd, --lr_decay_type linear"
    other = make_run(tmp_path / "other")
    monkeypatch.chdir(tmp_path)  # for the page of several runs
    assert "planned" not in page_of(other, folder)  # in whose chart each run has its colour


def test_a_chart_shows_its_values_and_whole_labels(tmp_path):
    """Wherever the pointer is, it finds the values at the end of that step. A digit of 12 pixels'
    height is up to 7.5 wide."""
    folder = make_run(tmp_path / "run", evaluations=EVALUATIONS)
    plan = read_json(folder / "run.json")["plan"] | {"learning_rate": 1.5e-4}
    change_run(folder, plan=plan)
    charts = {
        figure.findtext("figcaption"): figure for figure in tree_of(page_of(folder)).iter("figure")
    }
    labels = [text.text for text in charts["learning rate"].iter("text")]
    assert "0.00015" in labels
    for chart in charts.values():
        for text in chart.iter("text"):
            if text.get("text-anchor") == "end" and not text.text.isalpha():
                assert float(text.get("x")) >= 7.5 * len(text.text)
    areas = {title: [*chart.iter("rect")] for title, chart in charts.items()}
    # the smoothed one is the mean of three
    expected = "step 20\n3 training\n2.983 training, smoothed"
    assert areas["loss"][1].findtext("title") == expected
    scores = [area.findtext("title") for area in areas["scores on held-out data"]]
    assert scores == ["step 20\n0.5 eval_f1", "step 40\n0.25 eval_f1"]
    end = None
    for area in areas["loss"]:  # one begins where the one before ends
        start, width = float(area.get("x")), float(area.get("width"))
        assert end is None or start == pytest.approx(end, abs=0.2)
        end = start + width
    ends = re.search('class="raw c0" points=".* (.*?),', page_of(folder))
    assert end == pytest.approx(float(ends[1]), abs=0.2)


def test_what_was_measured_once_is_a_line_of_text(tmp_path):
    folder = make_run(tmp_path / "run", evaluations=[(40, {"eval_f1": 0.25, "eval_accuracy": 0.5})])
    tree = tree_of(page_of(folder))
    assert len(tree.findall(".//figure")) == 4
    (line,) = tree.findall(".//p[@class='once']")
    text = "".join(line.itertext())
    assert text == "scores on held-out data: eval_f1 0.25 (step 40), eval_accuracy 0.5 (step 40)"


def test_curves_mark_changes_of_the_number_of_ranks(tmp_path):
    """After deaths, and where the training was started again."""
    folder = make_run(tmp_path / "run")
    lines = [
        {"step": step, "loss": 1.0, "ranks": ranks, "examples_per_s": 9.0}
        for step, ranks in ((1, 4), (20, 4), (30, 3), (40, 2))
    ]
    metrics = folder / "metrics.jsonl"
    metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    first = {"began": 0, "what": "training", "ranks": 4, "from": "initial values", "step": 0}
    write_json(folder / "history.json", [first, first | {"ranks": 2, "step": 32}])
    page = page_of(folder)
    for mark in (">3 ranks</text>", ">restart, 2 ranks</text>"):
        assert page.count(mark) == 2  # on the curves of loss and speed
    assert ">2 ranks</text>" not in page


def test_one_rank_has_no_sum_over_ranks(tmp_path):
    for ranks in (1, 2):
        page = page_of(make_run(tmp_path / f"on {ranks}", ranks=ranks))
        assert ("sum over ranks" in page, "compute 100 ms" in page) == (ranks > 1, True)


def test_the_main_scores_are_large_and_the_table_has_the_others(tmp_path):
    references = {"a": ["x y"], "b": ["z"], "c": []}
    answers, odds = {"a": "x", "b": "z", "c": "u"}, {"a": 0.0, "b": 0.0, "c": 1.0}
    both = squad_v2(references, answers, odds)[0]
    answerable = squad_v2({"a": ["x y"]}, {"a": "x"}, {"a": 0.0})[0]
    short = {"eval_accuracy": 0.75, "eval_loss": 0.5}
    for name, scores, large in (
        ("both", both, ["exact", "f1", "HasAns f1", "NoAns f1"]),
        ("answerable", answerable, ["exact", "f1", "HasAns f1", "HasAns exact"]),
        ("short", short, ["eval accuracy", "eval loss"]),
    ):
        page = page_of(make_run(tmp_path / name, scores=scores))
        tiles = tree_of(page).findall(".//div[@class='tile']/span")
        assert [tile.text for tile in tiles] == large
        in_table = {row[0] for row in rows_of(page)} & scores.keys()
        assert in_table == scores.keys() - {name.replace(" ", "_") for name in large}
        assert ("<h2>Scores</h2>" in page) == bool(in_table)


def test_a_comparison_has_the_best_run_first_and_marks_the_best_scores(tmp_path, monkeypatch):
    """The score that the task names counts, not the first one."""
    monkeypatch.chdir(tmp_path)
    for name, accuracy, f1, loss in (
        ("a", 0.9, 0.5, 0.25),
        ("b", 0.7, 0.75, 0.5),
        ("seeds/seed-1", 0.9, 0.9, 0.75),
        ("seeds/seed-2", 0.9, 0.25, 0.5),
    ):
        scores = {"eval_accuracy": accuracy, "eval_f1": f1, "eval_loss": loss, "total": f1}
        make_run(Path(name), scores=scores, metric="eval_f1")
    make_run(Path("goes on"))
    page = page_of(*map(Path, ("goes on", "a", "seeds", "b")))
    heads = next(row for row in rows_of(page) if "a" in row)
    mean = "seeds: mean ± deviation"
    assert heads == ["", "seeds seed-1", "b", "a", "seeds seed-2", "goes on", mean]
    assert "5 runs, the highest eval_f1 first" in page
    best = {}
    for row in tree_of(page).findall(".//tr"):
        cells = row.findall("td")
        best[cells[0].text if cells else ""] = [
            cell.get("data-head") for cell in cells if cell.get("class") == "best"
        ]
    # three are equal
    assert best["eval_accuracy"] == ["seeds seed-1", "a", "seeds seed-2"]
    assert (best["eval_f1"], best["eval_loss"], best["total"]) == (["seeds seed-1"], ["a"], [])


def test_runs_stand_side_by_side(tmp_path, monkeypatch):
    """Percentages have two decimals and shares four; flags that differ are listed; seeds have a
    mean."""
    monkeypatch.chdir(tmp_path)
    squad = {"exact": 61.25, "total": 11873, "best_exact_thresh": -2.5}
    shares = {"eval_accuracy": 0.75, "eval_pearson": -0.5}
    make_run(Path("v2"), squad)
    make_run(Path("a/run"), shares)  # alike names are told apart by their paths
    make_run(Path("b/run"))
    Path("other.json").write_text('{"scores": {"exact": 60}}')
    rows = rows_of(page_of(*map(Path, ("v2", "a/run", "b/run", "other.json"))))
    for row in (
        ["", "v2", "other.json", "a/run", "b/run"],  # the highest "exact" first
        ["exact", "61.25", "60.00", "", "not yet"],
        ["total", "11,873", "", "", "not yet"],
        ["best_exact_thresh", "-2.5000", "", "", "not yet"],
        ["eval_accuracy", "", "", "0.7500", "not yet"],
        ["eval_pearson", "", "", "-0.5000", "not yet"],
    ):
        assert row in rows
    for seed, accuracy in ((1, 0.7), (10, 0.9)):
        run = make_run(tmp_path / f"seeds/seed-{seed}", scores={"eval_accuracy": accuracy})
        change_run(run, config={"seed": seed, "output_dir": str(run)})
    rows = rows_of(page_of(Path("seeds")))
    assert ["", "seeds seed-10", "seeds seed-1", "seeds: mean ± deviation"] in rows
    assert ["eval_accuracy", "0.9000", "0.7000", "0.8000 ± 0.14"] in rows
    assert ["--seed", "10", "1"] in rows


def test_a_comparison_leaves_the_runs_own_pages_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/b", "runs/a", "alone"):
        make_run(tmp_path / name, scores={"f1": 1.0})
        (tmp_path / name / "report.html").write_text("its own page")
    make_run(tmp_path / os.fsdecode(b"odd/\xff"))  # a name that is not UTF-8
    for words, written in (
        (["runs/a", "alone"], "comparison.html"),
        (["runs/a", "alone", "--output_file", "new.html"], "new.html"),
        (["alone", "--output_file=one.html"], "one.html"),
        (["-output-file=dash.html", "alone"], "dash.html"),
        (["runs"], "runs/report.html"),
        (["odd"], "odd/report.html"),
    ):
        with pytest.raises(SystemExit, match=r"^0$"):
            report.main(words)
        assert capsys.readouterr().out == f"{written}\n"
        assert "<h1>" in Path(written).read_text()
    assert ["", "a", "b"] in rows_of(Path("runs/report.html").read_text())
    for name in ("runs/a", "runs/b", "alone"):
        assert Path(name, "report.html").read_text() == "its own page"
    for words, message in (
        (["alone", "--output"], "unknown flag --output; did you mean --output_file?"),
        (["alone", "--output_file"], "--output_file needs a value: --output_file=VALUE"),
        ([], "FOLDERS must be given"),
    ):
        call = partial(report.main, words)
        refusal(capsys, "bert-report", call, message, status=2, is_alone=True)
    (tmp_path / "scores.json").write_text("{}")
    words = ["alone", "--output_file=scores.json"]
    refusal(capsys, "bert-report", lambda: report.main(words), "scores.json")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.json", None),
        ("run.json", '{"plan": {}}'),
        ("result.json", '{"scores": {"f1": "high"}}'),
        ("result.json", '{"scores": {"f1": 1}, "report": 7}'),
        ("step_times.json", "[1]"),
        ("metrics.jsonl", ""),
        ("history.json", "[1]"),
    ],
)
def test_a_missing_or_damaged_file_is_one_line_that_names_it(tmp_path, capsys, name, text):
    folder = make_run(tmp_path / "some_run")
    (folder / name).write_text(text) if text is not None else (folder / name).unlink()
    refusal(capsys, "bert-report", lambda: report.main([str(folder)]), folder, name)


@pytest.mark.parametrize("text", ['{"a": 1}', '[{"what": "training"}]', "[1]"])
def test_a_damaged_history_is_one_line_for_the_run_that_goes_on(tmp_path, text):
    folder = folders.write_run(tmp_path / "some_run", steps=())
    (folder / "history.json").write_text(text)
    refused(partial(Past.of, folder, print), folder / "history.json", "damaged")


def test_of_several_places_the_damaged_one_is_named(tmp_path, capsys):
    places = [str(make_run(tmp_path / name)) for name in ("a", "b")]
    other = tmp_path / "other.json"
    other.write_text('{"f1": 3}')
    call = partial(report.main, [*places, str(other)])
    line = refusal(capsys, "bert-report", call, other, "'scores'")
    assert places[0] not in line


def test_records_of_a_task_of_ones_own_become_a_table():
    """With numbers, lists and objects, and not all with the same fields."""
    shown = [{"text": "a", "scores": [0.1, 0.9]}, {"text": "b", "probabilities": {"x": 0.1}}]
    page = ElementTree.fromstring(section(examples("Mistakes", "2 of 2", shown)))
    cells = [cell.text for cell in page.iter("td")]
    assert cells == ["a", "0.1, 0.9", "(none)", "b", "(none)", "{'x': 0.1}"]


def make_evaluation(folder, scores, **facts):
    """A folder as a command leaves it that only evaluates."""
    folder.mkdir(parents=True)
    environment = {"command": ["/venv/bin/bert-squad", "--do_predict"], "machine": "2 cores"}
    run = {"config": {"precision": "bf16"}, "describes": {"model": {"model": "some/base"}}}
    run |= {"metric": "f1", "start": "--model", "environment": environment, **facts}
    result = {
        "scores": scores,
        "seconds": 3.0,
        "run": run,
        "scored_on": ["--predict_file dev.json"],
    }
    write_json(folder / "predict_result.json", result)
    start = {"began": 0, "what": "prediction", "ranks": 3, "from": "--model", "step": 0}
    write_json(folder / "history.json", [start])
    return folder


def test_an_evaluation_alone_is_a_run_beside_those_that_trained(tmp_path, monkeypatch):
    """Its scores, model and command; no curves. The step whose model was kept is that of the best
    evaluation."""
    monkeypatch.chdir(tmp_path)
    trained = make_run(Path("trained"), {"f1": 0.75}, [(20, {"f1": 0.75}), (40, {"f1": 0.5})])
    change_run(trained, config={"load_best_model_at_end": True})
    write_json(trained / "result.json", {"scores": {"f1": 0.75}, "steps": 20})
    last = make_run(Path("last"), {"f1": 0.5})
    change_run(last, describes={"model": {"model": "/runs/earlier/model"}})
    other = {"scores": {"f1": 0.5}, "steps": 40, "scored_on": ["--predict_file test.json"]}
    write_json(last / "result.json", other)
    base = make_evaluation(Path("base"), {"f1": 0.625})
    page = page_of(base, trained, last)
    rows = rows_of(page)
    assert "3 runs, the highest f1 first" in page
    for row in (
        ["", "trained", "base", "last"],
        ["f1", "0.7500", "0.6250", "0.5000"],
        ["model of step", "20 (best f1)", "", "40 (the last)"],
        ["ranks", "2", "3", "2"],
        ["model", "", "base", "earlier/model"],
        ["scored on", "", "--predict_file dev.json", "--predict_file test.json"],
    ):
        assert row in rows
    assert page.count("bert-squad --do_predict") == 1
    assert "base" not in "".join(re.findall("<figure>.*?</figure>", page))
    alone = page_of(base)
    assert "<h2>Training" not in alone
    assert "3 ranks" in alone
    assert ["precision", "bf16"] in rows_of(alone)
    make_evaluation(Path("seeds/seed-1"), {"f1": 0.5})
    make_evaluation(Path("seeds/seed-2"), {"f1": 1.0})
    assert ["f1", "1.0000", "0.5000", "0.7500 ± 0.35"] in rows_of(page_of(Path("seeds")))


def test_data_in_memory_has_its_description_instead_of_a_file_in_the_cache(tmp_path):
    path, words = "/cache/0123/rows_in_memory.parquet", "3 rows in memory (columns a; SHA-256 0123)"
    folder = make_run(tmp_path / "run", {"f1": 0.5})
    call = f"ringbert.launch(ringbert.Squad(train_file={path!r}), ranks=1)"
    command = ["/venv/tasks/squad/__main__.py", f"--train_file={path}"]
    environment = {"command": command, "launched_by": call}
    describes = {"data": {"train_file": path}}
    change_run(folder, environment=environment, describes=describes, in_memory={path: words})
    page = page_of(folder)
    assert ["data", words] in rows_of(page)
    assert page.count(words) == 3
    assert "/cache" not in page
