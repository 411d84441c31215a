"""float16 with loss scaling: in `fit`, and in the published elastic example's order of wrappers."""

import numpy as np
import tensorflow as tf
from synthetic import digits, report, set_weights

import horovod.tensorflow.keras as hvd

hvd.init()
tf.keras.mixed_precision.set_global_policy("mixed_float16")
images, labels = digits(256, seed=hvd.rank())


def model_of():
    model = tf.keras.Sequential([
        tf.keras.layers.Flatten(input_shape=(8, 8, 1)),
        tf.keras.layers.Dense(16, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax", dtype="float32"),
    ])  # fmt: skip
    set_weights(model)
    return model


for wraps in ("optimizer", "scaled optimizer"):
    opt = tf.optimizers.Adam(0.01)
    if wraps == "scaled optimizer":
        opt = tf.keras.mixed_precision.LossScaleOptimizer(hvd.DistributedOptimizer(opt))
    else:
        opt = hvd.DistributedOptimizer(opt)
    model = model_of()
    model.compile(loss="sparse_categorical_crossentropy", optimizer=opt, metrics=["accuracy"])
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    history = model.fit(images, labels, batch_size=16, epochs=5, verbose=0, callbacks=callbacks).history
    assert history["loss"][-1] < 0.7 * history["loss"][0], (wraps, history)
    weights = model.get_weights()[0]
    for gathered in hvd.allgather(weights[None]).numpy():
        np.testing.assert_array_equal(gathered, weights)
tf.keras.mixed_precision.set_global_policy("float32")
report(hvd.rank(), "mixed_precision", learned=history["accuracy"][-1] > 0.7)
