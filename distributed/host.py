"""Reads tensors from the host."""

import numpy as np
import tensorflow as tf


def host_view(tensor: tf.Tensor) -> np.ndarray:
    """A tensor as a NumPy array, without a copy if it is in host memory: use it before the variable changes
    again."""
    if "GPU" in tensor.device:
        return tensor.numpy()
    return np.from_dlpack(tensor)
