"""float16 with loss scaling: in `fit`, and with both orders of wrappers."""

import numpy as np
import tensorflow as tf
from synthetic import digits, perceptron, report

import horovod.tensorflow.keras as hvd

hvd.init()
tf.keras.mixed_precision.set_global_policy("mixed_float16")
images, labels = digits(256, seed=hvd.rank())
scaled = tf.keras.mixed_precision.LossScaleOptimizer
for opt in (
    hvd.DistributedOptimizer(tf.optimizers.Adam(0.01)),  # scaled by `compile`
    scaled(hvd.DistributedOptimizer(tf.optimizers.Adam(0.01))),
    hvd.DistributedOptimizer(scaled(tf.optimizers.Adam(0.01))),
):
    model = perceptron()
    model.compile(loss="sparse_categorical_crossentropy", optimizer=opt, metrics=["accuracy"])
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    history = model.fit(images, labels, batch_size=16, epochs=5, verbose=0, callbacks=callbacks).history
    assert history["loss"][-1] < 0.7 * history["loss"][0], (opt, history)
    weights = model.get_weights()[0]
    for gathered in hvd.allgather(weights[None]).numpy():
        np.testing.assert_array_equal(gathered, weights)
tf.keras.mixed_precision.set_global_policy("float32")
report(hvd.rank(), "mixed_precision", learned=history["accuracy"][-1] > 0.7)
