"""The shape of Horovod's keras_imagenet_resnet50.py: checkpoints, the epoch to resume from, a
stepped schedule."""

import os
import tempfile

from tensorflow import keras
import numpy as np
from synthetic import digits, fingerprint, report, set_weights

import horovod.tensorflow.keras as hvd

hvd.init()
folder = tempfile.mkdtemp()  # another one on each rank: only rank 0 finds checkpoints
checkpoint_format = os.path.join(folder, "checkpoint-{epoch}.h5")
x, y = digits(256, seed=hvd.rank())
x_test, y_test = digits(64, seed=7)
initial_lr = 0.0125 * hvd.size()


def new_model():
    decay = keras.regularizers.L2(0.00005)
    return keras.models.Sequential(
        [
            keras.layers.Flatten(input_shape=(8, 8, 1)),
            keras.layers.Dense(16, activation="tanh", kernel_regularizer=decay),
            keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5),
            keras.layers.Dense(10, activation="softmax", kernel_regularizer=decay),
        ]
    )


def run(epochs):
    resume_from_epoch = 0
    for try_epoch in range(epochs, 0, -1):
        if os.path.exists(checkpoint_format.format(epoch=try_epoch)):
            resume_from_epoch = try_epoch
            break
    resume_from_epoch = int(hvd.broadcast(resume_from_epoch, 0, name="resume_from_epoch"))

    if resume_from_epoch > 0 and hvd.rank() == 0:
        model = hvd.load_model(checkpoint_format.format(epoch=resume_from_epoch))
    else:
        model = new_model()
        set_weights(model)
        opt = keras.optimizers.SGD(learning_rate=initial_lr, momentum=0.9)
        opt = hvd.DistributedOptimizer(
            opt, backward_passes_per_step=1, average_aggregated_gradients=True
        )
        loss = keras.losses.sparse_categorical_crossentropy
        model.compile(
            loss=loss, optimizer=opt, metrics=["accuracy"], experimental_run_tf_function=False
        )
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(
            warmup_epochs=2, initial_lr=initial_lr, momentum_correction=False, verbose=1
        ),
        hvd.callbacks.LearningRateScheduleCallback(
            start_epoch=2,
            end_epoch=3,
            multiplier=1.0,
            initial_lr=initial_lr,
            momentum_correction=False,
        ),
        hvd.callbacks.LearningRateScheduleCallback(
            start_epoch=3,
            multiplier=lambda epoch: 0.1 ** (epoch - 2),
            initial_lr=initial_lr,
            momentum_correction=False,
        ),
    ]
    if hvd.rank() == 0:
        callbacks.append(keras.callbacks.ModelCheckpoint(checkpoint_format))
    history = model.fit(
        x,
        y,
        batch_size=16,
        callbacks=callbacks,
        epochs=epochs,
        verbose=0,
        shuffle=False,
        initial_epoch=resume_from_epoch,
        validation_data=(x_test, y_test),
    ).history
    return resume_from_epoch, model, history


_, model, first = run(3)
trained = [np.array(variable) for variable in model.trainable_variables]
resumed_from, model, second = run(5)
assert resumed_from == 3, resumed_from
# rank 0's checkpoint reached all ranks
assert second["loss"][0] < 0.5 * first["loss"][0], (first, second)
assert len(hvd.allreduce(model.evaluate(x_test, y_test, verbose=0))) == 2
for gathered in hvd.allgather([fingerprint(model.get_weights()[:2])]):
    np.testing.assert_array_equal(gathered, np.float32(fingerprint(model.get_weights()[:2])))
rates = first["lr"] + second["lr"]
report(hvd.rank(), "resume", weights=fingerprint(trained), lr=rates, loss=first["loss"])
