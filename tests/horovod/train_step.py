"""A model with a train_step of its own, run_eagerly, a schedule object."""

import numpy as np
import tensorflow as tf
from synthetic import digits, fingerprint, report, set_weights

import horovod.tensorflow as hvd


class Classifier(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.flatten, self.dense = tf.keras.layers.Flatten(), tf.keras.layers.Dense(10, activation="softmax")
        self.mean = tf.keras.metrics.Mean("loss")

    def call(self, inputs, training=False):
        return self.dense(self.flatten(inputs))

    def train_step(self, data):
        images, labels = data
        with tf.GradientTape() as tape:
            probs = self(images, training=True)
            loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(labels, probs))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}

    @property
    def metrics(self):
        return [self.mean]


hvd.init()
images, labels = digits(64, seed=hvd.rank())
numbers = {}
for eagerly in (False, True):
    model = Classifier()
    model(images[:1])
    set_weights(model)
    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay([2, 4], [0.1, 0.05, 0.01])
    model.compile(optimizer=tf.keras.optimizers.SGD(schedule), run_eagerly=eagerly)
    model.fit(images, labels, batch_size=16, epochs=2, shuffle=False, verbose=0)
    trained = [np.array(variable) for variable in model.trainable_variables]
    numbers["eager" if eagerly else "graph"] = fingerprint(trained)
report(hvd.rank(), "train_step", **numbers)
