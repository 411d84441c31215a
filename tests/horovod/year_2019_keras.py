"""The shape of Horovod 0.19's tensorflow2_keras_mnist.py: compiled for Keras 2, arguments by their
positions, and a checkpoint in HDF5 from which it goes on."""

import os
import tempfile

import tensorflow as tf
from synthetic import digits, fingerprint, perceptron, report

import horovod.tensorflow.keras as hvd

hvd.init()
folder = hvd.broadcast_object(tempfile.mkdtemp(), 0, name="folder")
checkpoint = os.path.join(folder, "checkpoint-{epoch}.h5")
x, y = digits(128)
x, y = x[hvd.rank() :: hvd.size()], tf.one_hot(y[hvd.rank() :: hvd.size()], 10).numpy()
model = perceptron()
opt = tf.optimizers.Adam(0.001 * hvd.size())
opt = hvd.DistributedOptimizer(opt, "distributed", "", "", hvd.Compression.fp16)
model.compile(loss="mse", optimizer=opt, metrics=["mae"], experimental_run_tf_function=False)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(warmup_epochs=1, initial_lr=0.001 * hvd.size()),
]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(checkpoint))
options = {"batch_size": 16 // hvd.size(), "callbacks": callbacks, "shuffle": False, "verbose": 0}
model.fit(x, y, epochs=1, **options)
hvd.allreduce(0.0, name="barrier")
model = hvd.load_model(checkpoint.format(epoch=1))
assert type(model.optimizer).__name__ == "Adam" and len(model.optimizer.variables()) > 2
model.fit(x, y, epochs=2, initial_epoch=1, **options)
report(hvd.rank(), "year_2019_keras", weights=fingerprint(model.get_weights()))
