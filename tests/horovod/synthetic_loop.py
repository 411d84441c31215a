"""The shape of Horovod's tensorflow2_synthetic_benchmark.py: a compiled step that closes over its data, timeit."""

import timeit

import numpy as np
import tensorflow as tf
from synthetic import digits, fingerprint, report, set_weights

import horovod.tensorflow as hvd

hvd.init()
model = tf.keras.Sequential([
    tf.keras.layers.Conv2D(8, 3, input_shape=(8, 8, 1)),
    tf.keras.layers.BatchNormalization(),
    tf.keras.layers.GlobalAveragePooling2D(),
    tf.keras.layers.Dense(10, activation="softmax"),
])  # fmt: skip
set_weights(model)
opt = tf.optimizers.SGD(0.01)
data, target = (tf.constant(values) for values in digits(32, seed=hvd.rank()))


@tf.function
def benchmark_step(first_batch):
    compression = hvd.Compression.fp16
    with tf.GradientTape() as tape:
        probs = model(data, training=True)
        loss = tf.losses.sparse_categorical_crossentropy(target, probs)
    tape = hvd.DistributedGradientTape(tape, compression=compression)
    gradients = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(gradients, model.trainable_variables))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables(), root_rank=0)


def log(text):
    if hvd.rank() == 0:
        print(text)


with tf.device("CPU"):
    benchmark_step(first_batch=True)
    timeit.timeit(lambda: benchmark_step(first_batch=False), number=2)
    img_secs = []
    for x in range(3):
        time = timeit.timeit(lambda: benchmark_step(first_batch=False), number=2)
        img_secs.append(32 * 2 / time)
        log("Iter #%d: %.1f img/sec per CPU" % (x, img_secs[-1]))
    log("Total img/sec on %d CPU(s): %.1f" % (hvd.size(), hvd.size() * np.mean(img_secs)))
trained = [np.array(variable) for variable in model.trainable_variables]
report(hvd.rank(), "synthetic_loop", weights=fingerprint(trained))
