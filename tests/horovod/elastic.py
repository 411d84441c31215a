"""A state that is kept by the callbacks of `fit` (the shape of Horovod's
tensorflow2_keras_mnist_elastic.py), and one that a loop commits after each batch (the shape of
tensorflow2_mnist_elastic.py)."""

import tensorflow as tf
from synthetic import digits, fingerprint, report, set_weights

import horovod.tensorflow.keras as hvd

hvd.init()
dataset = tf.data.Dataset.from_tensor_slices(digits(256, seed=hvd.rank())).repeat().batch(16)
loss = tf.losses.SparseCategoricalCrossentropy()
lr = 0.05


def new_model():
    model = tf.keras.Sequential(
        [tf.keras.layers.Flatten(), tf.keras.layers.Dense(10, activation="softmax")]
    )
    model.build((None, 8, 8, 1))
    set_weights(model)
    return model


model = new_model()
opt = hvd.DistributedOptimizer(tf.optimizers.SGD(0.02 * hvd.size()))
model.compile(loss=loss, optimizer=opt, metrics=["accuracy"])
model.fit(dataset, steps_per_epoch=1, epochs=1, callbacks=None, verbose=0)
state = hvd.elastic.KerasState(model, batch=0, epoch=0)
state.register_reset_callbacks([lambda: state.model.optimizer.lr.assign(0.02 * hvd.size())])
callbacks = [
    hvd.elastic.UpdateEpochStateCallback(state),
    hvd.elastic.UpdateBatchStateCallback(state),
]
callbacks.append(hvd.elastic.CommitStateCallback(state))


@hvd.elastic.run
def fit(state):
    epochs = 4 - state.epoch
    state.model.fit(
        dataset, steps_per_epoch=8 // hvd.size(), epochs=epochs, callbacks=callbacks, verbose=0
    )


fit(state)
assert state.batch == 0
by_fit = {"weights": fingerprint(model.get_weights()), "epoch": state.epoch}

model = new_model()
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
report(hvd.rank(), "elastic", by_fit=by_fit, by_loop={"weights": committed, "batch": state.batch})
