"""What stands between a layer's matrix products: dropout, activation, residual and layer normalisation.

On CPUs each of TensorFlow's operations is a pass over memory, and those passes take as long as the products. So
the larger of them are compiled by XLA into one pass forward and one backward, which computes again what it needs.
XLA compiles for each shape: what is compiled has `more_rows` of padding, so that the shapes are few.
"""

import functools
import os
from collections.abc import Callable

import tensorflow as tf

# On CPUs XLA writes several results in one loop only if told to, and then computes nothing twice: what two results
# share gets a loop of its own. It reads its flags when it first compiles. They may be the name of a file, too.
ONE_LOOP, _flags = "xla_cpu_use_multi_output_fusion", os.environ.get("XLA_FLAGS", "").strip()
if ONE_LOOP not in _flags and _flags[:1] in ("", "-"):
    os.environ["XLA_FLAGS"] = f"{_flags} --xla_backend_extra_options={ONE_LOOP}=true".strip()

COMPILED_WIDTH = 256  # numbers of a row; compiling pays above
FEWEST_ROWS, ROW_PARTS = 64, 16
FEWEST_WORDS, WORD_PARTS = 4096, 8


def on_cpu() -> bool:
    """Whether TensorFlow computes without GPUs: some ways are faster on CPUs alone."""
    return not tf.config.get_visible_devices("GPU")


def more_rows(rows: tf.Tensor | int) -> tf.Tensor:
    """Rows of padding, int32 [], behind `rows`: up to a multiple of 64, and from 2,048 on of a 16th of the power
    of two below. So the padding is 2 % of many rows, and there are at most 16 shapes up to twice as many."""
    return _more(rows, FEWEST_ROWS, ROW_PARTS)


def _more(count: tf.Tensor | int, unit: int, parts: int) -> tf.Tensor:
    """What rounds up to a multiple of `unit`, or of a power of two below divided by `parts` if that is more."""
    powers = tf.constant([1 << exponent for exponent in range((unit * parts).bit_length(), 31)])
    return -count % tf.reduce_max(tf.where(count >= powers, powers // parts, unit))


def dropout_bits(rate: float) -> int:
    """8 random bits decide about each element, where that changes rate and 1 - rate by at most 2 %; else 16."""
    return 8 if abs(round(rate * 256) / 256 - rate) <= 0.02 * min(rate, 1 - rate) else 16


def effective_rate(rate: float) -> float:
    """The rate of `dropout`: 0.1 becomes 26 / 256."""
    steps = 1 << dropout_bits(rate)
    return round(rate * steps) / steps


def dropout_scale(rate: float) -> float:
    """What the elements that are kept are multiplied by."""
    return 1 / (1 - effective_rate(rate))


def kept(shape: tf.Tensor, rate: float, key: tf.Tensor, place: int, is_compiled: bool = False) -> tf.Tensor:
    """bool [shape], False with probability `effective_rate(rate)`: a pure function of its arguments, which are as
    for `draws`."""
    return draws(shape, rate, key, place, is_compiled) <= highest_kept(rate)


def highest_kept(rate: float) -> int:
    """The highest of `draws` whose element is kept."""
    steps = 1 << dropout_bits(rate)
    return steps // 2 - 1 - round(rate * steps)


def draws(shape: tf.Tensor, rate: float, key: tf.Tensor, place: int, is_compiled: bool = False) -> tf.Tensor:
    """int8 or int16 [shape], fewer than 2^31, uniform over all values: a pure function of its arguments.

    Args:
      key: int32 [2], a function of seed, step, micro-batch and rank.
      place: number of this dropout in the model.
      is_compiled: on CPUs by XLA's code for Threefry (Salmon et al. 2011) instead of TensorFlow's for Philox, in
        40 % of the time.
    """
    bits = dropout_bits(rate)
    per_word = 64 // bits
    size = tf.reduce_prod(shape)
    seed = tf.random.experimental.stateless_fold_in(key, place)
    # Several draws from each 64-bit word: on CPUs the generator costs more than the product before it.
    count = (size + per_word - 1) // per_word
    if is_compiled and on_cpu():
        words = _threefry(count + _more(count, FEWEST_WORDS, WORD_PARTS), seed)
    else:
        words = _words(count, seed)
    drawn = tf.reshape(tf.bitcast(words, tf.int8 if bits == 8 else tf.int16), [-1])[:size]
    return tf.reshape(drawn, shape)


def _words(count: tf.Tensor, seed: tf.Tensor, generator: str = "auto_select") -> tf.Tensor:
    return tf.random.stateless_uniform([count], seed, minval=None, maxval=None, dtype=tf.uint64, alg=generator)


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _threefry(count: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    return _words(count, seed, "threefry")


def dropout(x: tf.Tensor, rate: float, key: tf.Tensor | None, place: int) -> tf.Tensor:
    """Zeroes each element with probability `effective_rate(rate)` and scales the rest to keep the mean.

    `key` and `place` as for `kept`; a key of None turns dropout off.
    """
    if key is None or rate == 0.0:
        return x
    dropped = tf.where(kept(tf.shape(x), rate, key, place), x, tf.zeros([], x.dtype))
    return dropped * tf.cast(dropout_scale(rate), x.dtype)


def biased(x: tf.Tensor, bias: tf.Tensor, is_compiled: bool = False) -> tf.Tensor:
    """x [R, W] + bias [W]. Use `is_compiled` where the values of R are few."""
    return _compiled(tf.add)(x, bias) if is_compiled else _biased(x, bias)


@tf.custom_gradient
def _biased(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    return tf.nn.bias_add(x, bias), lambda gradient: (gradient, _column_sums(gradient))


def _column_sums(x: tf.Tensor) -> tf.Tensor:
    """[R, W] -> [W] as a product with ones: in bfloat16 that takes a third of the time of TensorFlow's sum over
    rows; both add up in float32."""
    return tf.reshape(tf.matmul(tf.ones([1, tf.shape(x)[0]], x.dtype), x), [-1])


def normalized(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Layer normalisation over the last axis (Ba et al. 2016)."""
    centered = x - tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), -1, keepdims=True)
    return centered * tf.math.rsqrt(variance + epsilon) * gamma + beta


def residual(
    hidden: tf.Tensor,
    branch: tf.Tensor,
    bias: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    epsilon: float,
    rate: float,
    key: tf.Tensor | None,
    place: int,
    is_compiled: bool,
) -> tf.Tensor:
    """LayerNorm(hidden + dropout(branch + bias)) [R, H], computed in the dtype of gamma, in that of `hidden`.

    Use `is_compiled` where the values of R are few.
    """
    mask = None if key is None or rate == 0.0 else kept(tf.shape(branch), rate, key, place, is_compiled)
    scale = 1.0 if mask is None else dropout_scale(rate)
    masks = () if mask is None else (mask,)
    if is_compiled:
        return _compiled_residual(epsilon, scale)(branch, bias, hidden, gamma, beta, *masks)
    total = _residual_sum(_biased(branch, bias), None, hidden, gamma.dtype, scale, *masks)
    return tf.cast(normalized(total, gamma, beta, epsilon), hidden.dtype)


def _residual_sum(branch, bias, hidden, dtype, scale, mask=None):
    """hidden + dropout(branch + bias)."""
    wide = _wide(branch, bias, dtype)
    if mask is not None:
        wide = tf.where(mask, wide * scale, tf.zeros([], dtype))
    return tf.cast(hidden, dtype) + wide


@functools.cache
def _compiled_residual(epsilon: float, scale: float) -> Callable[..., tf.Tensor]:
    """`residual` by XLA with its gradient written out (Ba et al. 2016, its supplement), from the arguments and two
    numbers a row. The sums are products with a vector, which on CPUs take a fraction of the time of XLA's sums."""

    @functools.partial(tf.function, jit_compile=True, autograph=False)
    def forward(branch, bias, hidden, gamma, beta, *masks):
        total = _residual_sum(branch, bias, hidden, gamma.dtype, scale, *masks)
        mean = _row_sums(total, tf.ones_like(gamma)) / gamma.shape[0]
        squares = _row_sums(tf.square(total - mean), tf.ones_like(gamma))
        factor = tf.math.rsqrt(squares / gamma.shape[0] + epsilon)
        return tf.cast((total - mean) * factor * gamma + beta, hidden.dtype), mean, factor

    @functools.partial(tf.function, jit_compile=True, autograph=False)
    def backward(branch, bias, hidden, gamma, mean, factor, gradient, *masks):
        normal = (_residual_sum(branch, bias, hidden, gamma.dtype, scale, *masks) - mean) * factor
        wide = tf.cast(gradient, gamma.dtype)
        product = wide * normal
        along, mean = (_row_sums(x, gamma) / gamma.shape[0] for x in (product, wide))
        d_total = (wide * gamma - mean - normal * along) * factor
        d_branch = tf.where(masks[0], d_total * scale, tf.zeros([], d_total.dtype)) if masks else d_total
        d_gamma, d_beta = (_column_sums(x) if on_cpu() else tf.reduce_sum(x, 0) for x in (product, wide))
        return tf.cast(d_branch, branch.dtype), tf.cast(d_total, hidden.dtype), d_gamma, d_beta

    @tf.custom_gradient
    def differentiable(branch, bias, hidden, gamma, beta, *masks):
        result, mean, factor = forward(branch, bias, hidden, gamma, beta, *masks)

        def gradients(gradient):
            d_branch, *rest = backward(branch, bias, hidden, gamma, mean, factor, gradient, *masks)
            return d_branch, _column_sums(d_branch), *rest, *[None for _ in masks]

        return result, gradients

    return differentiable


def _row_sums(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """[R, 1]. GPUs sum fast, and would round what they multiply."""
    return tf.matmul(x, weights[:, None]) if on_cpu() else tf.reduce_sum(x * weights, -1, keepdims=True)


def activated(
    x: tf.Tensor, bias: tf.Tensor, function: Callable[[tf.Tensor], tf.Tensor], is_compiled: bool
) -> tf.Tensor:
    """function(x + bias) in float32, given in the dtype of x: CPUs take twice as long for GELU in bfloat16."""
    in_float32 = _in_float32(function)
    if is_compiled:
        return _compiled(in_float32)(x, bias)
    return in_float32(_biased(x, bias), None)


@functools.cache
def _in_float32(function: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor, tf.Tensor | None], tf.Tensor]:
    def wide(x, bias):
        dtype = x.dtype if x.dtype == tf.float64 else tf.float32
        return tf.cast(function(_wide(x, bias, dtype)), x.dtype)

    return wide


def _wide(x: tf.Tensor, bias: tf.Tensor | None, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(x, dtype) if bias is None else tf.cast(x, dtype) + tf.cast(bias, dtype)


@functools.cache
def _compiled(
    function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """`function` of rows and a bias, which it adds to each row, by XLA; its gradient too, from the two alone.

    A bias in the product before costs more: with it oneDNN takes up to twice the time.
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
            return d_x, _column_sums(d_x)

        return forward(x, bias), gradients

    return differentiable
