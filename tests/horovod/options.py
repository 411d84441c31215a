"""The options of the tape and of the optimizer: compression, Sum, predivide factor, groups, dense embeddings."""

import tensorflow as tf
from synthetic import digits, fingerprint, perceptron, report, sentences, set_weights

import horovod.tensorflow as hvd

hvd.init()
images, labels = digits(64, seed=hvd.rank())
numbers = {}


def trained(tape_options, optimizer="SGD", steps=4):
    model = perceptron()
    opt = getattr(tf.keras.optimizers, optimizer)(0.01)
    loss = tf.losses.SparseCategoricalCrossentropy()
    if tape_options.get("groups") == "all":
        tape_options["groups"] = [model.trainable_variables[:2], model.trainable_variables[2:]]

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            value = loss(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape, **tape_options)
        opt.apply_gradients(zip(tape.gradient(value, model.trainable_variables), model.trainable_variables))
        return value

    for number in range(steps):
        rows = slice(16 * number, 16 * (number + 1))
        step(images[rows], labels[rows])
    return fingerprint(model.get_weights())


numbers["plain"] = trained({})
numbers["adam"] = trained({}, "Adam")
numbers["sum"] = trained({"op": hvd.Sum})
numbers["predivided"] = trained({"gradient_predivide_factor": 2.0})
numbers["listed"] = trained({"groups": "all"})
numbers["fp16"] = trained({"compression": hvd.Compression.fp16})

ids, truth = sentences(64, seed=hvd.rank())
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
    model.fit(ids, truth, batch_size=16, epochs=2, shuffle=False, verbose=0)
    numbers[name] = fingerprint(model.get_weights())
report(hvd.rank(), "options", **numbers)
