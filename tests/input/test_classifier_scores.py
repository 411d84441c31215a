"""The classifier's metrics against scikit-learn and SciPy, its loss against NumPy, and the order of
its labels."""

import json
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from harness.refusals import refused
from harness.texts import write_lines
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from sklearn.utils.class_weight import compute_class_weight

from bert.configuration import BertConfig
from distributed.rows import Rows
from ringbase.settings import made
from tasks.classifier.definition import PROGRAM
from tasks.classifier.labels import with_labels
from tasks.classifier.scoring import metrics
from tasks.classifier.settings import ClassifierConfig
from tasks.classifier.task import LabelTask, weights_of_labels
from tasks.runs.resolve.labels import labels_of
from tasks.runs.resolve.spec import Start
from tasks.runs.rows.reader import Readings


def test_metrics_are_those_of_scikit_learn_and_scipy():
    def compare(labels, predictions, **expected):
        # float64 sums of at most 300 terms
        assert metrics(list(expected), labels, predictions) == pytest.approx(
            expected, rel=1e-12, abs=1e-12
        )

    draw = np.random.default_rng(4)
    labels = draw.integers(0, 3, 300)
    both = labels, np.where(draw.random(300) < 0.6, labels, draw.integers(0, 3, 300))
    compare(*both, accuracy=accuracy_score(*both), mcc=matthews_corrcoef(*both))
    both = both[0] % 2, both[1] % 2
    accuracy, f1 = accuracy_score(*both), f1_score(*both)  # of class 1
    compare(*both, acc_and_f1=(accuracy + f1) / 2, accuracy=accuracy, f1=f1)
    values = draw.integers(0, 26, 250) / 5  # with ties
    both = (
        values.astype(np.float32),
        np.round(values + draw.normal(0, 1, 250), 1).astype(np.float32),
    )
    pearson, spearman = (
        of(*(part.astype(float) for part in both)).statistic for of in (pearsonr, spearmanr)
    )
    compare(*both, corr=(pearson + spearman) / 2, pearson=pearson, spearmanr=spearman)


def test_a_constant_tells_nothing():
    """Early models predict one class: 0, without a warning (warnings are errors here)."""
    varied, same = np.array([0, 1, 1, 0]), np.array([1, 1, 1, 1])
    for pair in ((varied, same), (same, varied), (same, same), (varied, 0 * same)):
        assert set(metrics(["mcc", "pearson", "spearmanr", "corr"], *pair).values()) == {0.0}
    assert metrics(["accuracy", "f1"], varied, 0 * same) == {"accuracy": 0.5, "f1": 0.0}


def test_class_weights_are_scikit_learn_s_or_those_given():
    labels = [0] * 7 + [1] * 2 + [2] * 11
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    rows, rare = (
        Rows(pa.table({"label": pa.array(values, pa.int32())})) for values in (labels, [0, 2])
    )
    # float32
    np.testing.assert_allclose(
        weights_of_labels("balanced", ("a", "b", "c"), rows), expected, rtol=1e-7
    )
    assert weights_of_labels(None, ("a", "b", "c"), rows) is None
    assert weights_of_labels("d=3,a=0.5,b=c=2", ("a", "b=c", "d"), rows).tolist() == [0.5, 2, 3]
    names = ("a,b", "c=d", 'e "f"', "g")
    by_name = json.dumps(dict(zip(names, [2, 0.5, 1, 3], strict=True)))
    assert weights_of_labels(by_name, names, rows).tolist() == [2, 0.5, 1, 3]
    refused(lambda: weights_of_labels("balanced", None, rows), "--class_weights")
    for given in (
        "balanced",
        "a=1",
        "a=1,b=0,c=1",
        "a=1,b=nan,c=1",
        "a=1,b=x,c=1",
        "a=1,b=1,c=1,d=2",
        "x",
        '{"a": 1, "b": 1}',
        '{"a": 1, "b": [1], "c": 1}',
        '{"a": 1, "b": 1, "c": 1, "d": 1}',
        '{"a": 1',
    ):
        refused(partial(weights_of_labels, given, ("a", "b", "c"), rare), "--class_weights")


def test_the_loss_is_the_weighted_cross_entropy():
    """PyTorch's CrossEntropyLoss(weight), sum(w[y] * CE) / sum(w[y]), in NumPy's float64."""
    draw, weight = np.random.default_rng(4), np.array([0.5, 4.0, 1.25], np.float32)
    outputs = draw.normal(0, 3, (10, 3)).astype(np.float32)
    label = draw.integers(0, 3, 10).astype(np.int32)
    batch = {"label": label, "is_example": np.ones(10, np.float32)}
    task = LabelTask(weight_of_label=weight)
    loss = task.loss(
        tf.constant(outputs), {name: tf.constant(array) for name, array in batch.items()}
    )["loss"]
    exact, counts = outputs.astype(np.float64), weight.astype(np.float64)[label]
    losses = np.log(np.exp(exact).sum(1)) - exact[np.arange(10), label]
    expected = (counts * losses).sum() / counts.sum()
    assert float(loss) / task.weights(batch)["loss"] == pytest.approx(expected, rel=1e-6)


NLI, TURNED = ("contradiction", "entailment", "neutral"), ("entailment", "neutral", "contradiction")


@pytest.mark.parametrize(
    # what the model's id2label states; labels None: refused
    ("task", "trains", "stated", "labels"),
    [
        ("mnli", False, (), NLI),  # get_labels() of run_classifier.py
        ("mnli", False, TURNED, TURNED),  # a checkpoint's own order wins
        ("mrpc", True, ("bad", "good"), ("0", "1")),  # the head starts anew
        ("mrpc", False, ("bad", "good"), None),
        (None, False, ("LABEL_0", "LABEL_1"), ("LABEL_0", "LABEL_1")),  # of a trained classifier
        (None, False, (), None),
        (None, True, (), ("no", "yes")),  # sorted
    ],
)
def test_labels_are_the_checkpoint_s_then_the_task_s_then_the_data_s(
    tmp_path, run, task, trains, stated, labels
):
    train_file = write_lines(tmp_path / "train.csv", "text,label", "a,yes", "b,no")
    given = {"do_train": trains, "do_predict": True, "output_dir": "out"}
    if task:
        given |= {"task_name": task, "data_dir": "d"}
    else:
        given |= {"train_file": train_file, "predict_file": "f"}
    settings = made(ClassifierConfig, given)
    states = {"labels": stated, "problem_type": "single_label_classification"} if stated else {}
    start = Start(BertConfig(hidden_size=8, num_attention_heads=2, **states))
    learned = partial(PROGRAM.learned, settings, Readings(), run.say)
    if labels is None:
        refused(lambda: with_labels(settings, start, learned, run.say), "id2label")
    else:
        assert labels_of(with_labels(settings, start, learned, run.say).bert_config) == labels
