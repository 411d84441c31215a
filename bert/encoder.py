"""BERT's encoder (Devlin et al. 2018, google-research/bert `modeling.py`).

Shapes, as suffixes: R rows of the hidden state, one for each token; B rows of T places in
attention; H hidden size, N attention heads, D = H / N, I intermediate size, V vocabulary, L labels,
M gathered tokens. bert/batch.py describes the input and its padding.

Every variable has its name in Google's checkpoints, with `.` for `/` because Keras refuses slashes.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import tensorflow as tf
from tensorflow import Tensor

from bert import ops
from bert.batch import Batch, is_fixed
from bert.configuration import BertConfig
from bert.layers import (
    Shapes,
    Tensors,
    dense_shapes,
    from_places,
    in_places,
    norm_shapes,
    norm_tensors,
    normalized,
    product,
    rows_of,
    split_groups,
)
from bert.ops import ACTIVATIONS, Dropout

PROJECTION = "bert/embeddings_project"
MASKED_SCORE = -10000.0  # google-research/bert modeling.py, attention_layer


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
    shapes: Shapes = {
        f"bert/embeddings/{name}_embeddings": (size, width) for name, size in tables.items() if size
    }
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


class Pass:
    """One pass through the model: what its layers share, and what they compute.

    `dtype` is that of the hidden state and the matrix products, `ops` the module with the
    operations between the products: bert.ops, ops_cpu or ops_gpu. `dropout_key`, int32 [], is that
    of `Dropout`; None without dropout.
    """

    shapes = staticmethod(encoder_shapes)

    @staticmethod
    def deviation(config: BertConfig, name: str) -> float:
        """The standard deviation of the initial values of a tensor, before they are cut at two."""
        return config.initializer_range

    def __init__(
        self,
        config: BertConfig,
        batch: Batch,
        dtype: str,
        ops: ModuleType,
        dropout_key: Tensor | None,
    ):
        self.config = config
        self.batch = batch
        self.dtype = dtype
        self.ops = ops
        self.dropout_key = dropout_key
        self.dropout = partial(Dropout, key=dropout_key, words=ops.random_words)
        masked_P = (1.0 - tf.cast(batch["attention_mask"], tf.float32)) * MASKED_SCORE
        masks = split_groups(tf.cast(masked_P, dtype), batch)
        self.masks = [mask_BT[:, None, None] for mask_BT in masks]  # added to the scores

    def dropped(self, x: Tensor, number: int) -> Tensor:
        """x after the head's dropout of this number, behind those of the layers."""
        rate = self.config.classifier_dropout
        if rate is None:
            rate = self.config.hidden_dropout_prob
        return Dropout(rate, self.dropout_key, 1 + 3 * self.config.num_hidden_layers + number)(x)

    def embedded(self, tensors: Tensors) -> Tensor:
        """Word, token type and position embeddings, summed, normalised in float32, and projected ->
        [R, H]."""
        config, batch = self.config, self.batch
        token_types = batch["token_type_ids"]
        if config.architecture.ignores_token_types:
            token_types = tf.zeros_like(token_types)
        ids = {
            "word": batch["input_ids"],
            "token_type": token_types,
            "position": batch["position_ids"] + config.first_position,
        }
        if not config.num_token_types:
            del ids["token_type"]
        parts = [
            tf.gather(tensors[f"bert/embeddings/{name}_embeddings"], rows)
            for name, rows in ids.items()
        ]
        sum_RE = normalized(tf.add_n(parts), tensors, "bert/embeddings", config.layer_norm_eps)
        dropout = Dropout(config.hidden_dropout_prob, self.dropout_key, 0)
        embedded_RE = dropout(tf.cast(sum_RE, self.dtype))
        if f"{PROJECTION}/kernel" not in tensors:
            return embedded_RE
        return ops.biased(*product(embedded_RE, tensors, PROJECTION))

    def options(self, number: int) -> dict[str, Any]:
        """What `layer` needs to know of the layer with this number, while it is traced."""
        return {}

    def finished(self, hidden_RH: Tensor, tensors: Tensors) -> Tensor:
        """The output of the last layer, as heads read it."""
        return hidden_RH

    def layer(
        self,
        hidden_RH: Tensor,
        tensors: Tensors,
        place: int | Tensor,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Attention and feed-forward, each with dropout, residual and post-normalisation. `place`
        is that of the first of the layer's three dropouts. Returns all rows, or these, int32
        [S]."""
        config, fast = self.config, self.ops
        context_RH = self.attention(hidden_RH, tensors, place)
        if rows is not None:
            hidden_RH = rows_of(hidden_RH, rows)
            context_RH = rows_of(context_RH, rows)
            if not is_fixed(self.batch):
                fast = ops  # few rows, whose number changes: nothing to compile for

        def added(hidden_RH: Tensor, branch_RW: Tensor, scope: str, place: int | Tensor) -> Tensor:
            """LayerNorm(hidden + dropout(branch W + b))."""
            branch = product(branch_RW, tensors, f"{scope}/dense")
            norm = *norm_tensors(tensors, scope), config.layer_norm_eps
            dropout = self.dropout(config.hidden_dropout_prob, place=place)
            return fast.residual(hidden_RH, branch, norm, dropout)

        hidden_RH = added(hidden_RH, context_RH, "attention/output", place + 1)
        expanded_RI = product(hidden_RH, tensors, "intermediate/dense")
        activated_RI = fast.activated(*expanded_RI, ACTIVATIONS[config.hidden_act])
        return added(hidden_RH, activated_RI, "output", place + 2)

    def attention(self, hidden_RH: Tensor, tensors: Tensors, place: int | Tensor) -> Tensor:
        """Multi-head attention within each example (Vaswani et al. 2017, section 3.2) -> the
        context [R, H]."""
        config, batch = self.config, self.batch
        heads, hidden = config.num_attention_heads, config.hidden_size

        def joined(kind: str) -> Tensor:
            parts = [tensors[f"attention/self/{part}/{kind}"] for part in ("query", "key", "value")]
            return tf.concat([tf.cast(part, self.dtype) for part in parts], -1)

        product_R3H = tf.matmul(hidden_RH, joined("kernel"))
        parts = in_places(self.ops.biased(product_R3H, joined("bias")), batch)

        dropout = self.dropout(config.attention_probs_dropout_prob, place=place)
        draws_BNTT: Sequence[Tensor | None] = [None] * len(parts)
        if dropout.is_on and dropout.words is not None:
            # Not for each group: fewer calls of the generator. bert/ops_gpu.py computes its own.
            sizes = [(group[0], heads, group[1], group[1]) for group in batch["groups"]]
            draws_BNTT = dropout.draws(*sizes)

        contexts_BTH: list[Tensor] = []
        for number, group in enumerate(batch["groups"]):
            rows, length = group[0], group[1]
            split = tf.reshape(parts[number], [rows, length, 3, heads, hidden // heads])
            query_key_value = tf.unstack(tf.transpose(split, [2, 0, 3, 1, 4]))  # each [B, N, T, D]
            context_BNTD = self.ops.attention(
                query_key_value,
                self.masks[number],
                draws_BNTT[number],
                replace(dropout, group=number),
                batch.get("longest"),
            )
            context_BTND = tf.transpose(context_BNTD, [0, 2, 1, 3])
            contexts_BTH.append(tf.reshape(context_BTND, [rows, length, hidden]))
        return from_places(contexts_BTH, batch) * tf.cast(dropout.scale, self.dtype)
