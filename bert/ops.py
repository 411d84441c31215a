"""What a layer computes besides its products with weights: attention, bias, activation, residual and LayerNorm.

This module uses TensorFlow's own operations. `ops_xla`, `ops_cpu` and `ops_gpu` have faster versions of the same
functions. `Bert` chooses one of the four modules for each forward pass. Rows R are the tokens of a batch, W the
width of a layer; the other shapes are those of bert/model.py.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from bert.dropout import Dropout, random_words  # noqa: F401  the generator is one of the functions

ACTIVATIONS = {
    # With erf, as in Google's first release and Hugging Face. tf.nn.gelu divides by sqrt(2): half as fast.
    "gelu": lambda x: 0.5 * x * (1.0 + tf.math.erf(x * 0.5**0.5)),
    "gelu_new": lambda x: tf.nn.gelu(x, approximate=True),  # with tanh, as in Google's last release
    "gelu_pytorch_tanh": lambda x: tf.nn.gelu(x, approximate=True),
    "relu": tf.nn.relu,
    "tanh": tf.math.tanh,
    "linear": tf.identity,
}


def on_cpu() -> bool:
    """Whether TensorFlow computes without GPUs."""
    return not tf.config.get_visible_devices("GPU")


def padding_rows(rows: tf.Tensor | int) -> tf.Tensor | int:
    """How many padding rows the functions of this module need after `rows`."""
    return 0


def wide(x: tf.Tensor) -> tf.Tensor:
    """x in float32, or in float64 if it already is."""
    return x if x.dtype == tf.float64 else tf.cast(x, tf.float32)


# -- bias, activation, residual and LayerNorm ---------------------------------------------------------------------


@tf.custom_gradient
def biased(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """x [R, W] + bias [W]."""
    return tf.nn.bias_add(x, bias), lambda gradient: (gradient, column_sums(gradient))


def column_sums(x: tf.Tensor) -> tf.Tensor:
    """[R, W] -> [W], as a product with ones. In bfloat16 this takes a third of the time of TensorFlow's sum over
    rows; both add in float32."""
    return tf.reshape(tf.matmul(tf.ones([1, tf.shape(x)[0]], x.dtype), x), [-1])


def activated(x: tf.Tensor, bias: tf.Tensor, activation: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """activation(x + bias), computed in float32 and returned in the dtype of x: on CPUs, GELU in bfloat16 would
    take twice as long."""
    return tf.cast(activation(wide(biased(x, bias))), x.dtype)


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
    dropout: Dropout,
) -> tf.Tensor:
    """LayerNorm(hidden + dropout(branch + bias)) [R, H], computed in gamma's dtype, returned in `hidden`'s."""
    masks = [dropout.kept(branch)] if dropout.is_on else []
    branch = tf.cast(biased(branch, bias), gamma.dtype)
    total = residual_sum(branch, hidden, dropout.scale, *masks)
    return tf.cast(normalized(total, gamma, beta, epsilon), hidden.dtype)


def residual_sum(branch: tf.Tensor, hidden: tf.Tensor, scale: float, mask: tf.Tensor | None = None) -> tf.Tensor:
    """hidden + scale * branch where the mask keeps it, in the dtype of `branch`."""
    if mask is not None:
        branch = tf.where(mask, branch * scale, tf.zeros([], branch.dtype))
    return tf.cast(hidden, branch.dtype) + branch


# -- attention ----------------------------------------------------------------------------------------------------


class BetweenProducts(NamedTuple):
    """The parts of attention between its matrix products; they can be compiled."""

    dropped: Callable
    d_scores: Callable


def dropped(highest_kept: int, probs: tf.Tensor, draws: tf.Tensor | None = None) -> tf.Tensor:
    """`probs` where dropout keeps them, else 0."""
    return probs if draws is None else tf.where(draws <= highest_kept, probs, tf.zeros([], probs.dtype))


def d_scores(highest_kept: int, probs, d_dropped, sums, draws=None, same_draws=None):
    """The gradient of the scores, and the softmax after dropout.

    The draws are passed twice. XLA cannot know that they are the same, so it computes both results in one loop
    (bert/xla.py), instead of adding a second loop for the part that they share.
    """
    d_probs = dropped(highest_kept, d_dropped, draws)
    return probs * (d_probs - tf.cast(sums, probs.dtype)), dropped(highest_kept, probs, same_draws)


PLAIN = BetweenProducts(dropped, d_scores)


def all_at_once(function: Callable[..., list], arrays: Sequence[tf.Tensor], num_results: int) -> list[tf.Tensor]:
    """Calls `function` once for all heads of all rows."""
    return function(PLAIN, *arrays)


def attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    mask: tf.Tensor,
    draws: tf.Tensor | None,
    dropout: Dropout,
    run: Callable[..., list[tf.Tensor]] = all_at_once,
) -> tf.Tensor:
    """dropped(softmax(Q K^T / sqrt(D) + mask)) V -> [B, N, T, D] (Vaswani et al. 2017, section 3.2.1).

    Most of the cost of attention comes from the matrices [B, N, T, T]. They stay in the dtype of the inputs and
    are read as rarely as possible. Of these matrices, the custom gradient needs only the softmax and the draws.

    Args:
      query, key, value: [B, N, T, D] of one dtype.
      mask: [B, 1, T, T] of that dtype, added to the scores.
      draws: integers [B, N, T, T], from `dropout.draws`; None without dropout. The kept values are not scaled
        here.
      run: calls a function (between, *arrays) -> results, where the arrays are [B, N, …].
    """
    scale, highest_kept = query.shape[-1] ** -0.5, dropout.highest_kept

    @tf.custom_gradient
    def differentiable(query, key, value, mask, *draws):
        # On CPUs oneDNN fuses product, scale and mask into one operation.
        probs = softmax(tf.matmul(query, key, transpose_b=True) * scale + mask)

        def forward(between, probs, value, *draws):
            return [tf.matmul(between.dropped(highest_kept, probs, *draws), value)]

        def backward(between, query, key, value, probs, d_context, sums, *draws):
            d_dropped = tf.matmul(d_context, value, transpose_b=True)
            d_scores, dropped = between.d_scores(highest_kept, probs, d_dropped, sums, *draws, *draws)
            d_query = tf.matmul(d_scores, key) * scale
            d_key = tf.matmul(d_scores, query, transpose_a=True) * scale
            return [d_query, d_key, tf.matmul(dropped, d_context, transpose_a=True)]

        def gradient(d_context):
            # The softmax's gradient is P (dP - rowsum(P dP)), and rowsum(P dP) = rowsum(dO O), which has far
            # fewer numbers: Dao et al. 2022 (FlashAttention), appendix B.2, equation 4.
            sums = tf.reduce_sum(wide(d_context) * wide(context), -1, keepdims=True)
            d_inputs = run(backward, [query, key, value, probs, d_context, sums, *draws], 3)
            return *d_inputs, None, *[None for _ in draws]

        (context,) = run(forward, [probs, value, *draws], 1)
        return context, gradient

    return differentiable(query, key, value, mask, *(() if draws is None else (draws,)))


def softmax(scores: tf.Tensor) -> tf.Tensor:
    """Softmax over the last axis, computed in float32 and returned in the dtype of `scores`."""
    if scores.dtype == tf.bfloat16 and _softmax_computes_in_float32():
        return tf.nn.softmax(scores)
    return tf.cast(tf.nn.softmax(wide(scores)), scores.dtype)


@functools.cache
def _softmax_computes_in_float32() -> bool:
    """Whether TensorFlow's bfloat16 softmax is the float32 softmax, rounded. With oneDNN, on CPUs, it is."""
    if not on_cpu():
        return False
    with tf.init_scope():
        scores = tf.cast(tf.random.stateless_normal([64, 509], [1, 2]), tf.bfloat16)
        rounded = tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32)), tf.bfloat16)
        actual = tf.function(tf.nn.softmax, autograph=False)(scores)
        return bool(tf.reduce_mean(tf.cast(actual == rounded, tf.float32)) > 0.99)
