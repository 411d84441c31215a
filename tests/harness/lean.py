"""TensorFlow and Keras for programs of tests that compute: imported as our own programs do, in half
of the processor's time."""

import gc

from tasks.runs.environment import import_tensorflow_alone

gc.disable()
import_tensorflow_alone()
import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

gc.freeze()  # so that the end of the process does not look at it either
gc.enable()

__all__ = "keras", "tf"
