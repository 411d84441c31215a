"""The functions of bert/ops.py for a pass that XLA compiles as a whole for a GPU.

A GPU takes about as long for these operations as for the memory that they read and write, so it
matters which of them XLA joins into one kernel and what it keeps between the passes: sums are plain
sums, the backward pass starts from arrays in the model's dtype instead of keeping float32 copies,
and `stored` says what stays in memory. Types are those of bert/ops.py.
"""

import tensorflow as tf
from tensorflow import Tensor
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.ops import control_flow_util

from bert import ops
from bert.ops import (
    Dropout,
    residual_sum,
    row_means,
    scaled,
    wide,
)

GOLDEN = 0x9E3779B9  # the odd number next to 2^32 / golden ratio: its multiples are far apart
PLACES, GROUPS = 512, 8  # more dropouts than a model has, and as many groups as a layout may have
ROW_PLACE = -1  # no dropout's place
random_words = None  # `kept` computes the numbers where they are used
keeps_matrices = True
# With a gradient of its own for `prenormed`, ModernBERT's step would take 2 % less time, by
# prediction, and as much memory.
prenormed, rotated = ops.prenormed, ops.rotated


def stored(*tensors: Tensor) -> list[Tensor]:
    """The same values. XLA writes them to memory and reads them where they are used: it neither
    computes them twice nor keeps the arrays from which they came. Outside of XLA every result is in
    memory."""
    graph = tf.compat.v1.get_default_graph()
    in_xla = control_flow_util.GraphOrParentsInXlaContext(graph)
    return gen_xla_ops.xla_optimization_barrier(tensors) if in_xla else list(tensors)


def kept(dropout: Dropout, shape: Tensor, *after: Tensor) -> Tensor:
    """bool [shape]: which elements stay, a function of key, place, group and the position in the
    array.

    The generator Philox (Salmon et al. 2011) draws two words for each place of the model and two
    for each row, once per step, because XLA sees that all places draw the same. The numbers of a
    row at a place are polynomials in their column and these words, made of the permutation x (2 x +
    1) of RC6 (Rivest et al. 1998), in which the high bits depend on all others. XLA joins these
    sums and products with the loop that uses the numbers, so they are never in memory. It does not
    join shifts, nor the generator itself.

    `after` must be there before XLA computes the numbers. The backward pass names its gradient:
    else XLA would see that it needs the numbers of the forward pass again, and keep them.
    """
    *row_shape, num_columns = tf.unstack(shape)
    num_places = GROUPS * PLACES
    num_rows = tf.reduce_prod(shape[:-1])
    seed = tf.stack([dropout.key, ROW_PLACE])
    words = tf.random.stateless_uniform(
        [2, num_places + num_rows], seed, minval=None, maxval=None, dtype=tf.int32, alg="philox"
    )
    place = words[:, PLACES * dropout.group + dropout.place]
    rows = tf.reshape(words[:, num_places:], [2, *row_shape, 1])
    step = tf.bitcast(tf.constant(GOLDEN, tf.uint32), tf.int32)
    columns = tf.range(num_columns) * step
    first = permuted(permuted(rows[0] ^ place[0]) + place[1])
    second = permuted(permuted(rows[1] ^ place[1]) + place[0])
    first, second, columns, *_ = stored(first, second, columns, *after)
    mixed = permuted(permuted(columns + first) ^ second)
    draws = permuted(mixed + first)
    # on the scale of 32 bits
    highest_kept = (dropout.highest_kept + 1 << 32 - dropout.num_bits) - 1
    return draws <= highest_kept


def permuted(x):
    return x * (x + x + 1)


@tf.custom_gradient
def biased(x, bias):
    return x + bias, lambda gradient: (gradient, column_sums(gradient))


def column_sums(x):
    """[R, W] -> [W], added in float32."""
    sums = tf.reduce_sum(wide(x), 0)
    return tf.cast(sums, x.dtype)


def activated(x, bias, activation):
    def function(x, bias):
        result = activation(wide(x) + wide(bias))
        return tf.cast(result, x.dtype)

    @tf.custom_gradient
    def differentiable(x, bias):
        def gradients(gradient):
            (d_x,) = stored(ops.gradient_again(function, gradient, x, bias))
            return d_x, column_sums(d_x)

        return function(x, bias), gradients

    return differentiable(x, bias)


def gated(x, activation):
    def function(x):
        return ops.gated(x, activation)

    @tf.custom_gradient
    def differentiable(x):
        def gradients(gradient):
            (d_x,) = stored(ops.gradient_again(function, gradient, x))
            return d_x

        return function(x), gradients

    return differentiable(x)


def residual(hidden, branch, norm, dropout):
    """Keeps the sum without its mean, in the dtype of `hidden`, and 1 / deviation of each row. The
    gradient is that of Ba et al. 2016, supplement."""
    x, bias = branch
    gamma, beta, epsilon = norm

    def mask(*after):
        return kept(dropout, tf.shape(x), *after) if dropout.is_on else None

    @tf.custom_gradient
    def differentiable(hidden, branch, bias, gamma, beta):
        total = residual_sum(wide(branch) + wide(bias), hidden, dropout.scale, mask())
        centered = total - row_means(total)
        (centered,) = stored(tf.cast(centered, hidden.dtype))
        variance = row_means(tf.square(wide(centered)))
        (factor,) = stored(tf.math.rsqrt(variance + epsilon))

        def normal():
            return wide(centered) * factor

        def gradients(gradient):
            d_normed = wide(gradient)
            d_normal = d_normed * gamma
            along = row_means(d_normal * normal())
            d_total = (d_normal - row_means(d_normal) - normal() * along) * factor
            (d_hidden,) = stored(tf.cast(d_total, hidden.dtype))
            d_branch = scaled(wide(d_hidden), dropout.scale, mask(gradient))
            d_bias = tf.cast(tf.reduce_sum(d_branch, 0), bias.dtype)
            d_gamma = tf.reduce_sum(d_normed * normal(), 0)
            d_beta = tf.reduce_sum(d_normed, 0)
            return d_hidden, tf.cast(d_branch, branch.dtype), d_bias, d_gamma, d_beta

        normed = normal() * gamma + beta
        return tf.cast(normed, hidden.dtype), gradients

    return differentiable(hidden, x, bias, gamma, beta)


def attention(heads, mask, draws, dropout, longest):
    """Keeps one matrix [B, N, T, T]: the softmax, negative where dropout takes it away. The matrix
    products take the positive part themselves. There are no draws: `kept` computes the numbers
    where they are needed."""
    scale = heads[0].shape[-1] ** -0.5

    @tf.custom_gradient
    def differentiable(query, key, value):
        products = tf.matmul(query, key, transpose_b=True)
        scores = wide(products) * scale + wide(mask)
        probs = tf.nn.softmax(scores)
        if dropout.is_on:
            is_kept = kept(dropout, tf.shape(scores))
            probs = tf.where(is_kept, probs, -probs)
        (signed,) = stored(tf.cast(probs, value.dtype))
        kept_probs = tf.nn.relu(signed)
        context = tf.matmul(kept_probs, value)

        def gradient(d_context):
            # The sums are those of bert/ops.py. The sums of P dP would take another pass over the
            # matrices.
            sums = tf.reduce_sum(wide(d_context) * wide(context), -1, keepdims=True)
            d_kept = wide(tf.matmul(d_context, value, transpose_b=True))
            d_probs = tf.where(signed > 0, d_kept, tf.zeros([], d_kept.dtype))
            probs = wide(tf.abs(signed))
            d_scores = probs * (d_probs - sums) * scale
            d_scores = tf.cast(d_scores, value.dtype)
            d_query = tf.matmul(d_scores, key)
            d_key = tf.matmul(d_scores, query, transpose_a=True)
            d_value = tf.matmul(kept_probs, d_context, transpose_a=True)
            return d_query, d_key, d_value

        return context, gradient

    return differentiable(*heads)
