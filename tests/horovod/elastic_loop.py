"""The shape of Horovod's tensorflow2_mnist_elastic.py: a state that is committed after each batch."""

import tensorflow as tf
from synthetic import digits, fingerprint, report, set_weights

import horovod.tensorflow as hvd

hvd.init()
dataset = tf.data.Dataset.from_tensor_slices(digits(256, seed=hvd.rank())).repeat().batch(16)
model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(10, activation="softmax")])
model.build((None, 8, 8, 1))
set_weights(model)
loss = tf.losses.SparseCategoricalCrossentropy()
lr = 0.05
opt = tf.optimizers.SGD(lr * hvd.size(), momentum=0.9)


@tf.function
def training_step(images, labels, allreduce=True):
    with tf.GradientTape() as tape:
        loss_value = loss(labels, model(images, training=True))
    if allreduce:
        tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    return loss_value


# The first step makes the variables of the optimizer, with gradients that differ among the ranks.
for images, labels in dataset.take(1):
    training_step(images, labels, allreduce=False)


@hvd.elastic.run
def train(state):
    start_batch = state.batch
    for batch_idx, (images, labels) in enumerate(dataset.skip(state.batch).take(20 // hvd.size())):
        state.batch = start_batch + batch_idx
        training_step(images, labels)
        state.commit()


state = hvd.elastic.TensorFlowKerasState(model, opt, batch=0)
state.register_reset_callbacks([lambda: opt.lr.assign(lr * hvd.size())])
train(state)
committed = fingerprint(model.get_weights())
model.set_weights([weights * 0 for weights in model.get_weights()])
state.batch = 100
state.restore()
assert fingerprint(model.get_weights()) == committed
report(hvd.rank(), "elastic_loop", weights=committed, batch=state.batch)
