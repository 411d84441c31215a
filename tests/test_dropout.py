"""Dropout: its shares, what it is a function of, and its places in the model."""

import numpy as np
import pytest
import tensorflow as tf
from models import FOLDED, KEY, error, golden

from bert import ops, ops_cpu, ops_gpu
from bert.dropout import Dropout, effective_rate, folded


class OnGpus(Dropout):
    """With the random numbers of `ops_gpu`."""

    def __call__(self, x):
        return tf.where(ops_gpu.kept(self, tf.shape(x)), x * self.scale, tf.zeros([]))


GENERATORS = pytest.mark.parametrize(
    ("dropouts", "words"),
    [(Dropout, ops.random_words), (Dropout, ops_cpu.random_words), (OnGpus, None)],
    ids=["plain", "cpu", "gpu"],
)


@GENERATORS
@pytest.mark.parametrize(("configured", "rate"), [(0.1, 26 / 256), (0.5, 0.5), (0.01, 655 / 65536)])
def test_the_share_that_is_dropped_and_the_mean(configured, rate, dropouts, words):
    """By 8 random bits for each element, by 16 where 8 change the rate by more than 2 %."""
    assert effective_rate(configured) == rate
    dropout = dropouts(configured, FOLDED, 0, words)
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
def test_it_is_a_function_of_key_and_place(dropouts, words):
    def dropped(key, place, x=tf.ones([64, 65])):  # noqa: B008
        return dropouts(0.3, folded(key), place, words)(x)

    first = dropped(KEY, 4).numpy()
    np.testing.assert_array_equal(first, dropped(KEY, 4))
    np.testing.assert_array_equal(first, tf.function(dropped)(KEY, 4))
    for key, place in (([3, 5], 5), ([3, 6], 4), ([4, 5], 4), ([5, 3], 4)):
        differing = (first != dropped(tf.constant(key, tf.int32), place).numpy()).mean()
        assert abs(differing - 2 * 0.3 * 0.7) < 5 * np.sqrt(0.42 * 0.58 / first.size)  # as of independent masks


def test_the_draws_for_gpus_are_independent():
    """Bytes, pairs at every distance within rows, neighbouring rows, places and groups: all within five standard
    deviations of what independent draws give."""
    shape = [4, 3, 512, 384]

    @tf.function(jit_compile=True, autograph=False)
    def drawn(place, group):
        return ops_gpu.uniform(tf.constant(shape), Dropout(0.1, FOLDED, place, group=group))

    numbers = drawn(4, 0).numpy()
    outside = ops_gpu.uniform(tf.constant(shape), Dropout(0.1, FOLDED, 4))
    np.testing.assert_array_equal(outside, numbers)  # with and without XLA
    counts = np.bincount((numbers >> 24).ravel() + 128, minlength=256)
    expected = numbers.size / 256
    assert abs(((counts - expected) ** 2).sum() / expected - 255) < 5 * np.sqrt(2 * 255)  # chi squared
    share = 26 / 256
    signs = [(x.numpy() >> 24 > 127 - 26) - share for x in (drawn(4, 0), drawn(5, 0), drawn(4, 1))]
    first, deviation = signs[0].reshape(-1, shape[-1]), share * (1 - share)
    power = np.abs(np.fft.rfft(first, n=2 * shape[-1])) ** 2
    pairs = np.fft.irfft(power.sum(0))[1 : shape[-1]] / deviation
    assert (np.abs(pairs) < 5 * np.sqrt(len(first) * np.arange(shape[-1] - 1, 0, -1))).all()
    for distance in (1, 2, 512, 3 * 512):
        assert abs((first[distance:] * first[:-distance]).sum()) < 5 * deviation * np.sqrt(first[distance:].size)
    for other in signs[1:]:
        assert abs((signs[0] * other).sum()) < 5 * deviation * np.sqrt(other.size)


@pytest.mark.parametrize(("rate", "dtype"), [(0.1, tf.int8), (0.01, tf.int16)])
def test_the_draws_are_those_of_tensorflows_generator(rate, dtype):
    """The seed of a place is what TensorFlow folds the place into the key."""
    for place in (0, 36):
        seed = tf.random.experimental.stateless_fold_in(KEY, place)
        words = tf.random.stateless_uniform([100], seed, minval=None, maxval=None, dtype=tf.uint64)
        draws = Dropout(rate, FOLDED, place).draws([3, 5, 7]).numpy()
        assert draws.tobytes() == tf.bitcast(words, dtype).numpy().tobytes()[: draws.nbytes]
        assert draws.dtype == dtype.as_numpy_dtype


def test_it_can_be_off():
    x = tf.ones([64, 65])
    for off in (Dropout(0.3, None, 4), Dropout(0.0, FOLDED, 4)):
        assert off(x) is x
        assert off.scale == 1
    np.testing.assert_array_equal(Dropout(1 / 200_000, FOLDED, 4)(x), x)  # rounds to a share of 0


def test_the_gradient_is_zero_where_the_mask_is():
    x = tf.random.stateless_normal([50, 41], [1, 2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = Dropout(0.4, FOLDED, 0)(x)
    gradient = tape.gradient(y, x).numpy()
    np.testing.assert_array_equal(gradient == 0, y.numpy() == 0)
    assert len(np.unique(gradient)) == 2


def test_every_place_of_the_model_has_a_mask_of_its_own(goldens, monkeypatch):
    """The places of Google's dropouts: embeddings, then attention, attention output and output of each layer, then
    the pooled vector; none twice."""
    model, _, inputs = golden(goldens, "classifier_gelu")
    places, draws = [], Dropout.draws

    def record(self, shape=None):
        places.append((self.place, len(self.extent.shape if shape is None else shape), self.rate))
        return draws(self, shape)

    monkeypatch.setattr(Dropout, "draws", record)
    with_key, without = model(inputs, dropout_key=KEY), model(inputs)
    recorded = list(places)
    assert [place for place, _, _ in recorded] == list(range(1 + 3 * 2 + 1))
    assert [rank for _, rank, _ in recorded] == [2, 1, 2, 2, 1, 2, 2, 2]
    assert all(rate == 0.1 for _, _, rate in recorded)
    assert error(with_key, without) > 1e-3
    np.testing.assert_array_equal(model(inputs, dropout_key=KEY), with_key)
