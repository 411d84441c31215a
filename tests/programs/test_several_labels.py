"""bert-classifier --multi_label: lists and columns, the loss, thresholds, and what the predictors
say of it."""

import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from harness import classifier_runs as own
from harness.classifier_runs import classify, table_in, write_rows
from harness.program_runs import refusal
from harness.texts import KINDS, write_lines
from scipy.special import expit, logit
from sklearn.metrics import f1_score

import ringbert
from distributed.rows import ragged
from distributed.run import Run
from distributed.world import World
from ringbase.files import read_json
from tasks.classifier.named_tasks import task_of
from tasks.classifier.reading import Source, Texts, read
from tasks.classifier.settings import TextSettings
from tasks.classifier.several import thresholds_of
from tasks.classifier.task import LabelTask
from tasks.runs.execute.evaluate import Evaluation
from tasks.runs.rows.cache import in_memory, with_facts
from tasks.runs.rows.sets import DataSet


def rows_of(examples):
    """(text, labels) of two examples after each other."""
    pairs = zip(examples[::2], examples[1::2], strict=True)
    return [
        (f"{a.first} {a.second} {b.first} {b.second}", sorted({a.kind, b.kind})) for a, b in pairs
    ]


ROWS = {"train": rows_of(own.TRAIN), "dev": rows_of(own.DEV), "test": rows_of(own.TEST)}


LEARN = ("--multi_label", *own.LEARN, "--do_predict", "--max_seq_length=48")


def files_of(pattern):
    """The flags that name the files of the three sets."""
    named = {"train_file": "train", "dev_file": "dev", "predict_file": "test"}
    return [f"--{flag}={pattern.format(name)}" for flag, name in named.items()]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Texts of one kind or two: a CSV with lists in text, and one with columns."""
    folder = own.write_data(tmp_path_factory.mktemp("data"))
    for name, rows in ROWS.items():
        lists = [(text, ", ".join(labels)) for text, labels in rows]
        columns = [(text, *(int(kind in labels) for kind in KINDS)) for text, labels in rows]
        write_rows(folder / f"{name}-lists.csv", ["text", "label"], lists, ",")
        write_rows(folder / f"{name}-columns.csv", ["text", *KINDS], columns, ",")
    return folder


def flags(data, form):
    files = files_of(f"{data}/{{}}-{form}.csv")
    columns = [f"--label_column={','.join(KINDS)}"] if form == "columns" else []
    return (*own.model_flags(data), *files, *columns, *LEARN, "--do_eval", "--num_train_steps=90")


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    return folder, classify(folder, *flags(data, "lists"))


def test_a_run_learns_chooses_thresholds_and_predicts_with_them(trained):
    folder, scores = trained
    assert scores["eval_micro_f1"] > 0.8  # all labels: 0.67; measured 0.97
    result, task = read_json(folder / "result.json"), read_json(folder / "model/task.json")
    assert task["thresholds"] == result["thresholds"]
    limits = [task["thresholds"][kind] for kind in sorted(KINDS)]
    probabilities = np.loadtxt(folder / "test_results.tsv")
    expected = [np.array(sorted(KINDS))[row].tolist() for row in probabilities > limits]
    predicted = [line[1] for line in table_in(folder / "predictions.tsv")[1:]]
    assert predicted == [",".join(each) for each in expected]
    true = np.array([[kind in labels for kind in sorted(KINDS)] for _, labels in ROWS["test"]])
    both = true, probabilities > 0.5
    assert scores["predict_macro_f1"] == pytest.approx(f1_score(*both, average="macro"))
    assert scores["predict_accuracy"] == pytest.approx((both[0] == both[1]).all(1).mean())
    found = ringbert.Classifier(folder)([text for text, _ in ROWS["test"]])
    assert [list(each.labels) for each in found] == expected
    np.testing.assert_allclose(
        [[*each.probabilities.values()] for each in found], probabilities, atol=1e-6
    )
    assert [section["title"] for section in result["report"]] == ["Labels", "Mistakes"]
    mistakes = (folder / "mistakes.jsonl").read_text().splitlines()
    assert result["report"][1]["note"].startswith(f"{len(mistakes)} of ")


def test_mistakes_are_those_with_the_thresholds_that_the_evaluation_teaches(tmp_path):
    """All labels have 0.4 where they are right, and 0.1 where not."""
    texts = Texts(list("abcd"), None, [("x",), ("y",)] * 2, list("abcd"))
    task = LabelTask(labels=("x", "y"), has_several=True)
    column = ragged([np.array([number % 2]) for number in range(4)], pa.int32())
    rows = in_memory(with_facts({"examples": {"label": column}}, {}))
    source = SimpleNamespace(is_printed=False, suffix="")
    data = DataSet(source, rows, "examples", lambda: texts)
    right, wrong = logit([0.4, 0.1])
    scores = np.array([[right, wrong], [wrong, right]] * 2, np.float32)
    world = World()
    evaluation = Evaluation(task, None, [data], 8, world, {data: scores})
    run = Run(tmp_path, world)
    learned = evaluation.written(run, {"eval_f1": 1.0}, None)
    assert learned["thresholds"] == pytest.approx({"x": 0.25, "y": 0.25})
    assert (tmp_path / "mistakes.jsonl").read_text() == ""
    note = evaluation.details(task.taught(learned))["report"][1]["note"]
    assert note.startswith("0 of 4")


@pytest.mark.slow
def test_columns_of_0_and_1_are_the_same_as_lists(trained, data, tmp_path):
    """But for the order of the labels, which is that of the columns. Prediction alone has the same
    thresholds."""
    _, scores = trained
    found = classify(tmp_path, *flags(data, "columns"))
    assert found["eval_micro_f1"] == pytest.approx(scores["eval_micro_f1"], abs=0.1)
    first = (tmp_path / "predictions.tsv").read_text()
    alone = ("--max_seq_length=48", "--do_predict", f"--predict_file={data}/test-columns.csv")
    classify(tmp_path, *own.model_flags(data), *alone)
    assert (tmp_path / "predictions.tsv").read_text() == first


@pytest.mark.slow
def test_labels_with_commas_come_back_from_the_predictions(data, tmp_path):
    """They are read again as the labels of a file; without commas predictions are as before."""
    odd = dict(zip(sorted(KINDS), ["a, b", '["c"]', 'd "e"'], strict=True))
    for name, rows in ROWS.items():
        lines = ({"text": text, "label": [odd[each] for each in labels]} for text, labels in rows)
        write_lines(tmp_path / f"{name}.jsonl", *map(json.dumps, lines))
    weights = f"--class_weights={json.dumps(dict.fromkeys(odd.values(), 1.0))}"
    given = (*own.model_flags(data), *files_of(f"{tmp_path}/{{}}.jsonl"), *LEARN, weights)
    classify(tmp_path / "run", *given, "--num_train_steps=60")
    predicted = [json.loads(line[1]) for line in table_in(tmp_path / "run/predictions.tsv")[1:]]
    expected = ringbert.Classifier(tmp_path / "run")([text for text, _ in ROWS["test"]])
    # The program's thresholds without --do_eval are 0.5, as are those of the model's folder.
    assert predicted == [list(each.labels) for each in expected]
    assert any("a, b" in each for each in predicted)
    again = TextSettings(
        train_file=f"{tmp_path}/run/predictions.tsv",
        text_column="index",
        label_column="prediction",
        multi_label=True,
    )
    assert read(Source(again, task_of(again), "train")).labels == list(map(tuple, predicted))


def test_loss_is_the_mean_of_binary_cross_entropies():
    chance = np.random.default_rng(1)
    scores, label = chance.normal(size=(5, 3)), chance.integers(0, 2, (5, 3))
    weight = np.array([1, 2, 0.5], np.float32)
    probability = expit(scores)
    losses = -(label * np.log(probability) + (1 - label) * np.log(1 - probability))
    batch = {"label": tf.constant(label, tf.float32), "is_example": tf.constant([1.0, 1, 1, 1, 0])}
    for weights, expected in ((None, losses), (weight, losses * weight)):
        task = LabelTask(labels=("a", "b", "c"), has_several=True, weight_of_label=weights)
        found = task.loss(tf.constant(scores, tf.float32), batch)
        assert float(found["loss"]) == pytest.approx(expected[:4].mean(1).sum(), rel=1e-5)


def test_thresholds_have_the_highest_f1():
    chance = np.random.default_rng(2)
    # with ties
    true, scores = chance.integers(0, 2, (40, 3)) > 0, chance.normal(size=(40, 3)).round(1)
    true[:, 2] = False
    chosen = thresholds_of(true, scores)
    probability = expit(scores)
    for label in (0, 1):
        tried = [
            f1_score(true[:, label], probability[:, label] > limit)
            for limit in np.linspace(0, 1, 500)
        ]
        assert f1_score(true[:, label], probability[:, label] > chosen[label]) == pytest.approx(
            max(tried)
        )
    assert chosen[2] == 0.5


@pytest.mark.parametrize(
    ("status", "change", "named"),
    [
        (1, ["--label_column=label,nothing"], ["no column 'nothing'"]),
        (2, ["--regression"], ["--multi_label", "--regression"]),
        (2, ["--task_name=cola", "--data_dir=x"], ["--train_file", "--task_name"]),
        (1, ["--label_column=text,label"], ["line 2", "0 or 1"]),
        (
            1,
            ["--train_file={data}/train-columns.csv", "--label_column=tool"],
            ["'tool'", "--multi_label out"],
        ),
        (1, ["--nomulti_label", "--label_column=label,more"], ["--multi_label"]),
    ],
)
def test_bad_input_is_one_line(data, tmp_path, capsys, status, change, named):
    given = (*flags(data, "lists"), *(flag.format(data=data) for flag in change))
    refusal(capsys, "bert-classifier", lambda: classify(tmp_path, *given), *named, status=status)
