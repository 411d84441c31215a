"""The layers that BERT is built from. Their variables have the names of Google's checkpoints."""

import keras
import tensorflow as tf

from bert import ops


class ScopedLayer(keras.layers.Layer):
    """A layer whose variables are named after Google's scope; its constructor creates them all."""

    def __init__(self, scope: str, **kwargs):
        super().__init__(name=scope.replace("/", ".") or None, **kwargs)
        self.scope = scope
        self.built = True

    def tensor(self, name: str, shape: tuple[int, ...], initializer: str | keras.Initializer) -> keras.Variable:
        full = f"{self.scope}/{name}" if self.scope else name
        return self.add_weight(shape, initializer, name=full.replace("/", "."))


class Initializer:
    """Truncated normal values of standard deviation `initializer_range`, one seed per tensor."""

    def __init__(self, stddev: float, seed: int):
        self.stddev, self.seed = stddev, seed

    def __call__(self) -> keras.Initializer:
        self.seed += 1
        return keras.initializers.TruncatedNormal(stddev=self.stddev, seed=self.seed)


class Linear(ScopedLayer):
    """x W + b for x [rows, in_size]."""

    def __init__(self, scope: str, in_size: int, out_size: int, init: Initializer):
        super().__init__(scope)
        self.kernel = self.tensor("kernel", (in_size, out_size), init())
        self.bias = self.tensor("bias", (out_size,), "zeros")

    def call(self, x):
        return ops.biased(*self.product_and_bias(x))

    def product_and_bias(self, x) -> tuple[tf.Tensor, tf.Tensor]:
        """x W, and b, which the next operation adds in its own pass over memory."""
        return tf.matmul(x, tf.cast(self.kernel.value, x.dtype)), tf.cast(self.bias.value, x.dtype)


class LayerNorm(ScopedLayer):
    """Layer normalisation over the last axis, in float32 whatever the policy (Ba et al. 2016)."""

    def __init__(self, scope: str, size: int, epsilon: float):
        super().__init__(scope, dtype="float32")
        self.epsilon = epsilon
        self.gamma = self.tensor("gamma", (size,), "ones")
        self.beta = self.tensor("beta", (size,), "zeros")

    def call(self, x):
        return ops.normalized(x, self.gamma, self.beta, self.epsilon)

    @property
    def parameters(self) -> tuple[tf.Tensor, tf.Tensor, float]:
        """gamma, beta and epsilon, for operations that compute a residual and its layer normalisation together."""
        return self.gamma.value, self.beta.value, self.epsilon
