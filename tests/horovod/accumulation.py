"""backward_passes_per_step in `fit`: gradients of several batches are added, or averaged, before they travel."""

import tensorflow as tf
from synthetic import digits, fingerprint, perceptron, report

import horovod.tensorflow.keras as hvd

hvd.init()
numbers = {}
for name, options in {
    "summed": {"backward_passes_per_step": 2},
    "averaged": {"backward_passes_per_step": 2, "average_aggregated_gradients": True},
    "third": {"backward_passes_per_step": 3, "op": hvd.Sum},
}.items():
    model = perceptron()
    opt = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.05), **options)
    model.compile(loss="sparse_categorical_crossentropy", optimizer=opt)
    images, labels = digits(96, seed=hvd.rank())
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.fit(images, labels, batch_size=16, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    numbers[name] = fingerprint(model.get_weights())
    numbers[name + " iterations"] = int(model.optimizer.iterations)
report(hvd.rank(), "accumulation", **numbers)
