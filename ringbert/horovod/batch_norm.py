"""`SyncBatchNormalization`: batch normalization with the moments of all ranks' batches."""

from typing import Any

import keras
import tensorflow as tf

from ringbase.errors import InputError
from ringbert.horovod.operations import allreduce
from ringbert.horovod.session import current


@keras.saving.register_keras_serializable(package="ringbert")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """As `keras.layers.BatchNormalization`, with the mean and variance of the batches of all ranks in training.

    As in Horovod, all ranks' batches count the same. Its arguments are those of Keras, and `fused=False`.
    """

    def __init__(self, fused: bool = False, **options: Any):
        if fused or options.pop("synchronized", False):
            raise InputError("SyncBatchNormalization: leave out fused=True and synchronized=True")
        super().__init__(**options)

    def _moments(self, inputs: tf.Tensor, mask: Any) -> tuple[tf.Tensor, tf.Tensor]:
        mean, variance = super()._moments(inputs, mask)
        if current().world.size == 1:
            return mean, variance
        own = tf.stack([mean, variance + tf.square(mean)])
        mean, mean_of_square = tf.unstack(allreduce(own, name=f"moments of {self.name}"))
        return mean, mean_of_square - tf.square(mean)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("synchronized", None)
        return config
