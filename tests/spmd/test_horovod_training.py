"""`ringbert.horovod` trains on several ranks as plain Keras does on one, on the same global batches."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringbase.errors import InputError

GLOBAL_BATCH, STEPS = 24, 4
# Sums over ranks round in another order; twelve digits of float64 are more than that changes in eight steps.
TOLERANCE = {"rtol": 1e-12, "atol": 1e-14}
sgd = keras.optimizers.SGD
RANKS_DIFFER = tf.errors.FailedPreconditionError
SLICES = tf.IndexedSlices([[1.0]], [0])


@pytest.fixture(autouse=True)
def float64():
    before, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before)
    keras.config.set_dtype_policy(policy)


def make_model(seed: int = 1) -> keras.Model:
    """Its first layer gets ids, so that it has a sparse gradient."""
    start = keras.initializers.RandomNormal(seed=seed)
    ids = keras.Input([3], dtype="int32")
    hidden = keras.layers.Embedding(50, 4, embeddings_initializer=start)(ids)
    hidden = keras.layers.Flatten()(hidden)
    hidden = keras.layers.Dense(8, activation="tanh", kernel_initializer=start)(hidden)
    return keras.Model(ids, keras.layers.Dense(1, kernel_initializer=start)(hidden))


def share(size: int = 1, rank: int = 0) -> tf.data.Dataset:
    """Of each global batch the rows of one of `size` ranks."""
    generator = np.random.default_rng(5)
    x = generator.integers(0, 50, [STEPS, GLOBAL_BATCH, 3]).astype(np.int32)
    y = generator.normal(size=[STEPS, GLOBAL_BATCH, 1])
    rows = slice(rank * GLOBAL_BATCH // size, (rank + 1) * GLOBAL_BATCH // size)
    return tf.data.Dataset.from_tensor_slices((x[:, rows], y[:, rows]))


def flat(model: keras.Model) -> np.ndarray:
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


def plain(optimizer: keras.optimizers.Optimizer) -> tuple[np.ndarray, list[float]]:
    """Keras without ranks: the weights, and the mean loss of each epoch.

    Gradients are made dense, because Keras 3 takes the squares of slices one by one when ids repeat.
    """
    model, losses = make_model(), []
    for _ in range(2):
        of_epoch = []
        for x, y in share():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            gradients = map(tf.convert_to_tensor, tape.gradient(loss, model.trainable_variables))
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            of_epoch.append(loss.numpy())
        losses.append(np.mean(of_epoch))
    return flat(model), losses


def assert_same(hvd, weights: np.ndarray, expected: np.ndarray) -> None:
    assert len({values.tobytes() for values in hvd.allgather_object(weights)}) == 1, "the ranks' weights differ"
    np.testing.assert_allclose(weights, expected, **TOLERANCE)


CASES = {
    "Adam": lambda: keras.optimizers.Adam(0.01),
    "clipped": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1),
    "accumulated": lambda: sgd(0.1, gradient_accumulation_steps=2),
}


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("case", CASES)
def test_fit(case, hvd):
    model = make_model(seed=1 + hvd.rank())
    model.compile(hvd.DistributedOptimizer(CASES[case]()), "mse", metrics=["mae"])
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    history = model.fit(
        share(hvd.size(), hvd.rank()), epochs=2, callbacks=callbacks, shuffle=False, verbose=0
    ).history
    weights, losses = plain(CASES[case]())
    assert_same(hvd, flat(model), weights)
    np.testing.assert_allclose(history["loss"], losses, **TOLERANCE)


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize("compiles", [True, False])
def test_a_loop_with_a_tape(compiles, hvd):
    model, optimizer = make_model(seed=1 + hvd.rank()), sgd(0.1, momentum=0.9)

    def step(x, y, is_first):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        means = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(means, model.trainable_variables, strict=True))
        if is_first:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables, root_rank=0)

    step = tf.function(step) if compiles else step
    hvd.broadcast_variables(model.variables, root_rank=0)
    for _ in range(2):
        for number, (x, y) in enumerate(share(hvd.size(), hvd.rank())):
            step(x, y, number == 0)
    assert_same(hvd, flat(model), plain(sgd(0.1, momentum=0.9))[0])


def test_one_overflow_halves_the_loss_scale_of_all_ranks(hvd):
    """As with mixed_float16; a step in which one rank's gradient overflows changes nothing."""
    model = make_model()
    optimizer = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(sgd(0.1)))
    optimizer.build(model.trainable_variables)
    for number, (x, y) in enumerate(share(hvd.size(), hvd.rank())):
        before = flat(model)
        factor = np.inf if number == 2 and hvd.rank() == hvd.size() - 1 else 1.0
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_mean((model(x) - y) ** 2) * factor)
        means = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(means, model.trainable_variables, strict=True))
        assert np.array_equal(flat(model), before) == (number == 2)
    assert float(optimizer.dynamic_scale) == 2.0**14


def test_plain_keras_loads_what_was_saved_and_hvd_trains_on(hvd, session_folder):
    path = hvd.broadcast_object(session_folder) / "model.keras"
    x, y = np.ones([40, 5]), np.random.default_rng(hvd.rank()).normal(size=[40, 1])
    model = keras.Sequential([keras.Input([5]), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(x, y, batch_size=10, shuffle=False, verbose=0, callbacks=callbacks)
    if hvd.rank() == 0:
        model.save(path)
        loaded = keras.models.load_model(path)
        assert type(loaded.optimizer) is keras.optimizers.Adam
        assert int(loaded.optimizer.iterations) == 4
        for ours, theirs in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
            np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    hvd.barrier()
    again = hvd.load_model(path)
    again.fit(x, y, batch_size=10, shuffle=False, verbose=0, callbacks=callbacks)
    assert int(again.optimizer.iterations) == 8
    assert len({values.tobytes() for values in hvd.allgather_object(flat(again))}) == 1


@pytest.mark.parametrize(
    ("wrong", "kind", "named"),
    [
        (lambda hvd: hvd.allreduce([1.0], name=f"of rank {hvd.rank()}"), RANKS_DIFFER, "of rank 0.*of rank 1"),
        (
            lambda hvd: hvd.allreduce(np.ones(2 + hvd.rank())),
            RANKS_DIFFER,
            "disagree about part 2",
        ),
        (lambda hvd: hvd.allreduce([1.0]) if hvd.rank() else hvd.broadcast([1.0], 0), RANKS_DIFFER, "allreduce"),
        (lambda hvd: hvd.DistributedOptimizer(sgd(), op=hvd.Adasum), NotImplementedError, "Adasum"),
        (lambda hvd: hvd.allreduce(SLICES, op=hvd.Max), NotImplementedError, "sparse"),
        (lambda hvd: hvd.global_process_set, NotImplementedError, "process_set"),
        (lambda hvd: hvd.broadcast([1.0], 7), ValueError, "root_rank"),
    ],
)
def test_a_wrong_use_is_refused_on_every_rank(wrong, kind, named, hvd):
    """With an error of the type that Horovod raises."""
    with pytest.raises(kind, match=named) as error:
        wrong(hvd)
    assert isinstance(error.value, InputError)
    assert "\n" not in str(error.value)
    assert hvd.allreduce(1.0, op=hvd.Sum).numpy() == hvd.size()
