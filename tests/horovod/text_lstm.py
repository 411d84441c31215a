"""A text classifier with an LSTM: Adadelta's rate times the ranks, epochs divided by them, early stopping."""

import tensorflow as tf
from synthetic import fingerprint, report, sentences, set_weights

import horovod.tensorflow.keras as hvd

hvd.init()
ids, labels = sentences(256)
ids, labels = ids[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]
model = tf.keras.Sequential([
    tf.keras.layers.Embedding(50, 8),
    tf.keras.layers.LSTM(8),
    tf.keras.layers.Dense(1, activation="sigmoid"),
])  # fmt: skip
model.build((None, 12))
set_weights(model)
opt = hvd.DistributedOptimizer(tf.keras.optimizers.Adadelta(0.5 * hvd.size()))
model.compile(loss="binary_crossentropy", optimizer=opt, metrics=["accuracy"])
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    tf.keras.callbacks.EarlyStopping(monitor="loss", patience=5),
    tf.keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.9),
]
history = model.fit(
    ids, labels, batch_size=16, epochs=8 // hvd.size(), shuffle=False, callbacks=callbacks, verbose=0
).history
report(hvd.rank(), "text_lstm", weights=fingerprint(model.get_weights()), loss=history["loss"])
