"""Trains toys with hvd on all ranks in several ways, and prints what they end with; one rank is the referee."""

import json
import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import tensorflow as tf

import ringbert.horovod as hvd
from ringbert.horovod import gradients

GLOBAL_BATCH, STEPS = 24, 5
keras.config.set_floatx("float64")


def make_model(seed: int) -> keras.Model:
    """Its first layer gets ids, so that it has a sparse gradient; each rank begins with other weights."""
    start = keras.initializers.RandomNormal(seed=seed)
    ids = keras.Input([3], dtype="int32")
    hidden = keras.layers.Embedding(50, 4, embeddings_initializer=start)(ids)
    hidden = keras.layers.Flatten()(hidden)
    hidden = keras.layers.Dense(8, activation="tanh", kernel_initializer=start)(hidden)
    return keras.Model(ids, keras.layers.Dense(1, kernel_initializer=start)(hidden))


def make_data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(5)
    return generator.integers(0, 50, [GLOBAL_BATCH * STEPS, 3]).astype(np.int32), generator.normal(
        size=[GLOBAL_BATCH * STEPS, 1]
    )


def shares(sizes: list[int]) -> tf.data.Dataset:
    """Batches of this rank: of each global batch the rows that `sizes` give it."""
    x, y = make_data()
    start, rows = sum(sizes[: hvd.rank()]), sizes[hvd.rank()]
    batches = [slice(n * GLOBAL_BATCH + start, n * GLOBAL_BATCH + start + rows) for n in range(STEPS)]

    def generate():
        for batch in batches:
            yield x[batch], y[batch]

    signature = (tf.TensorSpec([None, 3], tf.int32), tf.TensorSpec([None, 1], tf.float64))
    return tf.data.Dataset.from_generator(generate, output_signature=signature)


def even() -> list[int]:
    return [GLOBAL_BATCH // hvd.size()] * hvd.size()


def uneven() -> list[int]:
    return [GLOBAL_BATCH] if hvd.size() == 1 else [5, 19] if hvd.size() == 2 else [1, 20, 3]


def by_fit(optimizer: keras.optimizers.Optimizer, sizes: list[int], **options) -> dict[str, list[float]]:
    model = make_model(seed=1 + hvd.rank())
    model.compile(hvd.DistributedOptimizer(optimizer, **options), "mse", metrics=["mae"])
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    history = model.fit(shares(sizes), epochs=2, callbacks=callbacks, verbose=0)
    return {"weights": flat(model), "losses": history.history["loss"]}


def by_fit_with_gathered_slices() -> dict[str, list[float]]:
    """As with a table that is too large to be summed dense; ids repeat within and among ranks."""
    before, gradients.MOST_DENSE_BYTES = gradients.MOST_DENSE_BYTES, 0
    try:
        return by_fit(keras.optimizers.Adam(0.01), even())
    finally:
        gradients.MOST_DENSE_BYTES = before


def by_loop(compiles: bool) -> dict[str, list[float]]:
    model, optimizer = make_model(seed=1 + hvd.rank()), keras.optimizers.SGD(0.1, momentum=0.9)

    def step(x, y, is_first):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        tape = hvd.DistributedGradientTape(tape)
        means = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(means, model.trainable_variables, strict=True))
        if is_first:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables, root_rank=0)
        return loss

    step = tf.function(step) if compiles else step
    hvd.broadcast_variables(model.variables, root_rank=0)
    for number, (x, y) in enumerate(shares(even())):
        step(x, y, number == 0)
    return {"weights": flat(model)}


def with_scaled_loss() -> dict[str, list[float]]:
    """As mixed_float16 does; the loss scale of all ranks stays the same though one rank's gradient overflows."""
    model = make_model(seed=1)
    optimizer = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables, root_rank=0)
    for number, (x, y) in enumerate(shares(even())):
        factor = np.inf if number == 2 and hvd.rank() == hvd.size() - 1 else 1.0
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_mean((model(x) - y) ** 2) * factor)
        means = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(means, model.trainable_variables, strict=True))
    return {"weights": flat(model), "scale": [float(optimizer.dynamic_scale)]}


def flat(model: keras.Model) -> list[float]:
    """Its weights; the same bits on all ranks."""
    weights = np.concatenate([np.ravel(weight) for weight in model.get_weights()])
    assert len({values.tobytes() for values in hvd.allgather_object(weights)}) == 1
    return weights.tolist()


def main() -> None:
    hvd.init()
    sgd = keras.optimizers.SGD
    results = {
        "SGD": by_fit(sgd(0.1), even()),
        "Adam": by_fit(keras.optimizers.Adam(0.01), even()),
        "clipped": by_fit(keras.optimizers.Adam(0.01, global_clipnorm=0.1), even()),
        "uneven": by_fit(sgd(0.1), uneven()),
        "accumulated": by_fit(sgd(0.1), even(), backward_passes_per_step=2, average_aggregated_gradients=True),
        "accumulated uneven": by_fit(sgd(0.1), uneven(), backward_passes_per_step=2),
        "accumulated by Keras": by_fit(sgd(0.1, gradient_accumulation_steps=2), even()),
        "gathered": by_fit_with_gathered_slices(),
        "dense": by_fit(sgd(0.1), even(), sparse_as_dense=True),
        "summed": by_fit(sgd(0.1 / hvd.size()), even(), op=hvd.Sum),
        "summed and accumulated": by_fit(sgd(0.1 / hvd.size()), even(), op=hvd.Sum, backward_passes_per_step=2),
        "summed and averaged": by_fit(
            sgd(0.1 / hvd.size()),
            even(),
            op=hvd.Sum,
            backward_passes_per_step=2,
            average_aggregated_gradients=True,
        ),
        "loop": by_loop(compiles=True),
        "eager": by_loop(compiles=False),
        "scaled loss": with_scaled_loss(),
    }
    if hvd.rank() == 0:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
