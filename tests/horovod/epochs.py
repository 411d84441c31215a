"""The shape of Horovod's keras_mnist.py: `import keras`, Adadelta times the ranks, epochs divided by them."""

import math

import keras
from keras.layers import Conv2D, Dense, Flatten, MaxPooling2D
from keras.models import Sequential
from synthetic import digits, fingerprint, report, set_weights

import horovod.keras as hvd

hvd.init()
epochs = int(math.ceil(6.0 / hvd.size()))
x_train, y_train = digits(128, seed=hvd.rank())
x_test, y_test = digits(64, seed=7)
y_train, y_test = (keras.utils.to_categorical(y, 10) for y in (y_train, y_test))

model = Sequential()
model.add(Conv2D(4, kernel_size=(3, 3), activation="relu", input_shape=(8, 8, 1)))
model.add(MaxPooling2D(pool_size=(2, 2)))
model.add(Flatten())
model.add(Dense(10, activation="softmax"))
set_weights(model)

opt = keras.optimizers.Adadelta(1.0 * hvd.size())
opt = hvd.DistributedOptimizer(opt)
model.compile(loss=keras.losses.categorical_crossentropy, optimizer=opt, metrics=["accuracy"])
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
history = model.fit(
    x_train, y_train, batch_size=32, callbacks=callbacks, epochs=epochs, shuffle=False,
    verbose=2 if hvd.rank() == 0 else 0, validation_data=(x_test, y_test),
).history  # fmt: skip
score = model.evaluate(x_test, y_test, verbose=0)
if hvd.rank() == 0:
    print("Test loss:", score[0])
    print("Test accuracy:", score[1])
report(
    hvd.rank(), "epochs", weights=fingerprint(model.get_weights()), loss=history["loss"],
    val_loss=history["val_loss"], score=score,
)  # fmt: skip
