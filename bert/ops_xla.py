"""The functions of bert/ops.py; XLA compiles those between the products with weights.

Each TensorFlow operation is a pass over memory, and on CPUs these passes take as long as the products. A compiled
part needs one pass forward and one backward; the backward pass recomputes what it needs. XLA compiles for each
shape, so the rows are padded to one of a few numbers of rows: `padding_rows`.
"""

import functools
from collections.abc import Callable

import tensorflow as tf

from bert import ops
from bert.dropout import Dropout
from bert.ops import (  # noqa: F401  attention and random_words are the same here
    attention,
    column_sums,
    random_words,
    residual_sum,
    wide,
)

FEWEST_ROWS, ROW_PARTS = 64, 16


def padding_rows(rows: tf.Tensor | int) -> tf.Tensor:
    """int32 []: pads to a multiple of 64 rows; from 2,048 rows on, to one of a 16th of the power of two below.

    For many rows, padding is about 2 %. Between any number of rows and twice that number there are at most 17
    shapes.
    """
    return missing(rows, FEWEST_ROWS, ROW_PARTS)


def missing(count: tf.Tensor | int, unit: int, parts: int) -> tf.Tensor:
    """How much to add for a multiple of `unit`, or of (the power of two below) / `parts` if that is larger."""
    powers = tf.constant([1 << exponent for exponent in range((unit * parts).bit_length(), 31)])
    # No tf.where: a GPU would compute it, and the host wait for it.
    return -count % tf.maximum(tf.reduce_max(tf.minimum(count // powers, 1) * (powers // parts)), unit)


def biased(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return _compiled(tf.add)(x, bias)


def activated(x: tf.Tensor, bias: tf.Tensor, activation: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    return _compiled(_of_biased(activation))(x, bias)


@functools.cache
def _of_biased(activation: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    def function(x, bias):
        wide_x = wide(x)
        return tf.cast(activation(wide_x + tf.cast(bias, wide_x.dtype)), x.dtype)

    return function


@functools.cache
def _compiled(
    function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Compiles `function` of rows and a bias, which it adds to each row, and its gradient, which needs only these
    two.

    The matrix product before it could add the bias, but then oneDNN takes up to twice the time.
    """
    forward = tf.function(function, jit_compile=True, autograph=False)

    @tf.function(jit_compile=True, autograph=False)
    def backward(x, bias, gradient):
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = function(x, bias)
        return tape.gradient(result, x, gradient)

    @tf.custom_gradient
    def differentiable(x, bias):
        def gradients(gradient):
            d_x = backward(x, bias, gradient)
            return d_x, column_sums(d_x)

        return forward(x, bias), gradients

    return differentiable


def residual(
    hidden: tf.Tensor,
    branch: tf.Tensor,
    bias: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    epsilon: float,
    dropout: Dropout,
) -> tf.Tensor:
    masks = [dropout.kept(branch)] if dropout.is_on else []
    return _compiled_residual(epsilon, dropout.scale)(branch, bias, hidden, gamma, beta, *masks)


@functools.cache
def _compiled_residual(epsilon: float, scale: float) -> Callable[..., tf.Tensor]:
    """`residual`, compiled by XLA. Its custom gradient (Ba et al. 2016, supplement) needs the arguments and two
    numbers per row."""

    def total_of(branch, bias, hidden, dtype, masks):
        branch = tf.cast(branch, dtype) + tf.cast(bias, dtype)
        return residual_sum(branch, hidden, scale, *masks)

    @functools.partial(tf.function, jit_compile=True, autograph=False)
    def forward(branch, bias, hidden, gamma, beta, *masks):
        total = total_of(branch, bias, hidden, gamma.dtype, masks)
        mean = _row_sums(total, tf.ones_like(gamma)) / gamma.shape[0]
        squares = _row_sums(tf.square(total - mean), tf.ones_like(gamma))
        factor = tf.math.rsqrt(squares / gamma.shape[0] + epsilon)
        return tf.cast((total - mean) * factor * gamma + beta, hidden.dtype), mean, factor

    @functools.partial(tf.function, jit_compile=True, autograph=False)
    def backward(branch, bias, hidden, gamma, mean, factor, gradient, *masks):
        normal = (total_of(branch, bias, hidden, gamma.dtype, masks) - mean) * factor
        d_normed = tf.cast(gradient, gamma.dtype)
        product = d_normed * normal
        along, mean = (_row_sums(x, gamma) / gamma.shape[0] for x in (product, d_normed))
        d_total = (d_normed * gamma - mean - normal * along) * factor
        d_branch = tf.where(masks[0], d_total * scale, tf.zeros([], d_total.dtype)) if masks else d_total
        d_gamma, d_beta = (column_sums(x) if ops.on_cpu() else tf.reduce_sum(x, 0) for x in (product, d_normed))
        return tf.cast(d_branch, branch.dtype), tf.cast(d_total, hidden.dtype), d_gamma, d_beta

    @tf.custom_gradient
    def differentiable(branch, bias, hidden, gamma, beta, *masks):
        result, mean, factor = forward(branch, bias, hidden, gamma, beta, *masks)

        def gradients(gradient):
            d_branch, *rest = backward(branch, bias, hidden, gamma, mean, factor, gradient, *masks)
            return d_branch, column_sums(d_branch), *rest, *[None for _ in masks]

        return result, gradients

    return differentiable


def _row_sums(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """x [R, H] times weights [H] -> [R, 1]. On CPUs a matrix product takes a fraction of the time of XLA's sums.
    GPUs sum fast, and would round in a product."""
    return tf.matmul(x, weights[:, None]) if ops.on_cpu() else tf.reduce_sum(x * weights, -1, keepdims=True)
