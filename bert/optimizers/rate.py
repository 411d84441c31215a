"""The schedule of a training for Keras' optimizers."""

import keras
import tensorflow as tf
from keras import ops

from bert.optimizers.schedules import SCHEDULES, Form, Numbers

AS_BY_DEFAULT = Form()


class RateSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate of each step: `rate`, the peak, times what the schedule of this name says
    (schedules.py)."""

    def __init__(
        self,
        rate: float,
        train_steps: int,
        warmup_steps: int = 0,
        schedule: str = "linear",
        decay_steps: int = 0,
        form: Form = AS_BY_DEFAULT,
    ):
        # Not constants, by which optimizers of graphs would replace the division by a product.
        # float32: int32 would live on the host.
        numbers = [float(rate), train_steps, warmup_steps, decay_steps]
        self.numbers = tf.Variable(numbers, trainable=False)
        self.schedule, self.form = schedule, Form(*form)

    def __call__(self, step):
        rate, *numbers = tf.unstack(self.numbers)
        step = ops.cast(step, "float32")
        schedule = SCHEDULES[self.schedule]
        return rate * schedule.part(step, Numbers(*numbers), self.form, ops)

    def get_config(self):
        names = "rate", "train_steps", "warmup_steps", "decay_steps"
        config = dict(zip(names, self.numbers.numpy().tolist(), strict=True))
        return config | {"schedule": self.schedule, "form": list(self.form)}
