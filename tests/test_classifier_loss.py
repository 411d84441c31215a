"""A classifier's loss and the weights of its labels."""

from types import SimpleNamespace

import numpy as np
import pytest

from ringbert.errors import InputError
from tasks.classifier.loss import class_weights, example_weights, label_loss


def rows_of(labels: list[int]):
    return SimpleNamespace(column=lambda name: np.array(labels, np.int32))


def test_balanced_weights_are_scikit_learns():
    from sklearn.utils.class_weight import compute_class_weight

    labels = [0] * 7 + [1] * 2 + [2] * 11
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    weights = class_weights("balanced", ("a", "b", "c"), rows_of(labels))
    np.testing.assert_allclose(weights, expected, rtol=1e-7)  # float32
    assert class_weights(None, ("a", "b", "c"), rows_of(labels)) is None
    with pytest.raises(InputError, match="no example has label b"):
        class_weights("balanced", ("a", "b", "c"), rows_of([0, 2]))


def test_class_weights_by_label():
    labels = ("a", "b=c", "d")
    weights = class_weights("d=3,a=0.5,b=c=2", labels, rows_of([]))
    np.testing.assert_array_equal(weights, np.array([0.5, 2, 3], np.float32))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("a=1", "a=1: no weight for b"),
        ("a=1,b=0", "got b=0"),
        ("a=1,b=-2", "got b=-2"),
        ("a=1,b=nan", "got b=nan"),
        ("a=1,b=inf", "got b=inf"),
        ("a=1,b=x", "must be LABEL=WEIGHT,… with labels among a, b and weights from 1e-06 to 1e.06, got b=x"),
        ("a=1,c=2", "got c=2"),
        ("balance", "got balance"),
    ],
)
def test_wrong_class_weights_are_refused(setting, message):
    with pytest.raises(InputError, match=f"--class_weights .*{message}$"):
        class_weights(setting, ("a", "b"), rows_of([0, 1]))


def test_class_weights_of_a_regression_are_refused():
    with pytest.raises(InputError, match="labels, which a regression does not have"):
        class_weights("balanced", None, rows_of([]))


def rows_of_one_token(size):
    return {"example_ids": np.ones(size, np.int32), "first_tokens": np.arange(size, dtype=np.int32)}


@pytest.mark.parametrize("weight", [None, np.array([0.5, 4.0, 1.25], np.float32)])
def test_label_loss_is_the_weighted_cross_entropy(weight):
    """PyTorch's CrossEntropyLoss(weight): sum of w[y] * CE, over the sum of w[y]; here in numpy's float64."""
    import tensorflow as tf

    chance = np.random.default_rng(4)
    scores, label = chance.normal(0, 3, (10, 3)).astype(np.float32), chance.integers(0, 3, 10).astype(np.int32)
    batch = {"label": label, **rows_of_one_token(10)}
    tensors = {name: tf.constant(array) for name, array in batch.items()}
    loss = float(label_loss(tf.constant(scores), tensors, weight))
    loss /= example_weights(batch, weight).sum()
    exact = scores.astype(np.float64)
    losses = np.log(np.exp(exact).sum(1)) - exact[np.arange(10), label]
    counts = np.ones(10) if weight is None else weight.astype(np.float64)[label]
    assert loss == pytest.approx((counts * losses).sum() / counts.sum(), rel=1e-6)  # float32


def test_regression_loss_is_the_squared_error():
    import tensorflow as tf

    scores, label = np.array([[1.5], [-2], [0]], np.float32), np.array([1, 2, 0.5], np.float32)
    batch = {"label": label, **rows_of_one_token(3)}
    tensors = {name: tf.constant(array) for name, array in batch.items()}
    assert float(label_loss(tf.constant(scores), tensors, None)) == 0.25 + 16 + 0.25  # exact in binary
    assert example_weights(batch, None).sum() == 3
