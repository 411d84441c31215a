"""`join`: ranks with different numbers of batches."""

import numpy as np
import tensorflow as tf
from synthetic import digits, fingerprint, report, set_weights

import horovod.tensorflow as hvd

hvd.init()
model = tf.keras.Sequential([tf.keras.layers.Flatten(input_shape=(8, 8, 1)), tf.keras.layers.Dense(10)])
set_weights(model)
opt = tf.optimizers.SGD(0.1)
loss = tf.losses.SparseCategoricalCrossentropy(from_logits=True)
images, labels = digits(16 * (3 + 2 * hvd.rank()), seed=hvd.rank())  # 3 batches on rank 0, 5 on rank 1
for start in range(0, len(images), 16):
    with tf.GradientTape() as tape:
        value = loss(labels[start : start + 16], model(images[start : start + 16], training=True))
    tape = hvd.DistributedGradientTape(tape)
    opt.apply_gradients(zip(tape.gradient(value, model.trainable_variables), model.trainable_variables))
last = int(hvd.join())
assert last == 1, last
hvd.broadcast_variables(model.variables, root_rank=last)
for gathered in hvd.allgather([fingerprint(model.get_weights())]):
    np.testing.assert_array_equal(gathered, np.float32(fingerprint(model.get_weights())))
# Horovod counts a rank that has joined as one with gradients of 0. RingBERT leaves it out of the average, so
# that the weights differ.
report(hvd.rank(), "uneven", last=last)
