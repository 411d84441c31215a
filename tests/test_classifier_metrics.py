"""The metrics against their formulas, written out in numpy."""

import math

import numpy as np
import pytest

from tasks.classifier.metrics import METRICS, scores
from tasks.classifier.tasks import TASKS

EXACT = {"rel": 1e-12, "abs": 1e-12}  # float64 sums of at most 300 terms


def counts(labels, predictions):
    """True positives, false positives, false negatives, true negatives of class 1."""
    return tuple(
        int(np.sum((labels == label) & (predictions == prediction)))
        for label, prediction in ((1, 1), (0, 1), (1, 0), (0, 0))
    )


def mean_ranks(values):
    return np.array([np.mean([sum(values < v) + 1, sum(values <= v)]) for v in values])


def correlation(x, y):
    x, y = np.asarray(x, np.float64) - np.mean(x, dtype=np.float64), np.asarray(y, np.float64) - np.mean(y)
    return np.sum(x * y) / math.sqrt(np.sum(x * x) * np.sum(y * y))


@pytest.mark.parametrize("seed", range(5))
def test_of_two_classes(seed):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, 300)
    predictions = np.where(generator.random(300) < 0.7, labels, 1 - labels)
    tp, fp, fn, tn = counts(labels, predictions)
    f1 = 2 * tp / (2 * tp + fp + fn)
    mcc = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    got = scores(["accuracy", "f1", "acc_and_f1", "mcc"], labels, predictions)
    assert list(got) == ["accuracy", "f1", "acc_and_f1", "mcc"]
    assert got["accuracy"] == pytest.approx((tp + tn) / 300, **EXACT)
    assert got["f1"] == pytest.approx(f1, **EXACT)
    assert got["acc_and_f1"] == pytest.approx(((tp + tn) / 300 + f1) / 2, **EXACT)
    assert got["mcc"] == pytest.approx(mcc, **EXACT)
    assert all(type(value) is float for value in got.values())


def test_f1_is_that_of_class_1_and_not_of_class_0():
    labels, predictions = np.array([1, 1, 1, 0]), np.array([1, 1, 1, 1])
    assert scores(["f1"], labels, predictions)["f1"] == pytest.approx(6 / 7, **EXACT)
    assert scores(["f1"], 1 - labels, 1 - predictions)["f1"] == 0


def test_mcc_of_three_classes():
    """Gorodkin's R_K: the correlation of the one-hot matrices."""
    generator = np.random.default_rng(1)
    labels, predictions = generator.integers(0, 3, 200), generator.integers(0, 3, 200)
    predictions[:120] = labels[:120]
    x, y = np.eye(3)[labels], np.eye(3)[predictions]
    x, y = x - x.mean(0), y - y.mean(0)
    expected = np.sum(x * y) / math.sqrt(np.sum(x * x) * np.sum(y * y))
    assert scores(["mcc"], labels, predictions)["mcc"] == pytest.approx(expected, **EXACT)


@pytest.mark.parametrize("seed", range(3))
def test_correlations_with_ties(seed):
    generator = np.random.default_rng(seed)
    labels = (generator.integers(0, 26, 250) / 5).astype(np.float32)
    predictions = np.round(labels + generator.normal(0, 1, 250), 1).astype(np.float32)
    got = scores(["pearson", "spearmanr", "corr"], labels, predictions)
    pearson = correlation(labels.astype(np.float64), predictions.astype(np.float64))
    spearman = correlation(mean_ranks(labels), mean_ranks(predictions))
    assert got["pearson"] == pytest.approx(pearson, **EXACT)
    assert got["spearmanr"] == pytest.approx(spearman, **EXACT)
    assert got["corr"] == pytest.approx((pearson + spearman) / 2, **EXACT)


def test_a_constant_tells_nothing():
    """Early models predict one class: 0, without a warning (warnings are errors here)."""
    varied, same = np.array([0, 1, 1, 0]), np.array([1, 1, 1, 1])
    for labels, predictions in (
        (varied, same),
        (same, varied),
        (same, same),
        (varied, 0 * same),
        (0 * same, 0 * same),
    ):
        got = scores(list(METRICS), labels, predictions)
        assert got["mcc"] == got["pearson"] == got["spearmanr"] == got["corr"] == 0
    assert scores(["accuracy", "f1"], varied, 0 * same) == {"accuracy": 0.5, "f1": 0.0}
    assert scores(["accuracy", "f1"], 0 * same, 0 * same) == {"accuracy": 1.0, "f1": 0.0}
    floats = np.full(4, 2.5, np.float32)
    assert scores(["corr"], varied.astype(np.float32), floats) == {"corr": 0.0}


def test_what_cannot_be_scored():
    for labels, predictions in (([], []), ([1, 0], [1]), ([[1]], [[1]])):
        with pytest.raises(ValueError, match=r"must both be \[n\], n > 0"):
            scores(["accuracy"], np.array(labels), np.array(predictions))
    for labels, predictions in (([1.0, np.nan], [1.0, 2.0]), ([1.0, 2.0], [1.0, np.inf])):
        with pytest.raises(ValueError, match="not finite"):
            scores(["pearson"], np.array(labels), np.array(predictions))


def test_every_task_names_metrics_that_exist():
    for task in TASKS.values():
        assert set(task.metrics) <= set(METRICS)
        assert task.primary_metric in task.metrics
        assert task.is_regression == ("pearson" in task.metrics)
