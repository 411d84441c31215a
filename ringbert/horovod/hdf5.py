"""The state of an optimizer in a model that is saved as HDF5, which Keras 3.15 does not restore.

It builds the optimizer for no variables, so that `fit` fails with "Unknown variable".
"""

import warnings
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import keras
import numpy as np
from keras.src.legacy.saving.legacy_h5_format import load_optimizer_weights_from_hdf5_group

ENDINGS = (".h5", ".hdf5")


def is_hdf5(path: Any) -> bool:
    """Whether this is a path that Keras reads as HDF5."""
    return Path(str(path)).suffix in ENDINGS


def restore_optimizer(model: keras.Model, path: Any) -> None:
    """Gives a compiled model that was loaded from `path` a new optimizer of its kind, in the saved state."""
    kind = type(model.optimizer)
    model.optimizer = optimizer = kind.from_config(model.optimizer.get_config())
    optimizer.build(model.trainable_variables)
    with h5py.File(path, "r") as file:
        if "optimizer_weights" not in file:
            return
        values = [np.asarray(value) for value in load_optimizer_weights_from_hdf5_group(file)]
    shapes = [tuple(variable.shape) for variable in optimizer.variables]
    if shapes == [value.shape for value in values]:
        optimizer.set_weights(values)
    else:
        warnings.warn(f"{path}: the optimizer's state is of another Keras; it starts anew", stacklevel=3)
