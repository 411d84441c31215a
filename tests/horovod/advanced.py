"""The shape of Horovod's keras_mnist_advanced.py: batches from a sequence, warmup, then ReduceLROnPlateau."""

import tempfile

import keras
from keras.layers import Dense, Dropout, Flatten
from synthetic import digits, report

import horovod.keras as hvd

hvd.init()
batch_size, epochs = 16, 4


class Batches(keras.utils.Sequence):
    def __init__(self, images, labels):
        super().__init__()
        self.images, self.labels = images, keras.utils.to_categorical(labels, 10)

    def __len__(self):
        return len(self.images) // batch_size

    def __getitem__(self, index):
        rows = slice(index * batch_size, (index + 1) * batch_size)
        return self.images[rows], self.labels[rows]


train, test = Batches(*digits(256, seed=hvd.rank())), Batches(*digits(64, seed=7))
model = keras.models.Sequential()
model.add(Flatten(input_shape=(8, 8, 1)))
model.add(Dense(32, activation="relu"))
model.add(Dropout(0.5))
model.add(Dense(10, activation="softmax"))
scaled_lr = 1.0 * hvd.size()
opt = hvd.DistributedOptimizer(keras.optimizers.Adadelta(learning_rate=scaled_lr))
model.compile(loss=keras.losses.categorical_crossentropy, optimizer=opt, metrics=["accuracy"])
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(warmup_epochs=2, initial_lr=scaled_lr, verbose=1),
    keras.callbacks.ReduceLROnPlateau(monitor="loss", min_delta=100.0, patience=1, verbose=1),
]
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint(tempfile.mkdtemp() + "/checkpoint-{epoch}.h5"))
history = model.fit(
    train, steps_per_epoch=len(train) // hvd.size(), callbacks=callbacks, epochs=epochs, verbose=0,
    validation_data=test, validation_steps=3 * len(test) // hvd.size() // 3,
).history  # fmt: skip
gathered = hvd.allgather([history["loss"]])
assert (abs(gathered[0] - gathered[1]) < 1e-6).numpy().all() if hvd.size() == 2 else True
report(hvd.rank(), "advanced", lr=history["lr"], epochs=len(history["val_loss"]))
