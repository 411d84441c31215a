"""BERT as its papers write it, in float64, for one row at a time without padding: the referee of wide models."""

import numpy as np
import tensorflow as tf
from harness.batches import Computed, Row

from bert.model import Bert

GELU = {
    "gelu": lambda x: x * 0.5 * (1 + tf.math.erf(x / np.sqrt(2))),
    "gelu_new": lambda x: x * 0.5 * (1 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}


def plain(model: Bert, rows: list[Row]) -> Computed:
    """What a model with a head for spans must compute without dropout."""
    tensors = {name: tf.constant(v.numpy(), tf.float64) for name, v in model.named_tensors().items()}
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        scores = [span_scores(tensors, model.config, row) for row in rows]
        losses = []
        for row, scores_T2 in zip(rows, scores, strict=True):
            log_probs = tf.nn.log_softmax(scores_T2, axis=0)
            losses.append(-(log_probs[row.span[0], 0] + log_probs[row.span[1], 1]) / 2)
        loss = tf.add_n(losses) / len(rows)
    gradients = tape.gradient(loss, tensors)
    dense = {name: tf.convert_to_tensor(gradient).numpy() for name, gradient in gradients.items()}
    return Computed([each.numpy() for each in scores], float(loss), dense)


def span_scores(tensors: dict, config, row: Row) -> tf.Tensor:
    """float64 [T, 2]."""

    def dense(x, scope):
        return x @ tensors[f"{scope}/kernel"] + tensors[f"{scope}/bias"]

    def norm(x, scope):
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        gamma, beta = tensors[f"{scope}/LayerNorm/gamma"], tensors[f"{scope}/LayerNorm/beta"]
        return gamma * (x - mean) / tf.sqrt(variance + config.layer_norm_eps) + beta

    length, heads = len(row.input_ids), config.num_attention_heads
    types = np.array([position >= row.num_first for position in range(length)], int)
    x = tf.gather(tensors["bert/embeddings/word_embeddings"], row.input_ids)
    x += tf.gather(tensors["bert/embeddings/token_type_embeddings"], types)
    x += tensors["bert/embeddings/position_embeddings"][:length]
    x = norm(x, "bert/embeddings")
    for number in range(config.num_hidden_layers):
        layer = f"bert/encoder/layer_{number}"
        query, key, value = (
            tf.reshape(dense(x, f"{layer}/attention/self/{part}"), [length, heads, -1])
            for part in ("query", "key", "value")
        )
        scores = tf.einsum("qnd,knd->nqk", query, key) / np.sqrt(query.shape[-1])
        context = tf.einsum("nqk,knd->qnd", tf.nn.softmax(scores), value)
        x = norm(
            x + dense(tf.reshape(context, [length, -1]), f"{layer}/attention/output/dense"),
            f"{layer}/attention/output",
        )
        expanded = GELU[config.hidden_act](dense(x, f"{layer}/intermediate/dense"))
        x = norm(x + dense(expanded, f"{layer}/output/dense"), f"{layer}/output")
    return tf.matmul(x, tensors["cls/squad/output_weights"], transpose_b=True) + tensors["cls/squad/output_bias"]
