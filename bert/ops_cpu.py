"""The functions of bert/ops.py for training on CPUs; XLA compiles those between the products with
weights.

Each TensorFlow operation is a pass over memory, and on CPUs these passes take as long as the
products. A compiled part needs one pass forward and one backward; the backward pass recomputes what
it needs. XLA compiles for each number of rows, of which bert/batch.py makes few. Types are
those of bert/ops.py.
"""

import functools

import tensorflow as tf

from bert import ops
from bert.ops import residual_sum, scaled, wide

FEWEST_WORDS, WORD_PARTS = 4096, 8
IN_TURNS_FROM = 128  # positions; the matrices of shorter rows are too small to loop over
# For each thread: the size of one of the matrices [T, T] over all heads of one turn of the loop.
# Whole rows of MiniLM (12 heads, 384 positions) make a step 7 % slower in float32, 2 % in bfloat16
# (AMD EPYC, 1 MiB a core).
TURN_BYTES = 2 << 20
keeps_matrices = True

compiled = functools.partial(tf.function, jit_compile=True, autograph=False)
_threefry = compiled(functools.partial(ops.random_words, generator="threefry"))


def random_words(count, seed):
    """At least `count` words, rounded up so that XLA compiles for few different counts: to a
    multiple of 4,096, or of an eighth of the power of two below.

    XLA's Threefry (Salmon et al. 2011) takes 40 % of the time of TensorFlow's Philox.
    """
    lowest = (FEWEST_WORDS * WORD_PARTS).bit_length()
    powers = tf.constant([1 << exponent for exponent in range(lowest, 31)])
    is_reached = tf.minimum(count // powers, 1)
    units = is_reached * (powers // WORD_PARTS)
    unit = tf.maximum(tf.reduce_max(units), FEWEST_WORDS)
    return _threefry(count + -count % unit, seed)


def column_sums(x):
    """[R, W] -> [W], as a product with ones. In bfloat16 this takes a third of the time of
    TensorFlow's sum over rows; both add in float32."""
    ones = tf.ones([1, tf.shape(x)[0]], x.dtype)
    return tf.reshape(tf.matmul(ones, x), [-1])


def activated(x, bias, activation=None):
    return _compiled_activation(activation)(x, bias)


biased = activated


@functools.cache
def _compiled_activation(activation):
    """activation(x + bias), or the sum alone, and its gradient, which needs only these two arrays.
    The matrix product before it could add the bias, but then oneDNN takes up to twice the time."""

    def function(x, bias):
        if activation is None:
            return x + bias
        result = activation(wide(x) + wide(bias))
        return tf.cast(result, x.dtype)

    forward, backward = _both_ways(function)

    @tf.custom_gradient
    def differentiable(x, bias):
        def gradients(gradient):
            d_x = gradient if activation is None else backward(gradient, x, bias)
            return d_x, column_sums(d_x)

        return forward(x, bias), gradients

    return differentiable


def _both_ways(function):
    """The compiled function, and its gradient by the first argument, from the result's gradient
    and the arguments."""
    backward = functools.partial(ops.gradient_again, function)
    return compiled(function), compiled(backward)


def gated(x, activation):
    return _compiled_gate(activation)(x)


@functools.cache
def _compiled_gate(activation):
    forward, backward = _both_ways(functools.partial(ops.gated, activation=activation))

    @tf.custom_gradient
    def differentiable(x):
        return forward(x), lambda gradient: backward(gradient, x)

    return differentiable


_compiled_rotation = compiled(ops.rotated)


def rotated(x, cosines, sines):
    @tf.custom_gradient
    def differentiable(x):
        result = _compiled_rotation(x, cosines, sines)
        return result, lambda gradient: _compiled_rotation(gradient, cosines, -sines)

    return differentiable(x)


def residual(hidden, branch, norm, dropout):
    x, bias = branch
    gamma, beta, epsilon = norm
    masks = [dropout.kept(x)] if dropout.is_on else []
    compiled_residual = _compiled_residual(epsilon, dropout.scale)
    return compiled_residual(x, bias, hidden, gamma, beta, *masks)


@functools.cache
def _compiled_residual(epsilon, scale):
    """Its gradient needs the arguments and two numbers per row."""

    def total_of(branch, bias, hidden, masks):
        return residual_sum(wide(branch) + wide(bias), hidden, scale, *masks)

    @compiled
    def forward(branch, bias, hidden, gamma, beta, *masks):
        total = total_of(branch, bias, hidden, masks)
        mean, factor = _mean_and_factor(total, epsilon)
        normed = (total - mean) * factor * gamma + beta
        return tf.cast(normed, hidden.dtype), mean, factor

    @compiled
    def backward(branch, bias, hidden, gamma, mean, factor, gradient, *masks):
        total = total_of(branch, bias, hidden, masks)
        normal = (total - mean) * factor
        d_beta = wide(gradient)  # of each row
        d_total, d_gamma = _norm_gradients(d_beta, normal, gamma, factor)
        d_branch = tf.cast(scaled(d_total, scale, *masks), branch.dtype)
        d_hidden = tf.cast(d_total, hidden.dtype)
        return d_branch, d_hidden, d_gamma, tf.reduce_sum(d_beta, 0)

    @tf.custom_gradient
    def differentiable(branch, bias, hidden, gamma, beta, *masks):
        result, mean, factor = forward(branch, bias, hidden, gamma, beta, *masks)

        def gradients(gradient):
            d_branch, *rest = backward(branch, bias, hidden, gamma, mean, factor, gradient, *masks)
            return d_branch, column_sums(d_branch), *rest, *[None for _ in masks]

        return result, gradients

    return differentiable


def prenormed(hidden, branch, gamma, epsilon):
    terms = [hidden] if branch is None else [hidden, branch]
    return _compiled_prenorm(epsilon)(gamma, *terms)


@functools.cache
def _compiled_prenorm(epsilon):
    """Its gradient needs the sum, which the next residual needs too, and two numbers per row."""

    @compiled
    def forward(gamma, *terms):
        total = sum(wide(term) for term in terms)
        total = tf.cast(total, terms[0].dtype)
        mean, factor = _mean_and_factor(wide(total), epsilon)
        normed = (wide(total) - mean) * factor * gamma
        return total, tf.cast(normed, total.dtype), mean, factor

    @compiled
    def backward(total, gamma, mean, factor, d_total, d_normed):
        normal = (wide(total) - mean) * factor
        d_through, d_gamma = _norm_gradients(wide(d_normed), normal, gamma, factor)
        d_term = wide(d_total) + d_through
        return d_gamma, tf.cast(d_term, total.dtype)

    @tf.custom_gradient
    def differentiable(gamma, *terms):
        total, normed, mean, factor = forward(gamma, *terms)

        def gradients(d_total, d_normed):
            d_gamma, d_term = backward(total, gamma, mean, factor, d_total, d_normed)
            return d_gamma, *[d_term for _ in terms]

        return (total, normed), gradients

    return differentiable


def _mean_and_factor(total, epsilon):
    """Of each row [R, H] its mean and 1 / its deviation, each [R, 1]."""
    ones = tf.ones([total.shape[-1]])
    mean = _weighted_means(total, ones)
    squares = tf.square(total - mean)
    variance = _weighted_means(squares, ones)
    return mean, tf.math.rsqrt(variance + epsilon)


def _norm_gradients(d_normed, normal, gamma, factor):
    """LayerNorm's gradients by its input [R, H], which is `normal` without mean and deviation, and
    by gamma [H] (Ba et al. 2016, supplement)."""
    d_gamma = d_normed * normal
    along = _weighted_means(d_gamma, gamma)
    means = _weighted_means(d_normed, gamma)
    d_total = (d_normed * gamma - means - normal * along) * factor
    return d_total, tf.reduce_sum(d_gamma, 0)


def _weighted_means(x, weights):
    """The means of x [R, H] times weights [H] -> [R, 1]. A product is faster than XLA's sums within
    rows."""
    sums = tf.matmul(x, weights[:, None])
    return sums / weights.shape[0]


def attention(heads, mask, draws, dropout, longest):
    """Most of the cost comes from the matrices [B, N, T, T]. They stay in the dtype of the inputs
    and are read as rarely as possible; the gradient needs two of them, the softmax and the draws.
    The heads of long rows are processed a few at a time, with compiled code between their products,
    compiled for each value of T."""
    if dropout.key is None:
        return ops.attention(heads, mask, draws, dropout, longest)
    shape = heads[0].shape
    scale = shape[-1] ** -0.5
    highest_kept = dropout.highest_kept
    drawn = [] if draws is None else [draws]

    @tf.custom_gradient
    def differentiable(query, key, value):
        probs = ops.softmax(tf.matmul(query, key, transpose_b=True) * scale + mask)

        def forward(is_compiled, probs, value, draws=None):
            dropped = _dropped if is_compiled else ops.dropped
            kept_probs = dropped(probs, draws, highest_kept)
            return [tf.matmul(kept_probs, value)]

        def backward(is_compiled, probs, query, key, value, d_context, sums, draws=None):
            d_dropped = tf.matmul(d_context, value, transpose_b=True)
            between = _compiled_d_scores if is_compiled else _d_scores
            d_scores, kept_probs = between(probs, d_dropped, sums, draws, draws, highest_kept)
            d_query = tf.matmul(d_scores, key) * scale
            d_key = tf.matmul(d_scores, query, transpose_a=True) * scale
            d_value = tf.matmul(kept_probs, d_context, transpose_a=True)
            return [d_query, d_key, d_value]

        def gradient(d_context):
            # The softmax's gradient is P (dP - rowsum(P dP)), and rowsum(P dP) = rowsum(dO O),
            # which has far fewer numbers: Dao et al. 2022 (FlashAttention), appendix B.2, equation
            # 4.
            products = wide(d_context) * wide(context)
            sums = tf.reduce_sum(products, -1, keepdims=True)
            arrays = [probs, query, key, value, d_context, sums, *drawn]
            return _in_turns(backward, arrays, 3, longest)

        (context,) = _in_turns(forward, [probs, value, *drawn], 1, longest)
        return context, gradient

    # The loop's result does not know the number of heads.
    return tf.ensure_shape(differentiable(*heads), shape)


def _in_turns(function, arrays, num_results, longest):
    """Calls `function(is_compiled, *arrays)` on a few heads of a row at a time, if rows are long.
    The first array is [B, N, T, K]. The data of one call then stays in the cache, and the shapes
    that XLA compiles for differ only in the lengths. The loop takes as long to trace as the rest of
    a layer, so a run without long rows goes without it."""

    def at_once():
        return function(False, *arrays)

    if longest is not None and longest < IN_TURNS_FROM:
        return at_once()
    matrices_BNTK = arrays[0]
    dtype = matrices_BNTK.dtype
    rows, heads, length, num_keys = tf.unstack(tf.shape(matrices_BNTK))
    # one per thread of the rank
    num_caches = max(1, tf.config.threading.get_intra_op_parallelism_threads())
    numbers_per_turn = num_caches * TURN_BYTES // dtype.size
    most_heads = numbers_per_turn // tf.maximum(length * num_keys, 1)
    numbers = tf.range(1, heads + 1)
    fits = (numbers <= most_heads) & (heads % numbers == 0)
    heads_per_turn = tf.reduce_max(tf.where(fits, numbers, 1))

    def reshaped(array, *sizes):
        shape = tf.concat([sizes, tf.shape(array)[2:]], 0)
        return tf.reshape(array, shape)

    def loop():
        num_turns = rows * heads // heads_per_turn
        parts = [reshaped(array, num_turns, heads_per_turn) for array in arrays]

        def one_turn(number):
            own_parts = [part[number] for part in parts]
            return function(True, *own_parts)

        results = tf.map_fn(
            one_turn,
            tf.range(num_turns),
            parallel_iterations=1,
            fn_output_signature=[dtype] * num_results,
        )
        return [reshaped(result, rows, heads) for result in results]

    is_worth_it = tf.logical_and(length >= IN_TURNS_FROM, rows > 0)
    return tf.cond(is_worth_it, loop, at_once)


@compiled
def _dropped(probs, draws, highest_kept):
    """Selects on the bits: between two bfloat16 numbers XLA's CPU code would select in float32."""
    unsigned = {2: tf.uint16, 4: tf.uint32}[probs.dtype.size]
    bits = tf.bitcast(probs, unsigned)
    kept_bits = ops.dropped(bits, draws, highest_kept)
    return tf.bitcast(kept_bits, probs.dtype)


def _d_scores(probs, d_dropped, sums, draws, same_draws, highest_kept):
    """The gradient of the scores, and the softmax after dropout.

    The draws are passed twice. XLA cannot know that they are the same, so it computes both results
    in one loop (`bert.set_xla_flags`), instead of adding a second loop for the part that they
    share.
    """
    d_probs = ops.dropped(d_dropped, draws, highest_kept)
    d_scores = probs * (d_probs - tf.cast(sums, probs.dtype))
    return d_scores, ops.dropped(probs, same_draws, highest_kept)


@compiled
def _compiled_d_scores(probs, d_dropped, sums, draws, same_draws, highest_kept):
    """Rounds only at the end: in bfloat16 XLA's CPU code rounds after each operation, which takes
    longer."""
    d_scores, _ = _d_scores(wide(probs), wide(d_dropped), sums, draws, None, highest_kept)
    return tf.cast(d_scores, probs.dtype), _dropped(probs, same_draws, highest_kept)
