"""The shape of Horovod 0.18's tensorflow2_mnist.py, with an option for Adasum that is not taken,
and a condition that AutoGraph has to translate."""

import tensorflow as tf
from synthetic import digits, fingerprint, perceptron, report

import horovod.tensorflow as hvd

use_adasum = False
hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

images, labels = digits(128)
dataset = tf.data.Dataset.from_tensor_slices(
    (tf.cast(images[hvd.rank() :: hvd.size()], tf.float32), labels[hvd.rank() :: hvd.size()])
)
dataset = dataset.batch(16 // hvd.size())
model = perceptron()
loss = tf.losses.SparseCategoricalCrossentropy()
opt = tf.optimizers.SGD(0.1)


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = model(images, training=True)
        loss_value = loss(labels, probs)
    if loss_value > 100.0:  # a condition of the graph
        tf.print("the loss is large")
    # Horovod: add Horovod Distributed GradientTape.
    if use_adasum:
        tape = hvd.DistributedGradientTape(tape, op=hvd.Adasum)
    else:
        tape = hvd.DistributedGradientTape(tape, "", "", hvd.Compression.none, False, hvd.Average)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables(), root_rank=0)
    return loss_value


losses = []
for batch, (batch_images, batch_labels) in enumerate(dataset.take(8)):
    losses.append(float(training_step(batch_images, batch_labels, batch == 0)))
report(
    hvd.rank(),
    "year_2019",
    weights=fingerprint(model.get_weights()),
    loss=hvd.allreduce(losses).numpy().tolist(),
)
