"""Trains a toy with hvd and saves it, or loads it and trains on; prints what plain Keras should find."""

import json
import os
import sys
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"
import keras
import numpy as np

import ringbert.horovod as hvd


def main(path: Path, loads: bool) -> None:
    hvd.init()
    generator = np.random.default_rng(hvd.rank())
    x, y = generator.normal(size=[40, 5]), generator.normal(size=[40, 1])
    if loads:
        model = hvd.load_model(path)
    else:
        model = keras.Sequential([keras.Input([5]), keras.layers.Dense(3), keras.layers.Dense(1)])
        optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
        model.compile(optimizer, "mse", experimental_run_tf_function=False)
    steps_before = int(model.optimizer.iterations)
    model.fit(
        x, y, batch_size=10, epochs=1, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    )
    weights = np.concatenate([np.ravel(weight) for weight in model.get_weights()])
    assert len({values.tobytes() for values in hvd.allgather_object(weights)}) == 1
    if hvd.rank() == 0:
        if not loads:
            model.save(path)
        moments = [float(np.sum(np.abs(variable.numpy()))) for variable in model.optimizer.variables]
        print(json.dumps({"steps": [steps_before, int(model.optimizer.iterations)], "moments": moments}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), loads=len(sys.argv) > 2)
