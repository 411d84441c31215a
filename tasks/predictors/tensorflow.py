"""Imports TensorFlow and Keras as the programs do, before anything else here needs them.

Raises InputError when one is missing, or Keras runs on another backend.
"""

import sys

from distributed.devices import imported_tensorflow
from ringbase.errors import InputError
from tasks.environment import import_tensorflow, set_environment

if "keras" not in sys.modules:
    set_environment()
if "tensorflow" not in sys.modules:
    import_tensorflow(is_for_users=True)
imported_tensorflow()

import keras  # noqa: E402

if keras.backend.backend() != "tensorflow":
    raise InputError(
        f"Keras runs on {keras.backend.backend()} in this process: set the environment variable "
        "KERAS_BACKEND=tensorflow before Keras is imported"
    )
