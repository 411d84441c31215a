"""Layers whose gradients stay on their rank: PartialDistributedGradientTape, register_local_source."""

import numpy as np
import tensorflow as tf
from synthetic import digits, fingerprint, report, set_weights

import horovod.tensorflow as hvd

hvd.init()
images, labels = digits(16, seed=hvd.rank())
numbers = {}
for scales in (True, False):
    model = tf.keras.Sequential([
        tf.keras.layers.Flatten(input_shape=(8, 8, 1)),
        tf.keras.layers.Dense(8, activation="relu", name="shared"),
        tf.keras.layers.Dense(10, activation="softmax", name="own"),
    ])  # fmt: skip
    set_weights(model)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(labels, model(images)))
    tape = hvd.PartialDistributedGradientTape(
        tape, local_layers=[model.get_layer("own")], scale_local_gradients=scales
    )
    gradients = tape.gradient(loss, model.trainable_variables)
    numbers["scaled" if scales else "unscaled"] = fingerprint(gradient.numpy() for gradient in gradients)
    shared = hvd.allgather(tf.reshape(gradients[0], [1, -1]))
    np.testing.assert_array_equal(shared[0], shared[1])
    own = hvd.allgather(tf.reshape(gradients[2], [1, -1]))
    assert np.abs(own[0] - own[1]).max() > 0
report(hvd.rank(), "partial", **numbers)
