"""The shape of Horovod's tensorflow2_keras_mnist.py: `fit` with the wrapped optimizer and the callbacks."""

import tempfile

import tensorflow as tf
from synthetic import digits, fingerprint, report, set_weights

import horovod.tensorflow.keras as hvd

hvd.init()
dataset = tf.data.Dataset.from_tensor_slices(digits(512))
dataset = dataset.shard(hvd.size(), hvd.rank()).repeat().batch(16)
model = tf.keras.Sequential([
    tf.keras.layers.Conv2D(4, [3, 3], activation="relu", input_shape=(8, 8, 1)),
    tf.keras.layers.MaxPooling2D(pool_size=(2, 2)),
    tf.keras.layers.Flatten(),
    tf.keras.layers.Dense(16, activation="relu"),
    tf.keras.layers.Dense(10, activation="softmax"),
])  # fmt: skip
set_weights(model)
scaled_lr = 0.01 * hvd.size()
opt = tf.optimizers.SGD(scaled_lr)
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)
model.compile(loss=tf.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=["accuracy"],
              experimental_run_tf_function=False)  # fmt: skip
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(
        initial_lr=scaled_lr, warmup_epochs=3, momentum_correction=False, verbose=1
    ),
]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(tempfile.mkdtemp() + "/checkpoint-{epoch}.h5"))
verbose = 2 if hvd.rank() == 0 else 0
history = model.fit(dataset, steps_per_epoch=16 // hvd.size(), callbacks=callbacks, epochs=5, verbose=verbose)
numbers = {name: history.history[name] for name in ("loss", "lr", "accuracy")}
report(hvd.rank(), "fit", weights=fingerprint(model.get_weights()), **numbers)
