"""A use of hvd in a graph or at the end of a script, named by the argument; all but one are
wrong."""

import os
import sys

os.environ["KERAS_BACKEND"] = "tensorflow"
import numpy as np
from harness.lean import keras, tf

import ringbert.horovod as hvd

hvd.init()
match sys.argv[1]:
    case "right":
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), "mse")
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
        x = np.ones([32, 3]) * (1 + hvd.rank())
        model.fit(x, np.ones([32, 1]), 8, epochs=2, verbose=0, callbacks=callbacks)
        weights = hvd.allgather(model.get_weights()[0][np.newaxis])
        np.testing.assert_array_equal(weights[0], weights[-1])
    case "jit":
        tf.function(lambda: hvd.allreduce([1.0]), jit_compile=True)()
    case "early":
        for _ in range(2 + hvd.rank()):
            hvd.allreduce(1.0)
