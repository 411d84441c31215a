"""The shape of Horovod 0.20's tensorflow2_mnist_elastic.py, in which a step fails once on all
ranks and the training goes on from the last commit."""

import tensorflow as tf
from synthetic import digits, fingerprint, perceptron, report

import horovod.tensorflow as hvd
from horovod.common.exceptions import HorovodInternalError

hvd.init()
images, labels = digits(128)
images, labels = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]
each = 16 // hvd.size()
model = perceptron()
loss = tf.losses.SparseCategoricalCrossentropy()
opt = tf.optimizers.SGD(0.1)
failures = []


@tf.function
def train_one_batch(images, labels):
    with tf.GradientTape() as tape:
        loss_value = loss(labels, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))


opt.build(model.trainable_variables)


@hvd.elastic.run
def train(state):
    for batch in range(state.batch, 8):
        train_one_batch(images[batch * each :][:each], labels[batch * each :][:each])
        if batch == 5 and not failures:
            failures.append(batch)
            raise HorovodInternalError("a peer has gone")
        state.batch = batch + 1
        if batch % 4 == 0:
            state.commit()


def on_state_reset():
    failures.append("reset")


state = hvd.elastic.TensorFlowKerasState(model, opt, batch=0)
state.register_reset_callbacks([on_state_reset])
train(state)
assert failures == [5, "reset"], failures
report(hvd.rank(), "year_2020", weights=fingerprint(model.get_weights()), batch=state.batch)
