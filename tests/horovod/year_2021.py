"""The shape of Horovod 0.23's examples of process sets: each set of ranks trains a model of its
own."""

import tensorflow as tf
from synthetic import digits, fingerprint, perceptron, report

import horovod.tensorflow as hvd

hvd.init(process_sets="dynamic")
own_set = None
for first in range(hvd.size()):
    process_set = hvd.add_process_set([first])
    if process_set.included():
        own_set = process_set
assert own_set.rank() == 0 and own_set.size() == 1
images, labels = digits(64, seed=hvd.rank())
model = perceptron()
loss = tf.losses.SparseCategoricalCrossentropy()
opt = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1), process_set=own_set)
for start in range(0, 64, 16):
    with tf.GradientTape() as tape:
        value = loss(labels[start : start + 16], model(images[start : start + 16], training=True))
    grads = tape.gradient(value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
of_ranks = hvd.allgather_object(
    fingerprint(model.get_weights()), None, "weights", hvd.global_process_set
)
assert of_ranks[0] != of_ranks[1]
report(hvd.rank(), "year_2021", of_ranks=of_ranks)
