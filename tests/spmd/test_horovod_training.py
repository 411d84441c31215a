"""`ringbert.horovod` trains on several ranks as plain Keras does on one, on the same global
batches."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from harness.models import same_weights

from ringbase.errors import InputError

GLOBAL_BATCH, STEPS = 24, 4
# Sums over ranks round in another order; twelve digits of float64 are more than that changes in
# eight steps.
TOLERANCE = {"rtol": 1e-12, "atol": 1e-14}
sgd, RANKS_DIFFER = keras.optimizers.SGD, tf.errors.FailedPreconditionError
pytestmark = pytest.mark.usefixtures("float64")


def make_model(seed=1):
    """Its first layer gets ids, so that it has a sparse gradient."""
    start = keras.initializers.RandomNormal(seed=seed)
    ids = keras.Input([3], dtype="int32")
    hidden = keras.layers.Embedding(50, 4, embeddings_initializer=start)(ids)
    hidden = keras.layers.Flatten()(hidden)
    hidden = keras.layers.Dense(8, activation="tanh", kernel_initializer=start)(hidden)
    return keras.Model(ids, keras.layers.Dense(1, kernel_initializer=start)(hidden))


def share(size=1, rank=0):
    """Of each global batch the rows of one of `size` ranks."""
    generator = np.random.default_rng(5)
    x = generator.integers(0, 50, [STEPS, GLOBAL_BATCH, 3]).astype(np.int32)
    y = generator.normal(size=[STEPS, GLOBAL_BATCH, 1])
    rows = slice(rank * GLOBAL_BATCH // size, (rank + 1) * GLOBAL_BATCH // size)
    return tf.data.Dataset.from_tensor_slices((x[:, rows], y[:, rows]))


@pytest.mark.ranks(2, 3)
def test_fit(hvd):
    model, alone = make_model(seed=1 + hvd.rank()), make_model()
    adam = [keras.optimizers.Adam(0.01, global_clipnorm=0.1) for _ in range(2)]
    model.compile(hvd.DistributedOptimizer(adam[0]), "mse")
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    callbacks = [first, hvd.callbacks.MetricAverageCallback()]
    own = share(hvd.size(), hvd.rank())
    losses = []
    history = model.fit(own, epochs=2, callbacks=callbacks, shuffle=False, verbose=0).history
    for x, y in share().repeat(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((alone(x) - y) ** 2)
        # Dense, because Keras 3 takes the squares of slices one by one when ids repeat.
        gradients = [
            tf.convert_to_tensor(own) for own in tape.gradient(loss, alone.trainable_variables)
        ]
        adam[1].apply(gradients, alone.trainable_variables)
        losses.append(loss.numpy())
    np.testing.assert_allclose(same_weights(hvd, model), same_weights(hvd, alone), **TOLERANCE)
    of_epochs = np.reshape(losses, [2, STEPS]).mean(axis=1)
    np.testing.assert_allclose(history["loss"], of_epochs, **TOLERANCE)


@pytest.mark.parametrize("is_inside", [True, False])
def test_one_overflow_halves_the_loss_scale_of_all_ranks(is_inside, hvd):
    """As with mixed_float16; a step in which one rank's gradient overflows changes nothing."""
    wrappers = [keras.optimizers.LossScaleOptimizer, hvd.DistributedOptimizer]
    inner, outer = wrappers[::-1] if is_inside else wrappers
    model, optimizer = make_model(), outer(inner(sgd(0.1)))
    model.compile(optimizer, "mse")
    for number, (x, y) in enumerate(share(hvd.size(), hvd.rank())):
        before = same_weights(hvd, model)
        model.train_on_batch(x, y * np.inf if number == 2 and hvd.rank() == hvd.size() - 1 else y)
        assert np.array_equal(same_weights(hvd, model), before) == (number == 2)
    assert float(optimizer.dynamic_scale) == 2.0**14


class Rounding:
    """A compressor of one's own, with the two functions that Horovod's have."""

    @staticmethod
    def compress(tensor):
        return tf.cast(tf.round(tensor), tf.int32), tensor.dtype

    @staticmethod
    def decompress(tensor, dtype):
        return tf.cast(tensor, dtype) / 2


def test_a_compressor_of_ones_own_is_used_for_tensors_and_gradients(hvd):
    start = hvd.rank() + 1.4
    exact = sum(range(1, hvd.size() + 1)) / 2  # of 1.4, 2.4 … the whole numbers
    total = hvd.allreduce(start, op=hvd.Sum, compression=Rounding)
    assert float(total) == exact
    variable = tf.Variable(1.0)

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            loss = start * variable
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum, compression=Rounding)
        return tape.gradient(loss, variable)

    assert float(gradient()) == exact


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("mean", [0.0, 1.0, 100.0, 1e3, 1e4])
@pytest.mark.parametrize("shape", [[6], [3, 5, 6]])
def test_moments_of_all_ranks_at_any_mean(mean, shape, hvd):
    """All ranks' batches count the same, whatever their sizes. The referee is float64."""
    draw = np.random.default_rng(3)
    layer = hvd.SyncBatchNormalization(dtype="float32", epsilon=1e-5)
    batches = [
        draw.normal(mean + rank, 0.1 + rank, [8 + 4 * rank, *shape]) for rank in range(hvd.size())
    ]
    batches = [batch.astype(np.float32) for batch in batches]
    own, axes = tf.constant(batches[hvd.rank()]), tuple(range(len(shape)))
    found = layer(own, training=True).numpy()
    exact = [batch.astype(np.float64) for batch in batches]
    means = np.stack([batch.mean(axes) for batch in exact])
    variance = np.mean([batch.var(axes) for batch in exact], axis=0) + means.var(axis=0)
    deviation = np.sqrt(variance + 1e-5)
    on_paper = (exact[hvd.rank()] - means.mean(axis=0)) / deviation
    # Keras subtracts numbers of the size mean / deviation, and float32 has 24 bits; sums of up to
    # 240 numbers lose some more.
    tolerance = 2.0**-24 * 32 * (1 + mean / deviation.min())
    np.testing.assert_allclose(found, on_paper, rtol=1e-5, atol=tolerance)
    moving = 0.99 + 0.01 * variance
    np.testing.assert_allclose(layer.moving_variance, moving, rtol=1e-5, atol=0.01 * tolerance)


def test_the_gradient_through_moments_is_that_of_one_rank(hvd):
    draw = np.random.default_rng(3)
    x, weights = draw.normal(50, 2, [8, 4]), draw.normal(size=[8, 4])
    rows = slice(hvd.rank(), None, hvd.size())

    def gradient(layer, rows):
        with tf.GradientTape() as tape:
            own = tf.constant(x[rows])
            tape.watch(own)
            loss = tf.reduce_sum(layer(own, training=True) ** 3 * weights[rows])
        return tape.gradient(loss, own)

    alone = gradient(keras.layers.BatchNormalization(), slice(None))[rows]
    found = gradient(hvd.SyncBatchNormalization(), rows)
    np.testing.assert_allclose(found, alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("wrong", "kind", "named"),
    [
        (
            lambda hvd: hvd.allreduce([1.0], name=f"of rank {hvd.rank()}"),
            RANKS_DIFFER,
            "of rank 0.*of rank 1",
        ),
        (
            lambda hvd: hvd.allreduce(np.ones(2 + hvd.rank())),
            RANKS_DIFFER,
            r"rank 0: .*2,.*rank 1: .*3,",
        ),
        (
            lambda hvd: hvd.allreduce([1.0]) if hvd.rank() else hvd.broadcast([1.0], 0),
            RANKS_DIFFER,
            "allreduce",
        ),
        (lambda hvd: hvd.DistributedOptimizer(sgd(), op=hvd.Adasum), NotImplementedError, "Adasum"),
        (
            lambda hvd: hvd.allreduce(tf.IndexedSlices([[1.0]], [0]), op=hvd.Max),
            NotImplementedError,
            "sparse",
        ),
    ],
)
def test_a_wrong_use_is_refused_on_every_rank(wrong, kind, named, hvd):
    """With an error of the type that Horovod raises."""
    with pytest.raises(kind, match=named) as error:
        wrong(hvd)
    assert isinstance(error.value, InputError)
    assert "\n" not in str(error.value)
    assert hvd.allreduce(1.0, op=hvd.Sum).numpy() == hvd.size()
