"""The shape of Horovod's tensorflow2_keras_mnist_elastic.py: `fit` with callbacks that keep a state."""

import tensorflow as tf
from synthetic import digits, fingerprint, report, set_weights

import horovod.tensorflow.keras as hvd

hvd.init()
dataset = tf.data.Dataset.from_tensor_slices(digits(256, seed=hvd.rank())).repeat().batch(16)
model = tf.keras.Sequential([
    tf.keras.layers.Flatten(input_shape=(8, 8, 1)), tf.keras.layers.Dense(10, activation="softmax")
])  # fmt: skip
set_weights(model)
opt = hvd.DistributedOptimizer(tf.optimizers.SGD(0.02 * hvd.size()))
model.compile(loss=tf.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=["accuracy"])
model.fit(dataset, steps_per_epoch=1, epochs=1, callbacks=None, verbose=0)
state = hvd.elastic.KerasState(model, batch=0, epoch=0)
state.register_reset_callbacks([lambda: state.model.optimizer.lr.assign(0.02 * hvd.size())])
callbacks = [hvd.elastic.UpdateEpochStateCallback(state), hvd.elastic.UpdateBatchStateCallback(state)]
callbacks.append(hvd.elastic.CommitStateCallback(state))


@hvd.elastic.run
def train(state):
    epochs = 4 - state.epoch
    state.model.fit(dataset, steps_per_epoch=8 // hvd.size(), epochs=epochs, callbacks=callbacks, verbose=0)


train(state)
assert state.batch == 0
report(hvd.rank(), "elastic_fit", weights=fingerprint(model.get_weights()), epoch=state.epoch)
