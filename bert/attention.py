"""Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1), its gradient written out."""

import functools

import tensorflow as tf


def attention(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, mask: tf.Tensor, kept: tf.Tensor | None
) -> tf.Tensor:
    """softmax(Q K^T / sqrt(D) + mask), zero where not `kept`, times V -> [B, N, T, D].

    The matrices [B, N, T, T] are most of what attention costs: they stay in the dtype of the inputs and are passed
    over as seldom as can be. The softmax is computed in float32 nevertheless.

    Args:
      query, key, value: [B, N, T, D] of one dtype.
      mask: [B, 1, T, T] of that dtype, added to the scores.
      kept: bool [B, N, T, T]; what dropout leaves is not scaled here. None without dropout.
    """
    return _attention(query, key, value, mask, *(() if kept is None else (kept,)))


@tf.custom_gradient
def _attention(query, key, value, mask, *kept):
    scale, nothing = query.shape[-1] ** -0.5, tf.zeros([], query.dtype)

    def dropped(probs):
        return tf.where(kept[0], probs, nothing) if kept else probs

    # On CPUs product, scale and mask become one operation of oneDNN.
    probs = softmax(tf.matmul(query, key, transpose_b=True) * scale + mask)
    remaining = dropped(probs)
    context = tf.matmul(remaining, value)

    def gradient(d_context):
        d_value = tf.matmul(remaining, d_context, transpose_a=True)
        d_probs = dropped(tf.matmul(d_context, value, transpose_b=True))
        # The softmax's gradient is P (dP - rowsum(P dP)), and rowsum(P dP) = rowsum(dO O), of far fewer numbers:
        # Dao et al. 2022 (FlashAttention), appendix B.2, equation 4.
        sums = tf.reduce_sum(wide(d_context) * wide(context), -1, keepdims=True)
        d_scores = probs * (d_probs - tf.cast(sums, query.dtype))
        d_query = tf.matmul(d_scores, key) * scale
        d_key = tf.matmul(d_scores, query, transpose_a=True) * scale
        return d_query, d_key, d_value, None, *[None for _ in kept]

    return context, gradient


def wide(x: tf.Tensor) -> tf.Tensor:
    """x in float32, or float64 if it is that."""
    return x if x.dtype == tf.float64 else tf.cast(x, tf.float32)


def softmax(scores: tf.Tensor) -> tf.Tensor:
    """Softmax over the last axis, computed in float32, given in the dtype of `scores`."""
    if scores.dtype == tf.bfloat16 and _computes_in_float32():
        return tf.nn.softmax(scores)
    return tf.cast(tf.nn.softmax(wide(scores)), scores.dtype)


@functools.cache
def _computes_in_float32() -> bool:
    """Whether the softmax of bfloat16 is the rounded one of float32: oneDNN's is, on CPUs."""
    if tf.config.get_visible_devices("GPU"):
        return False
    with tf.init_scope():
        scores = tf.cast(tf.random.stateless_normal([64, 509], [1, 2]), tf.bfloat16)
        rounded = tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32)), tf.bfloat16)
        found = tf.function(tf.nn.softmax, autograph=False)(scores)
        return bool(tf.reduce_mean(tf.cast(found == rounded, tf.float32)) > 0.99)
