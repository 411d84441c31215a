"""The options of the tape and of the optimizer: compression, Sum, predivide factor, groups, dense embeddings, and
backward_passes_per_step, with which gradients of several batches are added, or averaged, before they travel."""

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
        opt.apply_gradients(zip(tape.gradient(value, model.trainable_variables), model.trainable_variables))

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
    model = tf.keras.Sequential([
        tf.keras.layers.Embedding(50, 4),
        tf.keras.layers.GlobalAveragePooling1D(),
        tf.keras.layers.Dense(2, activation="softmax"),
    ])  # fmt: skip
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
report(hvd.rank(), "options", **numbers)
