"""The options of the tape and of the optimizer: compression, Sum, predivide factor, groups, dense
embeddings, and backward_passes_per_step, with which gradients of several batches are added, or
averaged, before they travel; and `join`, for ranks with different numbers of batches."""

import numpy as np
import tensorflow as tf
from synthetic import digits, fingerprint, perceptron, report, sentences, set_weights

import horovod.tensorflow as hvd

hvd.init()
images, labels = digits(64, seed=hvd.rank())
loss = tf.losses.SparseCategoricalCrossentropy()
numbers = {}


def trained(model, opt, options):
    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            value = loss(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape, **options)
        opt.apply_gradients(
            zip(tape.gradient(value, model.trainable_variables), model.trainable_variables)
        )

    for start in range(0, 64, 16):
        step(images[start : start + 16], labels[start : start + 16])
    return fingerprint(model.get_weights())


for name, options in {
    "plain": {},
    "sum": {"op": hvd.Sum},
    "predivided": {"gradient_predivide_factor": 2.0},
    "listed": {"groups": 2},
    "fp16": {"compression": hvd.Compression.fp16},
}.items():
    numbers[name] = trained(perceptron(), tf.keras.optimizers.SGD(0.01), options)
numbers["adam"] = trained(perceptron(), tf.keras.optimizers.Adam(0.01), {})

for name, sparse_as_dense in {"sparse": False, "dense": True}.items():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Embedding(50, 4),
            tf.keras.layers.GlobalAveragePooling1D(),
            tf.keras.layers.Dense(2, activation="softmax"),
        ]
    )
    model.build((None, 12))
    set_weights(model)
    opt = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.5), sparse_as_dense=sparse_as_dense)
    model.compile(loss="sparse_categorical_crossentropy", optimizer=opt)
    model.fit(*sentences(64, seed=hvd.rank()), batch_size=16, epochs=2, shuffle=False, verbose=0)
    numbers[name] = fingerprint(model.get_weights())

for name, options in {
    "summed": {"backward_passes_per_step": 2},
    "averaged": {"backward_passes_per_step": 2, "average_aggregated_gradients": True},
    "third": {"backward_passes_per_step": 3, "op": hvd.Sum},
}.items():
    model = perceptron()
    opt = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.05), **options)
    model.compile(loss="sparse_categorical_crossentropy", optimizer=opt)
    model.fit(*digits(96, seed=hvd.rank()), batch_size=16, epochs=2, shuffle=False, verbose=0)
    numbers[name] = fingerprint(model.get_weights())
    numbers[name + " iterations"] = int(model.optimizer.iterations)

# Horovod counts a rank that has joined as one with gradients of 0. RingBERT leaves it out of the
# average, so that the weights differ.
model, opt = perceptron(), tf.optimizers.SGD(0.1)
for start in range(0, 32 * (1 + hvd.rank()), 16):  # 2 batches on rank 0, 4 on rank 1
    with tf.GradientTape() as tape:
        value = loss(labels[start : start + 16], model(images[start : start + 16], training=True))
    tape = hvd.DistributedGradientTape(tape)
    opt.apply_gradients(
        zip(tape.gradient(value, model.trainable_variables), model.trainable_variables)
    )
numbers["last"] = int(hvd.join())
assert numbers["last"] == 1, numbers
hvd.broadcast_variables(model.variables, root_rank=1)
for gathered in hvd.allgather([fingerprint(model.get_weights())]):
    np.testing.assert_array_equal(gathered, np.float32(fingerprint(model.get_weights())))
report(hvd.rank(), "options", **numbers)
