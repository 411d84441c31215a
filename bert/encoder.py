"""BERT's encoder (Devlin et al. 2018, google-research/bert `modeling.py`).

Shapes, as suffixes: R rows of the hidden state, one for each token; B rows of T places in
attention; H hidden size, N attention heads, D = H / N, I intermediate size, V vocabulary, L labels,
M gathered tokens. bert/batch.py describes the input and its padding.

Every variable has its name in Google's checkpoints, with `.` for `/` because Keras refuses slashes.
"""

from collections.abc import Sequence
from dataclasses import replace

import tensorflow as tf
from tensorflow import Tensor

from bert.batch import is_fixed
from bert.configuration import BertConfig
from bert.kernels import PLAIN
from bert.layers import (
    Shapes,
    Tensors,
    dense_shapes,
    group_shapes,
    norm_shapes,
    norm_tensors,
    normalized,
    product,
    rows_of,
)
from bert.ops import ACTIVATIONS, Dropout
from bert.passes import Pass

PROJECTION = "bert/embeddings_project"


def encoder_shapes(config: BertConfig) -> Shapes:
    """The tensors of the encoder. The order stays: checkpoints number the optimizer's moments by
    it."""
    hidden, inner = config.hidden_size, config.intermediate_size
    width = config.embedding_size or hidden
    tables = {
        "word": config.vocab_size,
        "token_type": config.num_token_types,
        "position": config.max_position_embeddings,
    }
    shapes: Shapes = {}
    for name, size in tables.items():
        if size:
            shapes[f"bert/embeddings/{name}_embeddings"] = size, width
    shapes |= norm_shapes("bert/embeddings", width)
    if width != hidden:
        shapes |= dense_shapes(PROJECTION, width, hidden)
    for number in range(config.num_hidden_layers):
        layer = f"bert/encoder/layer_{number}"
        for part in ("self/query", "self/key", "self/value", "output/dense"):
            shapes |= dense_shapes(f"{layer}/attention/{part}", hidden, hidden)
        shapes |= norm_shapes(f"{layer}/attention/output", hidden)
        shapes |= dense_shapes(f"{layer}/intermediate/dense", hidden, inner)
        shapes |= dense_shapes(f"{layer}/output/dense", inner, hidden)
        shapes |= norm_shapes(f"{layer}/output", hidden)
    return shapes


class BertPass(Pass):
    """One pass through BERT's encoder."""

    shapes = staticmethod(encoder_shapes)

    def embedded(self, tensors: Tensors) -> Tensor:
        """Word, token type and position embeddings, summed, normalised in float32, and projected ->
        [R, H]."""
        config, batch = self.config, self.batch
        ids = {"word": batch["input_ids"]}
        if config.num_token_types:
            token_types = batch["token_type_ids"]
            if not config.has_types:
                token_types = tf.zeros_like(token_types)
            ids["token_type"] = token_types
        ids["position"] = batch["position_ids"] + config.first_position
        parts_RE = []
        for name, rows in ids.items():
            table = tensors[f"bert/embeddings/{name}_embeddings"]
            parts_RE.append(tf.gather(table, rows))
        sum_RE = tf.add_n(parts_RE)
        normed_RE = normalized(sum_RE, tensors, "bert/embeddings", config.layer_norm_eps)
        dropout = Dropout(config.hidden_dropout_prob, self.dropout_key, 0)
        embedded_RE = dropout(tf.cast(normed_RE, self.dtype))
        if f"{PROJECTION}/kernel" not in tensors:
            return embedded_RE
        product_RH, bias_H = product(embedded_RE, tensors, PROJECTION)
        return PLAIN.biased(product_RH, bias_H)

    def layer(
        self,
        hidden_RH: Tensor,
        tensors: Tensors,
        place: Tensor,
        rows: Tensor | None,
        is_local: bool = False,
    ) -> Tensor:
        """Attention and feed-forward, each with dropout, residual and post-normalisation. `place`
        is that of the first of the layer's three dropouts. Returns all rows, or these, int32
        [S]."""
        config, kernels = self.config, self.kernels
        context_RH = self.attention(hidden_RH, tensors, place)
        if rows is not None:
            hidden_RH = rows_of(hidden_RH, rows)
            context_RH = rows_of(context_RH, rows)
            if not is_fixed(self.batch):
                kernels = PLAIN  # few rows, whose number changes: nothing to compile for

        def added(hidden_RH, branch_RW, scope, place):
            """LayerNorm(hidden + dropout(branch W + b))."""
            branch = product(branch_RW, tensors, f"{scope}/dense")
            gamma, beta = norm_tensors(tensors, scope)
            norm = gamma, beta, config.layer_norm_eps
            dropout = self.dropout(config.hidden_dropout_prob, place=place)
            return kernels.residual(hidden_RH, branch, norm, dropout)

        hidden_RH = added(hidden_RH, context_RH, "attention/output", place + 1)
        expanded_RI, bias_I = product(hidden_RH, tensors, "intermediate/dense")
        activated_RI = kernels.activated(expanded_RI, bias_I, ACTIVATIONS[config.hidden_act])
        return added(hidden_RH, activated_RI, "output", place + 2)

    def attention(self, hidden_RH: Tensor, tensors: Tensors, place: Tensor) -> Tensor:
        """Multi-head attention within each example (Vaswani et al. 2017, section 3.2) -> the
        context [R, H]."""
        batch = self.batch

        def joined(kind):
            """The kernels or biases of queries, keys and values side by side."""
            parts = [tensors[f"attention/self/{part}/{kind}"] for part in ("query", "key", "value")]
            return tf.concat([tf.cast(part, self.dtype) for part in parts], -1)

        product_R3H = tf.matmul(hidden_RH, joined("kernel"))
        heads_R3H = self.kernels.biased(product_R3H, joined("bias"))

        dropout = self.dropout(self.config.attention_probs_dropout_prob, place=place)
        draws_BNTT: Sequence[Tensor | None] = [None] * len(self.masks)
        if dropout.is_on and dropout.words is not None:
            # Not for each group: fewer calls of the generator. bert/ops_gpu.py computes its own.
            num_heads = self.config.num_attention_heads
            shapes = [(rows, num_heads, length, length) for rows, length in group_shapes(batch)]
            draws_BNTT = dropout.draws(*shapes)

        def attend(number, heads):
            dropout_of_group = replace(dropout, group=number)
            longest = batch.get("longest")
            draws = draws_BNTT[number]
            return self.kernels.attention(
                heads, self.masks[number], draws, dropout_of_group, longest
            )

        return self.in_groups(heads_R3H, attend) * tf.cast(dropout.scale, self.dtype)
