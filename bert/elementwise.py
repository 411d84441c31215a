"""What stands between a layer's matrix products: dropout, activation, residual and layer normalisation.

On CPUs each of TensorFlow's operations is a pass over memory, and those passes take as long as the products. So
the larger of them are compiled by XLA into one pass forward and one backward, which computes again what it needs.
XLA compiles for each shape: the rows of what is compiled are a multiple of `ROWS`, so that the shapes are few.
"""

import functools
from collections.abc import Callable

import tensorflow as tf

ROWS = 256
COMPILED_WIDTH = 256  # numbers of a row; compiling pays above


def dropout_bits(rate: float) -> int:
    """8 random bits decide about each element, where that changes the rate by at most 2 %; else 16."""
    return 8 if abs(round(rate * 256) / 256 - rate) <= 0.02 * rate else 16


def effective_rate(rate: float) -> float:
    """The rate of `dropout`: 0.1 becomes 26 / 256."""
    steps = 1 << dropout_bits(rate)
    return round(rate * steps) / steps


def dropout_scale(rate: float) -> float:
    """What the elements that are kept are multiplied by."""
    return 1 / (1 - effective_rate(rate))


def kept(shape: tf.Tensor, rate: float, key: tf.Tensor, place: int) -> tf.Tensor:
    """bool [shape], False with probability `effective_rate(rate)`: a pure function of its arguments.

    Args:
      key: int32 [2], a function of seed, step, micro-batch and rank.
      place: number of this dropout in the model.
    """
    bits = dropout_bits(rate)
    steps, per_word = 1 << bits, 64 // bits
    size = tf.reduce_prod(shape)
    seed = tf.random.experimental.stateless_fold_in(key, place)
    # Several draws from each 64-bit word: on CPUs the generator costs more than the product before it.
    words = tf.random.stateless_uniform(
        [(size + per_word - 1) // per_word], seed, minval=None, maxval=None, dtype=tf.uint64
    )
    draws = tf.reshape(tf.bitcast(words, tf.int8 if bits == 8 else tf.int16), [-1])[:size]
    highest = steps // 2 - 1 - round(rate * steps)  # of the draws, which begin at -steps / 2, that are kept
    return tf.reshape(draws <= highest, shape)


def dropout(x: tf.Tensor, rate: float, key: tf.Tensor | None, place: int, scaled: bool = True) -> tf.Tensor:
    """Zeroes each element with probability `effective_rate(rate)` and scales the rest to keep the mean; without
    `scaled` the caller does that.

    `key` and `place` as for `kept`; a key of None turns dropout off.
    """
    if key is None or rate == 0.0:
        return x
    dropped = tf.where(kept(tf.shape(x), rate, key, place), x, tf.zeros([], x.dtype))
    return dropped * tf.cast(dropout_scale(rate), x.dtype) if scaled else dropped


@tf.custom_gradient
def biased(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """x [R, W] + bias [W]. The gradient of the bias is a product with ones: in bfloat16 that takes a third of the
    time of TensorFlow's sum over rows; both add up in float32."""

    def gradients(gradient):
        ones = tf.ones([1, tf.shape(gradient)[0]], gradient.dtype)
        return gradient, tf.reshape(tf.matmul(ones, gradient), [-1])

    return tf.nn.bias_add(x, bias), gradients


def normalized(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Layer normalisation over the last axis (Ba et al. 2016)."""
    centered = x - tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), -1, keepdims=True)
    return centered * tf.math.rsqrt(variance + epsilon) * gamma + beta


def residual(
    hidden: tf.Tensor,
    branch: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    epsilon: float,
    rate: float,
    key: tf.Tensor | None,
    place: int,
    is_compiled: bool,
) -> tf.Tensor:
    """LayerNorm(hidden + dropout(branch)), computed in the dtype of gamma, given in that of `hidden`: [R, H].

    With `is_compiled` R must be a multiple of `ROWS`.
    """
    mask = None if key is None or rate == 0.0 else kept(tf.shape(branch), rate, key, place)
    scale = 1.0 if mask is None else dropout_scale(rate)
    function = _residual(epsilon, scale, mask is not None)
    arguments = (hidden, branch, gamma, beta) if mask is None else (hidden, branch, gamma, beta, mask)
    return _compiled(function)(*arguments) if is_compiled else function(*arguments)


@functools.cache
def _residual(epsilon: float, scale: float, is_masked: bool) -> Callable[..., tf.Tensor]:
    def function(hidden, branch, gamma, beta, mask=None):
        wide = tf.cast(branch, gamma.dtype)
        if is_masked:
            wide = tf.where(mask, wide * scale, tf.zeros([], wide.dtype))
        return tf.cast(normalized(tf.cast(hidden, gamma.dtype) + wide, gamma, beta, epsilon), hidden.dtype)

    return function


def activated(x: tf.Tensor, function: Callable[[tf.Tensor], tf.Tensor], is_compiled: bool) -> tf.Tensor:
    """function(x) in float32, given in the dtype of x: CPUs take twice as long for GELU in bfloat16."""
    in_float32 = _in_float32(function)
    return _compiled(in_float32)(x) if is_compiled else in_float32(x)


@functools.cache
def _in_float32(function: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    def wide(x):
        return function(x) if x.dtype == tf.float64 else tf.cast(function(tf.cast(x, tf.float32)), x.dtype)

    return wide


@functools.cache
def _compiled(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """`function` of tensors by XLA; its gradient too, from the arguments alone."""
    forward = tf.function(function, jit_compile=True, autograph=False)

    @tf.function(jit_compile=True, autograph=False)
    def backward(arguments, gradient):
        sources = [argument for argument in arguments if argument.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            result = function(*arguments)
        return tape.gradient(result, sources, gradient)

    @tf.custom_gradient
    def differentiable(*arguments):
        def gradients(gradient):
            found = iter(backward(arguments, gradient))
            return [next(found) if argument.dtype.is_floating else None for argument in arguments]

        return forward(*arguments), gradients

    return differentiable
