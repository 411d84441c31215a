"""A training in hvd.elastic whose last rank is killed amid it, the first time. The argument is a
number of steps."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import json
import signal
import sys

from harness.lean import keras, tf

import ringbert.horovod as hvd

hvd.init()
model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, kernel_initializer="ones")])
optimizer = keras.optimizers.Adam(0.1)
optimizer.build(model.trainable_variables)
begun, is_first = [], os.environ["RINGBERT_RESTART"] == "0"


@hvd.elastic.run
def train(state):
    begun.append(state.step)
    while state.step < int(sys.argv[1]):
        if is_first and state.step == 5 and hvd.rank() == hvd.size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(tf.ones([1, 2]) * (1.0 + state.step)) ** 2)
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        state.step += 1
        if state.step % 3 == 0:
            state.commit()


state = hvd.elastic.TensorFlowKerasState(model, optimizer, step=0, other={1, 2})
train(state)
if hvd.rank() == 0:
    weights = [weight.tolist() for weight in model.get_weights()]
    print(json.dumps({"begun": begun, "weights": weights, "steps": int(optimizer.iterations)}))
