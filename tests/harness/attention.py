"""What cuDNN's two operations are documented to compute, in TensorFlow, for machines without a
GPU (bert/ops_cudnn.py, `Attention`)."""

import tensorflow as tf

from bert.ops import wide


class ByHand:
    """In float32, the results rounded. What cuDNN leaves undefined is not a number."""

    def forward(self, heads, seen):
        scores = scores_of(heads, seen)
        sums = tf.reduce_logsumexp(scores, -1)
        context = tf.einsum("bntk,bknd->bntd", tf.nn.softmax(scores), wide(heads[2]))
        return tf.cast(context, heads[0].dtype), sums

    def backward(self, heads, seen, sums, context, d_context):
        query, key, value = map(wide, heads)
        probs = tf.exp(scores_of(heads, seen) - sums[..., None])
        d_probs = tf.einsum("btnd,bknd->bntk", wide(d_context), value)
        along = tf.einsum("btnd,btnd->bnt", wide(d_context), wide(context))
        d_scores = probs * (d_probs - along[..., None]) * query.shape[-1] ** -0.5
        d_query = tf.einsum("bntk,bknd->bntd", d_scores, key)
        d_key = tf.einsum("bntk,btnd->bnkd", d_scores, query)
        d_value = tf.einsum("bntk,btnd->bnkd", probs, wide(d_context))
        if seen.lengths:
            is_seen = tf.sequence_mask(seen.lengths[1], key.shape[1])[:, None, :, None]
            d_key, d_value = (tf.where(is_seen, x, float("nan")) for x in (d_key, d_value))
        return [tf.cast(x, heads[0].dtype) for x in (d_query, d_key, d_value)]


def scores_of(heads, seen):
    """float32 [B, N, T, K]."""
    query, key, _ = map(wide, heads)
    scores = tf.einsum("btnd,bknd->bntk", query, key) * query.shape[-1] ** -0.5
    if seen.bias:
        scores += wide(seen.bias[0])
    if seen.lengths:
        of_queries, of_keys = seen.lengths
        tf.debugging.assert_equal(of_queries, query.shape[1])
        is_seen = tf.sequence_mask(of_keys, key.shape[1])[:, None, None]
        scores = tf.where(is_seen, scores, float("-inf"))
    return scores
