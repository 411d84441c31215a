"""TensorFlow's numbers as the host sees them."""

import numpy as np
import tensorflow as tf


def host_view(tensor: tf.Tensor) -> np.ndarray:
    """A tensor's memory, without a copy where it lies on the host: to be read before a variable's next change."""
    if "GPU" in tensor.device:
        return tensor.numpy()
    return np.from_dlpack(tensor)
