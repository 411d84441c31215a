"""The shape of Horovod 0.15's keras_mnist_advanced.py: the warmup and the schedules take the rate
of the optimizer, and arguments have the order of then."""

import keras
import tensorflow as tf
from keras import backend as K
from keras.layers import Dense, Flatten
from keras.models import Sequential
from synthetic import digits, fingerprint, report, set_weights

import horovod.keras as hvd

hvd.init()
config = tf.compat.v1.ConfigProto()
config.gpu_options.allow_growth = True
config.gpu_options.visible_device_list = str(hvd.local_rank())
batch_size = 16
epochs = 4
x_train, y_train = digits(128)
x_train, y_train = x_train[hvd.rank() :: hvd.size()], y_train[hvd.rank() :: hvd.size()]
y_train = keras.utils.to_categorical(y_train, 10)

model = Sequential()
model.add(Flatten(input_shape=(8, 8, 1)))
model.add(Dense(16, activation="tanh"))
model.add(Dense(10, activation="softmax"))
set_weights(model, seed=hvd.rank())  # the broadcast makes them equal

opt = keras.optimizers.SGD(0.02 * hvd.size(), momentum=0.0)
opt = hvd.DistributedOptimizer(opt)
model.compile(loss=keras.losses.categorical_crossentropy, optimizer=opt, metrics=["accuracy"])
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(warmup_epochs=2, verbose=1),
    hvd.callbacks.LearningRateScheduleCallback(start_epoch=2, end_epoch=3, multiplier=1.0),
    hvd.callbacks.LearningRateScheduleCallback(start_epoch=3, multiplier=lambda epoch: 0.1),
    keras.callbacks.ReduceLROnPlateau(patience=10, verbose=1),
]
history = model.fit(
    x_train,
    y_train,
    batch_size=batch_size // hvd.size(),
    callbacks=callbacks,
    epochs=epochs,
    verbose=0,
    shuffle=False,
    validation_data=(x_train, y_train),
).history
score = hvd.allreduce(model.evaluate(x_train, y_train, verbose=0), "score", True)
report(
    hvd.rank(),
    "year_2018",
    weights=fingerprint(model.get_weights()),
    lr=history["lr"],
    loss=history["loss"],
    score=float(score[0]),
    epsilon=K.epsilon(),
)
