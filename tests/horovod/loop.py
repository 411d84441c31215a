"""The shape of Horovod's tensorflow2_mnist.py: a step of one's own with DistributedGradientTape,
checkpoints."""

import tempfile

import numpy as np
import tensorflow as tf
from synthetic import digits, fingerprint, report, set_weights

import horovod.tensorflow as hvd

hvd.init()
dataset = tf.data.Dataset.from_tensor_slices(digits(512, seed=hvd.rank())).repeat().batch(16)
model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(4, [3, 3], activation="relu"),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
model.build((None, 8, 8, 1))
set_weights(model, seed=hvd.rank())  # the broadcast makes them equal
loss = tf.losses.SparseCategoricalCrossentropy()
opt = tf.optimizers.Adam(0.001 * hvd.size())
checkpoint = tf.train.Checkpoint(model=model, optimizer=opt)


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        loss_value = loss(labels, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables(), root_rank=0)
    return loss_value


losses = []
for batch, (images, labels) in enumerate(dataset.take(40 // hvd.size())):
    losses.append(float(training_step(images, labels, batch == 0)))
weights = model.get_weights()
for gathered in hvd.allgather(tf.constant([fingerprint(weights)])).numpy():
    np.testing.assert_array_equal(gathered, np.float32(fingerprint(weights)))
if hvd.rank() == 0:
    checkpoint.save(tempfile.mkdtemp() + "/checkpoint")
report(hvd.rank(), "loop", weights=fingerprint(weights), loss=losses)
