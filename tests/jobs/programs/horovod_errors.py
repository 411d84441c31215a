"""One wrong use of hvd, named by the argument, on all ranks."""

import os
import sys

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np
import tensorflow as tf

import ringbert.horovod as hvd

ROWS, BATCH = 32, 8


def fit(units: int = 4, rows: int = ROWS, optimizer: str = "SGD", broadcasts: bool = True) -> None:
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(units), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.get(optimizer)), "mse")
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)] if broadcasts else []
    model.fit(np.ones([rows, 3]), np.ones([rows, 1]), BATCH, epochs=2, verbose=0, callbacks=callbacks)


def step(variables: list, **options) -> None:
    @tf.function(**options)
    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(variable * variable) for variable in variables])
        return hvd.DistributedGradientTape(tape).gradient(loss, variables)

    gradients()


def late_variable() -> None:
    variables = [tf.Variable([1.0, 2.0])]
    step(variables)
    step([*variables, tf.Variable([3.0])] if hvd.rank() else variables)


def main() -> None:
    case, *_ = sys.argv[1:]
    if case != "init":
        hvd.init()
    second = case != "init" and hvd.rank() == 1
    match case:
        case "init":
            hvd.rank()
        case "model":
            fit(units=5 if second else 4)
        case "optimizer":
            fit(optimizer="Adam" if second else "SGD")
        case "data":
            fit(rows=ROWS // 2 if second else ROWS)
        case "broadcast":
            fit(broadcasts=False)
        case "late":
            late_variable()
        case "jit":
            step([tf.Variable([1.0])], jit_compile=True)
        case "calls":
            hvd.allreduce([1.0], name="loss" if second else "accuracy")
        case "shapes":
            hvd.allreduce(np.ones(2 if second else 3))
        case "join":
            if not second:
                hvd.broadcast([1.0], 0)
            hvd.join()
        case "adasum":
            hvd.DistributedOptimizer(keras.optimizers.SGD(), op=hvd.Adasum)
        case "jit fit":
            model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
            model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), "mse", jit_compile=True)
            history = model.fit(np.ones([8, 3]), np.ones([8, 1]), verbose=0).history
            assert np.isfinite(history["loss"]).all()
            sys.exit(f"trained with jit_compile={model.jit_compile}" if hvd.rank() == 0 else 0)


main()
