"""AdamWeightDecay and its schedule, exactly as BERT defines them (google-research/bert
`optimization.py`)."""

import math
import re

import keras
import tensorflow as tf
from keras import ops

# numbers in a variable; for smaller ones, calling compiled code costs more than it saves
COMPILED_FROM = 1 << 15


class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warmup, then linear decay to 0 over `train_steps`.

    rate(step) = rate * step / warmup_steps                     while step < warmup_steps (so step 0
    has rate 0)
               = rate * (1 - min(step, train_steps) / train_steps)             afterwards.

    At step = warmup_steps the rate drops by the factor 1 - warmup_steps / train_steps, as for
    published models.
    """

    def __init__(self, rate: float, train_steps: int, warmup_steps: int = 0):
        # Not constants, by which optimizers of graphs would replace the division by a product.
        # float32: int32 would live on the host.
        self.numbers = tf.Variable([float(rate), train_steps, warmup_steps], trainable=False)

    def __call__(self, step):
        rate, train_steps, warmup_steps = tf.unstack(self.numbers)
        step = ops.cast(step, "float32")
        steps_left = train_steps - ops.minimum(step, train_steps)
        decayed = steps_left / ops.maximum(1.0, train_steps)
        warmed = step / ops.maximum(1.0, warmup_steps)
        return rate * ops.where(step < warmup_steps, warmed, decayed)

    def get_config(self):
        names = "rate", "train_steps", "warmup_steps"
        return dict(zip(names, self.numbers.numpy().tolist(), strict=True))


class AdamWeightDecay(keras.optimizers.Optimizer):
    """Adam without bias correction and with decoupled weight decay, the update of BERT:

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g^2
        parameter -= rate * (m / (sqrt(v) + epsilon) + weight_decay * parameter)

    Variables whose name matches one of the `exclude` patterns (regular-expression search) do not
    decay.
    """

    def __init__(
        self,
        learning_rate=5e-5,
        weight_decay_rate: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        exclude: tuple[str, ...] = ("LayerNorm", "layer_norm", "bias"),
        **kwargs,
    ):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.weight_decay_rate = weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.exclude = tuple(exclude)
        self._updates: dict = {}  # functions by shape, dtype and decay, freed with this object

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.m = [self.add_variable_from_reference(variable, "adam_m") for variable in variables]
        self.v = [self.add_variable_from_reference(variable, "adam_v") for variable in variables]

    def decays(self, variable: keras.Variable | tf.Variable) -> bool:
        return not any(re.search(pattern, variable.name) for pattern in self.exclude)

    def update_scaled(self, gradients, scale, rate) -> None:
        """A step of all variables with scale * gradients, in the order of `build`.

        The product takes no pass over memory of its own. `iterations` stay as they are.
        """
        (dtype,) = {variable.dtype for variable in self._trainable_variables}
        numbers = self._numbers(scale, rate, dtype)
        for index, gradient in enumerate(gradients):
            self._update_variable(index, gradient, numbers)

    def update_step(self, gradient, variable, learning_rate):
        """The step of one variable, for Keras' own `apply`."""
        numbers = self._numbers(1.0, learning_rate, variable.dtype)
        index = self._get_variable_index(variable)
        self._update_variable(index, gradient, numbers)

    def _numbers(self, scale, rate, dtype):
        """The numbers that `_step` takes, [3, 6]."""
        numbers = [rate, self.weight_decay_rate, self.beta_1, self.beta_2]
        numbers = [ops.cast(number, dtype) for number in numbers]
        scale = ops.cast(scale, dtype)
        m_factor = (1 - self.beta_1) * scale
        v_factor = math.sqrt(1 - self.beta_2) * scale
        row = ops.stack([*numbers, m_factor, v_factor])
        return ops.stack([row] * 3)

    def _update_variable(self, index, gradient, numbers):
        variable = self._trainable_variables[index]
        kind = tuple(variable.shape), variable.dtype, self.decays(variable)
        if kind not in self._updates:
            self._updates[kind] = self._function(*kind)
        values = variable, self.m[index].value, self.v[index].value
        handles = [value.handle for value in values]
        gradient = ops.cast(gradient, variable.dtype)
        self._updates[kind](*handles, gradient, numbers)

    def _step(self, parameter, m, v, gradient, numbers, decays):
        """The new parameter, m and v. `numbers` [3, 6] holds the same six three times. XLA cannot
        know that, and finds nothing to share between three computations of the moments: one loop
        reads and writes everything."""

        def moments(beta_1, beta_2, m_factor, v_factor):
            new_m = beta_1 * m + m_factor * gradient
            new_v = beta_2 * v + ops.square(v_factor * gradient)
            return new_m, new_v

        def update(weight_decay, *rest):
            new_m, new_v = moments(*rest)
            adam = new_m / (ops.sqrt(new_v) + self.epsilon)
            return adam + weight_decay * parameter if decays else adam

        first, second, third = (tf.unstack(row) for row in tf.unstack(numbers))
        rate, *rest = second
        if decays:
            rate *= self.trust_ratio(parameter, update(*first[1:]))
        new_parameter = parameter - rate * update(*rest)
        new_m, new_v = moments(*third[2:])
        return new_parameter, new_m, new_v

    def _function(self, shape, dtype, decays):
        """The update of all variables of one shape, which are passed as resource handles; traced
        once for them. If they are large, XLA makes one pass over memory (LAMB's norms need another)
        and allocates nothing. It would take ten times as long to compile one graph of all
        variables."""

        def read(handle):
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
            return tf.ensure_shape(value, shape)

        def step(parameter, m, v, gradient, numbers):
            new_values = self._step(read(parameter), read(m), read(v), gradient, numbers, decays)
            for handle, value in zip((parameter, m, v), new_values, strict=True):
                tf.raw_ops.AssignVariableOp(resource=handle, value=value)

        handles = [tf.TensorSpec([], tf.resource)] * 3
        arrays = [tf.TensorSpec(size, dtype) for size in (shape, [3, 6])]
        is_large = math.prod(shape) >= COMPILED_FROM
        compiled = tf.function(step, jit_compile=is_large or None, autograph=False)
        return compiled.get_concrete_function(*handles, *arrays)

    def trust_ratio(self, parameter, update):
        """The factor of the learning rate of a variable that decays: 1."""
        return 1.0

    def get_config(self):
        names = ("weight_decay_rate", "beta_1", "beta_2", "epsilon", "exclude")
        return super().get_config() | {name: getattr(self, name) for name in names}


class LAMB(AdamWeightDecay):
    """Layer-wise adaptive rates for large batches (You et al. 2020, algorithm 2), without bias
    correction as in google-research/albert `lamb_optimizer.py`. The update of a variable that
    decays is AdamWeightDecay's, times

        ||parameter|| / ||update||     (1 where either norm is 0)
    """

    def trust_ratio(self, parameter, update):
        parameter_norm = _norm(parameter)
        update_norm = _norm(update)
        is_defined = ops.logical_and(parameter_norm > 0, update_norm > 0)
        divisor = ops.where(is_defined, update_norm, 1.0)
        return ops.where(is_defined, parameter_norm / divisor, 1.0)


def _norm(x):
    """The Euclidean norm of all numbers, from 64 parallel sums where the shape allows it. In the
    single sum that XLA's CPU code would compute, each addition waits for the one before."""
    width = math.prod(x.shape[1:])
    if not x.shape.rank or width % 64:
        return ops.norm(x)
    squares = tf.reshape(tf.square(x), [x.shape[0], width // 64, 64])
    sums = tf.reduce_sum(squares, 1)
    total = tf.reduce_sum(tf.abs(sums))  # abs keeps XLA from merging the two sums into one
    return tf.sqrt(total)


def make_optimizer(
    name: str, learning_rate: float, train_steps: int, warmup_steps: int
) -> AdamWeightDecay:
    """The optimizer "adamw" or "lamb" with BERT's schedule. Call `bert.set_xla_flags` before, for
    its speed."""
    kind = {"lamb": LAMB, "adamw": AdamWeightDecay}[name]
    return kind(WarmupDecay(learning_rate, train_steps, warmup_steps))
