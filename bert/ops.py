"""What a layer computes besides its products with weights: attention, bias, activation, residual and LayerNorm.

This module uses TensorFlow's own operations. `ops_cpu` and `ops_gpu` have faster versions of the same functions.
`Bert` chooses one of the three modules for each pass. W is the width of a layer; the other shapes are those of
bert/model.py.
"""

import functools
from collections.abc import Callable

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

Product = tuple[tf.Tensor, tf.Tensor]  # x W [R, W] of a linear layer, and its bias [W], which is not yet added
Norm = tuple[tf.Tensor, tf.Tensor, float]  # gamma [W], beta [W] and epsilon of a LayerNorm
Heads = list[tf.Tensor]  # query, key and value, each [B, N, T, D]

biased = tf.nn.bias_add  # x [R, W] + bias [W]


def on_cpu() -> bool:
    """Whether TensorFlow computes without GPUs."""
    return not tf.config.get_visible_devices("GPU")


def wide(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float32)


def activated(x: tf.Tensor, bias: tf.Tensor, activation: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """activation(x + bias), computed in float32 and returned in the dtype of x: on CPUs, GELU in bfloat16 would
    take twice as long."""
    return tf.cast(activation(wide(biased(x, bias))), x.dtype)


def normalized(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Layer normalisation over the last axis (Ba et al. 2016)."""
    centered = x - tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), -1, keepdims=True)
    return centered * tf.math.rsqrt(variance + epsilon) * gamma + beta


def residual(hidden: tf.Tensor, branch: Product, norm: Norm, dropout: Dropout) -> tf.Tensor:
    """LayerNorm(hidden + dropout(branch)) [R, H], in float32, returned in the dtype of `hidden`."""
    masks = [dropout.kept(branch[0])] if dropout.is_on else []
    total = residual_sum(wide(biased(*branch)), hidden, dropout.scale, *masks)
    return tf.cast(normalized(total, *norm), hidden.dtype)


def residual_sum(branch: tf.Tensor, hidden: tf.Tensor, scale: float, mask: tf.Tensor | None = None) -> tf.Tensor:
    """hidden + scale * branch where the mask keeps it, in the dtype of `branch`."""
    if mask is not None:
        branch = tf.where(mask, branch * scale, tf.zeros([], branch.dtype))
    return tf.cast(hidden, branch.dtype) + branch


def attention(heads: Heads, mask: tf.Tensor, draws: tf.Tensor | None, dropout: Dropout) -> tf.Tensor:
    """dropped(softmax(Q K^T / sqrt(D) + mask)) V -> [B, N, T, D] (Vaswani et al. 2017, section 3.2.1).

    Args:
      mask: [B, 1, 1, T] of the heads' dtype, added to the scores.
      draws: integers [B, N, T, T], from `dropout.draws`; None without dropout. The kept values are not scaled
        here.
    """
    query, key, value = heads
    # On CPUs oneDNN fuses product, scale and mask into one operation.
    probs = softmax(tf.matmul(query, key, transpose_b=True) * query.shape[-1] ** -0.5 + mask)
    return tf.matmul(dropped(probs, draws, dropout.highest_kept), value)


def dropped(probs: tf.Tensor, draws: tf.Tensor | None, highest_kept: int) -> tf.Tensor:
    """`probs` where dropout keeps them, else 0."""
    return probs if draws is None else tf.where(draws <= highest_kept, probs, tf.zeros([], probs.dtype))


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
