"""Dropout: its shares, what it is a function of, and its places in the model."""

import numpy as np
import pytest
import tensorflow as tf
from models import KEY, error, golden

from bert import ops, ops_cpu
from bert.dropout import Dropout, effective_rate

GENERATORS = pytest.mark.parametrize("words", [ops.random_words, ops_cpu.random_words], ids=["plain", "cpu"])


@GENERATORS
@pytest.mark.parametrize(("configured", "rate"), [(0.1, 26 / 256), (0.5, 0.5), (0.01, 655 / 65536)])
def test_the_share_that_is_dropped_and_the_mean(configured, rate, words):
    """By 8 random bits for each element, by 16 where 8 change the rate by more than 2 %."""
    assert effective_rate(configured) == rate
    dropout = Dropout(configured, KEY, 0, words)
    y = dropout(tf.ones([400, 501])).numpy()
    share = (y == 0).mean()
    assert abs(share - rate) < 5 * np.sqrt(rate * (1 - rate) / y.size)  # five standard deviations
    assert dropout.scale == 1 / (1 - rate)
    np.testing.assert_allclose(np.unique(y), [0, dropout.scale], rtol=1e-6)
    assert y.mean() == pytest.approx((1 - share) * dropout.scale, rel=1e-5)
    rows = (y == 0).mean(1)  # the share is that of every row too: no stripes
    assert np.abs(rows - rate).max() < 6 * np.sqrt(rate * (1 - rate) / y.shape[1])
    neighbours = np.corrcoef((y[:, :-1] == 0).ravel(), (y[:, 1:] == 0).ravel())[0, 1]
    assert abs(neighbours) < 5 / np.sqrt(y.size)


@GENERATORS
def test_it_is_a_function_of_key_and_place(words):
    def dropped(key, place, x=tf.ones([64, 65])):  # noqa: B008
        return Dropout(0.3, key, place, words)(x)

    first = dropped(KEY, 4).numpy()
    np.testing.assert_array_equal(first, dropped(KEY, 4))
    np.testing.assert_array_equal(first, tf.function(dropped)(KEY, 4))
    for key, place in (([3, 5], 5), ([3, 6], 4), ([4, 5], 4), ([5, 3], 4)):
        differing = (first != dropped(tf.constant(key, tf.int32), place).numpy()).mean()
        assert abs(differing - 2 * 0.3 * 0.7) < 5 * np.sqrt(0.42 * 0.58 / first.size)  # as of independent masks


def test_it_can_be_off():
    x = tf.ones([64, 65])
    for off in (Dropout(0.3, None, 4), Dropout(0.0, KEY, 4)):
        assert off(x) is x
        assert off.scale == 1
    np.testing.assert_array_equal(Dropout(1 / 200_000, KEY, 4)(x), x)  # rounds to a share of 0


def test_the_gradient_is_zero_where_the_mask_is():
    x = tf.random.stateless_normal([50, 41], [1, 2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = Dropout(0.4, KEY, 0)(x)
    gradient = tape.gradient(y, x).numpy()
    np.testing.assert_array_equal(gradient == 0, y.numpy() == 0)
    assert len(np.unique(gradient)) == 2


def test_every_place_of_the_model_has_a_mask_of_its_own(goldens, monkeypatch):
    """The places of Google's dropouts: embeddings, then attention, attention output and output of each layer, then
    the pooled vector; none twice."""
    model, _, inputs = golden(goldens, "classifier_gelu")
    places, draws = [], Dropout.draws

    def record(self, shape):
        places.append((self.place, shape.shape[0], self.rate))
        return draws(self, shape)

    monkeypatch.setattr(Dropout, "draws", record)
    with_key, without = model(inputs, dropout_key=KEY), model(inputs)
    recorded = list(places)
    assert [place for place, _, _ in recorded] == list(range(1 + 3 * 2 + 1))
    assert [rank for _, rank, _ in recorded] == [2, 1, 2, 2, 1, 2, 2, 2]
    assert all(rate == 0.1 for _, _, rate in recorded)
    assert error(with_key, without) > 1e-3
    np.testing.assert_array_equal(model(inputs, dropout_key=KEY), with_key)
