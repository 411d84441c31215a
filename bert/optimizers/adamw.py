"""AdamWeightDecay, as BERT defines it (google-research/bert `optimization.py`), and with bias
correction as PyTorch's AdamW."""

import math
import re
from collections.abc import Sequence

import keras
import tensorflow as tf
from keras import ops

# numbers in a variable; for smaller ones, calling compiled code costs more than it saves
COMPILED_FROM = 1 << 15


class AdamWeightDecay(keras.optimizers.Optimizer):
    """Adam without bias correction and with decoupled weight decay, the update of BERT:

        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g^2
        parameter -= rate * (m / (sqrt(v) + epsilon) + weight_decay * parameter)

    Variables whose name matches one of the `exclude` patterns (regular-expression search) do not
    decay. The first pattern of `rates`, pairs of a pattern and a factor, that matches gives the
    factor of the variable's rate; 1 without one. With `bias_correction` m is divided by 1 -
    beta_1^t and v by 1 - beta_2^t, where t counts the updates from 1 (Kingma and Ba 2015, section
    3).
    """

    def __init__(
        self,
        learning_rate=5e-5,
        weight_decay_rate: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        exclude: tuple[str, ...] = ("LayerNorm", "layer_norm", "bias"),
        bias_correction: bool = False,
        rates: Sequence[tuple[str, float]] = (),
        **kwargs,
    ):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.weight_decay_rate = weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.exclude = tuple(exclude)
        self.bias_correction = bias_correction
        self.rates = tuple((pattern, float(factor)) for pattern, factor in rates)
        self._updates: dict = {}  # functions by shape, dtype and decay, freed with this object

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.m = [self.add_variable_from_reference(variable, "adam_m") for variable in variables]
        self.v = [self.add_variable_from_reference(variable, "adam_v") for variable in variables]
        if self.bias_correction:
            # updates that the moments have seen, less `iterations`
            self.earlier = self.add_variable((), "zeros", dtype="int64", name="earlier")

    def begin_at(self, step: int) -> None:
        """Moves the schedule to this step; bias correction goes on counting updates."""
        if self.bias_correction:
            self.earlier.assign_add(self.iterations.value - step)
        self.iterations.assign(step)

    def rate_factor(self, variable: keras.Variable | tf.Variable) -> float:
        """The factor of the learning rate of a variable."""
        for pattern, factor in self.rates:
            if re.search(pattern, variable.name):
                return factor
        return 1.0

    def decays(self, variable: keras.Variable | tf.Variable) -> bool:
        return not any(re.search(pattern, variable.name) for pattern in self.exclude)

    def update_scaled(self, gradients, scale, rate) -> None:
        """A step of all variables with scale * gradients, in the order of `build`.

        The product takes no pass over memory of its own. `iterations` stay as they are.
        """
        (dtype,) = {variable.dtype for variable in self._trainable_variables}
        numbers: dict = {}  # by the factor of the rate
        for index, gradient in enumerate(gradients):
            factor = self.rate_factor(self._trainable_variables[index])
            if factor not in numbers:
                numbers[factor] = self._numbers(scale, scaled(rate, factor), dtype)
            self._update_variable(index, gradient, numbers[factor])

    def update_step(self, gradient, variable, learning_rate):
        """The step of one variable, for Keras' own `apply`."""
        rate = scaled(learning_rate, self.rate_factor(variable))
        numbers = self._numbers(1.0, rate, variable.dtype)
        index = self._get_variable_index(variable)
        self._update_variable(index, gradient, numbers)

    def _numbers(self, scale, rate, dtype):
        """The numbers that `_step` takes, [3, 6], or [3, 8] with bias correction."""
        numbers = [rate, self.weight_decay_rate, self.beta_1, self.beta_2]
        numbers = [ops.cast(number, dtype) for number in numbers]
        scale = ops.cast(scale, dtype)
        m_factor = (1 - self.beta_1) * scale
        v_factor = math.sqrt(1 - self.beta_2) * scale
        row = [*numbers, m_factor, v_factor]
        if self.bias_correction:
            row += self._corrections(dtype)
        return ops.stack([ops.stack(row)] * 3)

    def _corrections(self, dtype):
        """The factors of m, and of the root of v, in the next update."""
        number = ops.cast(self.iterations + self.earlier, "float32") + 1
        of_moments = []
        for beta in (self.beta_1, self.beta_2):
            exponent = number * (math.log(beta) if beta else -math.inf)
            of_moments.append(-ops.expm1(exponent))  # 1 - beta^t, in all its digits
        of_m, of_v = of_moments
        return [ops.cast(1 / of_m, dtype), ops.cast(1 / ops.sqrt(of_v), dtype)]

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
        """The new parameter, m and v. `numbers` holds the same ones three times. XLA cannot
        know that, and finds nothing to share between three computations of the moments: one loop
        reads and writes everything."""

        def moments(beta_1, beta_2, m_factor, v_factor):
            new_m = beta_1 * m + m_factor * gradient
            new_v = beta_2 * v + ops.square(v_factor * gradient)
            return new_m, new_v

        def update(weight_decay, beta_1, beta_2, m_factor, v_factor, *corrections):
            new_m, new_v = moments(beta_1, beta_2, m_factor, v_factor)
            root = ops.sqrt(new_v)
            if corrections:
                new_m *= corrections[0]
                root *= corrections[1]
            adam = new_m / (root + self.epsilon)
            return adam + weight_decay * parameter if decays else adam

        first, second, third = (tf.unstack(row) for row in tf.unstack(numbers))
        rate, *rest = second
        if decays:
            rate *= self.trust_ratio(parameter, update(*first[1:]))
        new_parameter = parameter - rate * update(*rest)
        new_m, new_v = moments(*third[2:6])
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
        num_numbers = 8 if self.bias_correction else 6
        arrays = [tf.TensorSpec(size, dtype) for size in (shape, [3, num_numbers])]
        is_large = math.prod(shape) >= COMPILED_FROM
        compiled = tf.function(step, jit_compile=is_large or None, autograph=False)
        return compiled.get_concrete_function(*handles, *arrays)

    def trust_ratio(self, parameter, update):
        """The factor of the learning rate of a variable that decays: 1."""
        return 1.0

    def get_config(self):
        names = "weight_decay_rate", "beta_1", "beta_2", "epsilon", "exclude", "bias_correction"
        values = {name: getattr(self, name) for name in names}
        return super().get_config() | values | {"rates": self.rates}


def scaled(rate, factor: float):
    """The rate times the factor; the same tensor for 1."""
    return rate if factor == 1 else rate * factor
