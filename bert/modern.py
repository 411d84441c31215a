"""ModernBERT's encoder (Warner et al. 2024, "Smarter, Better, Faster, Longer"), as transformers'
`modeling_modernbert.py` computes it: LayerNorm before each branch, rotary positions, a gated
feed-forward, no biases, no dropout. Some layers attend to all tokens, the others only to those
nearby.

Shapes, as suffixes, are those of bert/encoder.py; also K keys, E = D / 2 pairs of dimensions that
are rotated together, W the width of the window on each side.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import Tensor

from bert.batch import Batch, is_fixed
from bert.configuration import SLIDING, BertConfig
from bert.kernels import PLAIN
from bert.layers import (
    Shapes,
    Tensors,
    dense_shapes,
    norm_shapes,
    normalized,
    rows_of,
)
from bert.ops import ACTIVATIONS, Heads, wide
from bert.passes import MASKED_SCORE, Pass

# From how many windows on rows are cut into blocks; below, whole matrices take less time.
BLOCKS_FROM = 8
# A global layer keeps the matrices [T, T] of rows up to this length, and computes those of longer
# ones again in the backward pass, for some queries at a time.
KEPT_TO = 2048
QUERIES = 512
EMBEDDINGS, FINAL = "bert/embeddings", "bert/encoder"


def encoder_shapes(config: BertConfig) -> Shapes:
    """The tensors of the encoder. The order stays: checkpoints number the optimizer's moments by
    it."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: Shapes = {f"{EMBEDDINGS}/word_embeddings": (config.vocab_size, hidden)}
    shapes |= norm_shapes(EMBEDDINGS, hidden, has_bias=False)
    for number in range(config.num_hidden_layers):
        layer = f"bert/encoder/layer_{number}"
        if number > 0:  # the embeddings are normalised already
            shapes |= norm_shapes(f"{layer}/attention", hidden, has_bias=False)
        matrices = {
            "attention/self/query_key_value": (hidden, 3 * hidden),
            "attention/output/dense": (hidden, hidden),
            "intermediate/dense": (hidden, 2 * inner),
            "output/dense": (inner, hidden),
        }
        for part, (in_size, out_size) in matrices.items():
            shapes |= dense_shapes(f"{layer}/{part}", in_size, out_size, has_bias=False)
        shapes |= norm_shapes(f"{layer}/intermediate", hidden, has_bias=False)
    return shapes | norm_shapes(FINAL, hidden, has_bias=False)


class ModernPass(Pass):
    """One pass through ModernBERT's encoder."""

    shapes = staticmethod(encoder_shapes)

    @staticmethod
    def deviation(config: BertConfig, name: str) -> float:
        """The standard deviation of a tensor's initial values, as in transformers: smaller where a
        branch ends, because the branches of many layers add up."""
        if name.endswith("output_weights"):
            return config.hidden_size**-0.5
        if name.endswith(("output/dense/kernel", "pooler/dense/kernel")):
            return config.initializer_range / (2 * config.num_hidden_layers) ** 0.5
        return config.initializer_range

    def __init__(self, config: BertConfig, batch: Batch, *others: Any):
        super().__init__(config, batch, *others)
        self.rotations = {}  # by whether a layer is local
        thetas = {True: config.local_rope_theta, False: config.global_rope_theta}
        size = config.hidden_size // config.num_attention_heads
        for is_local, theta in thetas.items():
            self.rotations[is_local] = rotation(batch["position_ids"], size, theta)

    def embedded(self, tensors: Tensors) -> Tensor:
        """The words' embeddings, normalised in float32 -> [R, H]."""
        words_RH = tf.gather(tensors[f"{EMBEDDINGS}/word_embeddings"], self.batch["input_ids"])
        return self.norm(words_RH, tensors, EMBEDDINGS)

    def is_local(self, number: int) -> bool:
        return self.config.layer_types[number] == SLIDING

    def layer(
        self,
        hidden_RH: Tensor,
        tensors: Tensors,
        place: Tensor,
        rows: Tensor | None,
        is_local: bool = False,
    ) -> Tensor:
        """Attention and feed-forward, each behind a LayerNorm and with a residual. Returns all
        rows, or these, int32 [S]."""
        kernels, epsilon = self.kernels, self.config.layer_norm_eps
        gamma = tensors.get("attention/LayerNorm/gamma")
        normed_RH = hidden_RH
        if gamma is not None:
            hidden_RH, normed_RH = kernels.prenormed(hidden_RH, None, gamma, epsilon)
        context_RH = self.self_attention(normed_RH, tensors, is_local)
        if rows is not None:
            hidden_RH = rows_of(hidden_RH, rows)
            context_RH = rows_of(context_RH, rows)
            if not is_fixed(self.batch):
                kernels = PLAIN  # as in bert/encoder.py
        branch_RH = self.linear(context_RH, tensors, "attention/output/dense")
        gamma = tensors["intermediate/LayerNorm/gamma"]
        hidden_RH, normed_RH = kernels.prenormed(hidden_RH, branch_RH, gamma, epsilon)
        expanded_R2I = self.linear(normed_RH, tensors, "intermediate/dense")
        gated_RI = kernels.gated(expanded_R2I, ACTIVATIONS[self.config.hidden_act])
        return hidden_RH + self.linear(gated_RI, tensors, "output/dense")

    def finished(self, hidden_RH: Tensor, tensors: Tensors) -> Tensor:
        return self.norm(hidden_RH, tensors, FINAL)

    def norm(self, x_RH: Tensor, tensors: Tensors, scope: str) -> Tensor:
        normed_RH = normalized(x_RH, tensors, scope, self.config.layer_norm_eps)
        return tf.cast(normed_RH, self.dtype)

    def linear(self, x: Tensor, tensors: Tensors, scope: str) -> Tensor:
        kernel = tf.cast(tensors[f"{scope}/kernel"], self.dtype)
        return tf.matmul(x, kernel)

    def self_attention(self, normed_RH: Tensor, tensors: Tensors, is_local: bool) -> Tensor:
        """Multi-head attention within each example, or within the window of a token -> the context
        [R, H]."""
        hidden, num_heads = self.config.hidden_size, self.config.num_attention_heads
        product_R3H = self.linear(normed_RH, tensors, "attention/self/query_key_value")
        size = hidden // num_heads
        pairs_R3N2E = tf.reshape(product_R3H, [-1, 3, num_heads, 2, size // 2])
        cosines, sines = self.rotations[is_local]
        turned_R3N2E = self.kernels.rotated(pairs_R3N2E, cosines, sines)
        heads_R3H = tf.reshape(turned_R3N2E, [-1, 3 * hidden])
        attention = self.local_attention if is_local else self.global_attention

        def attend(number, heads):
            return attention(heads, self.masks[number])

        return self.in_groups(heads_R3H, attend)

    def attention_over(self, heads: Heads, mask: Tensor) -> Tensor:
        """[B, N, T, D]; `mask`, [B, 1, 1 or T, K], is added to the scores."""
        dropout = self.dropout(0.0, place=0)  # none, as all functions of attention take one
        return self.kernels.attention(heads, mask, None, dropout, self.batch.get("longest"))

    def local_attention(self, heads: Heads, mask_B11T: Tensor) -> Tensor:
        """Attention of each token to those at most W places away."""
        window = self.config.local_attention // 2

        def whole():
            length = tf.shape(heads[0])[2]
            places = tf.range(length)
            near_TT = near(places, places, window, self.dtype)
            return self.attention_over(heads, mask_B11T + near_TT)

        blocks = partial(in_blocks, self.attention_over, heads, mask_B11T, window)
        return self.short_or_long(heads, BLOCKS_FROM * window, whole, blocks)

    def global_attention(self, heads: Heads, mask_B11T: Tensor) -> Tensor:
        """Attention of each token to all."""
        recomputes = self.dropout_key is not None  # in training
        whole = partial(self.attention_over, heads, mask_B11T)
        if not self.kernels.keeps_matrices:
            return whole()
        blocks = partial(by_queries, self.attention_over, heads, mask_B11T, recomputes)
        return self.short_or_long(heads, KEPT_TO, whole, blocks)

    def short_or_long(
        self, heads: Heads, limit: int, short: Callable[[], Tensor], long: Callable[[], Tensor]
    ) -> Tensor:
        """`long()` if a group's rows are longer than the limit, which is seen in each pass. A
        training decides it once, by the run's longest row: TensorFlow has no gradient of a custom
        gradient with branches of its own within a branch. It is `short()` where that row is not
        known."""
        query = heads[0]
        if is_fixed(self.batch):
            return long() if query.shape[2] > limit else short()
        longest = self.batch.get("longest")
        if longest is not None:
            return long() if longest > limit else short()
        is_training = self.dropout_key is not None
        return short() if is_training else tf.cond(tf.shape(query)[2] > limit, long, short)


def rotation(position_ids: Tensor, size: int, theta: float) -> tuple[Tensor, Tensor]:
    """The cosines and sines of rotary positions (Su et al. 2021, section 3.2.2) that `rotated` of
    bert/ops.py takes, each float32 [R, 3, 1, 2, E]. Values are not turned."""
    # Rounded as transformers rounds: the angle of place 8,000 has an error of 5e-4 in float32.
    exponents_E = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    frequencies_E = np.float32(1) / np.float32(theta) ** exponents_E
    positions_R1 = wide(position_ids)[:, None]
    angles_RE = positions_R1 * frequencies_E
    cosines_RE = tf.cos(angles_RE)
    sines_RE = tf.sin(angles_RE)
    cosines_R2E = tf.stack([cosines_RE, cosines_RE], 1)
    sines_R2E = tf.stack([-sines_RE, sines_RE], 1)
    cosines_R32E = tf.stack([cosines_R2E, cosines_R2E, tf.ones_like(cosines_R2E)], 1)
    sines_R32E = tf.stack([sines_R2E, sines_R2E, tf.zeros_like(sines_R2E)], 1)
    return cosines_R32E[:, :, None], sines_R32E[:, :, None]


def near(queries: Tensor, keys: Tensor, window: int, dtype: str) -> Tensor:
    """[T, K]: 0 where the places of query and key are at most W apart, else MASKED_SCORE."""
    is_far = tf.abs(queries[:, None] - keys) > window
    return tf.cast(is_far, dtype) * tf.cast(MASKED_SCORE, dtype)


class Blocks:
    """Rows of attention [B, N, T, D] cut into blocks of 2 W places."""

    def __init__(self, rows: Tensor, length: Tensor, window: int):
        self.rows = rows
        self.length = length
        self.window = window
        self.size = 2 * window
        self.number = (length + self.size - 1) // self.size
        self.missing = self.number * self.size - length  # places of the last block

    def of(self, x_BNTD: Tensor) -> Tensor:
        """[B blocks, N, 2 W, D]."""
        _, heads, _, width = x_BNTD.shape
        padded = padded_places(x_BNTD, 0, self.missing)
        split = tf.reshape(padded, [self.rows, heads, self.number, self.size, width])
        return self._blocks_as_rows(split)

    def with_neighbours(self, x_BNTD: Tensor, padding: float = 0.0) -> Tensor:
        """Each block with the half blocks before and behind it, [B blocks, N, 4 W, D]."""
        _, heads, _, width = x_BNTD.shape
        padded = padded_places(x_BNTD, self.window, self.missing + self.window, padding)
        num_halves = 2 * self.number
        halves = tf.reshape(padded, [self.rows, heads, num_halves + 2, self.window, width])
        # Of the halves 0 1 2 3 4 5 two blocks with their neighbours are 0 1 2 3 and 2 3 4 5: the
        # first quarters 0 and 2, the second ones 1 and 3, …
        quarters = [halves[:, :, first : first + num_halves : 2] for first in range(4)]
        return self._blocks_as_rows(tf.concat(quarters, 3))

    def _blocks_as_rows(self, split):
        """[B, N, blocks, places, D] -> [B blocks, N, places, D]."""
        _, heads, _, places, width = split.shape
        transposed = tf.transpose(split, [0, 2, 1, 3, 4])
        num_blocks = self.rows * self.number
        return tf.reshape(transposed, [num_blocks, heads, places, width])

    def together(self, x: Tensor) -> Tensor:
        """The reverse of `of`."""
        _, heads, _, width = x.shape
        split = tf.reshape(x, [self.rows, self.number, heads, self.size, width])
        transposed = tf.transpose(split, [0, 2, 1, 3, 4])
        padded_BNTD = tf.reshape(transposed, [self.rows, heads, -1, width])
        return padded_BNTD[:, :, : self.length]


def padded_places(x_BNTD: Tensor, before: Any, behind: Any, value: float = 0.0) -> Tensor:
    """x with so many more places before and behind the others."""
    edges = [[0, 0], [0, 0], [before, behind], [0, 0]]
    return tf.pad(x_BNTD, edges, constant_values=tf.cast(value, x_BNTD.dtype))


def in_blocks(
    attention: Callable[[Heads, Tensor], Tensor], heads: Heads, mask_B11T: Tensor, window: int
) -> Tensor:
    """Attention within windows, [B, N, T, D], whose cost grows with T and not with its square:
    2 W queries at a time, with the 4 W keys that they may see."""
    query, key, value = heads
    rows, _, length, _ = tf.unstack(tf.shape(query))
    blocks = Blocks(rows, length, window)
    queries = blocks.of(query)
    keys = blocks.with_neighbours(key)
    values = blocks.with_neighbours(value)
    mask_B1T1 = tf.transpose(mask_B11T, [0, 1, 3, 2])
    mask_B1K1 = blocks.with_neighbours(mask_B1T1, MASKED_SCORE)
    mask_B11K = tf.transpose(mask_B1K1, [0, 1, 3, 2])
    places = tf.range(4 * window)
    near_QK = near(places[window : 3 * window], places, window, query.dtype)
    contexts = attention([queries, keys, values], mask_B11K + near_QK)
    return blocks.together(contexts)


def by_queries(
    attention: Callable[[Heads, Tensor], Tensor],
    heads: Heads,
    mask_B11T: Tensor,
    recomputes: bool,
) -> Tensor:
    """Attention [B, N, T, D] of a few queries at a time. With `recomputes` the backward pass
    computes their matrices again; they are never there for all queries at once."""
    query_BNTD, key_BNTD, value_BNTD = heads
    dtype = query_BNTD.dtype
    _, num_heads, _, width = query_BNTD.shape
    rows, _, length, _ = tf.unstack(tf.shape(query_BNTD))
    number = (length + QUERIES - 1) // QUERIES
    missing = number * QUERIES - length
    padded = padded_places(query_BNTD, 0, missing)
    split = tf.reshape(padded, [rows, num_heads, number, QUERIES, width])
    turns = tf.transpose(split, [2, 0, 1, 3, 4])

    def context(query, key, value):
        heads_of_turn = [query, tf.cast(key, dtype), tf.cast(value, dtype)]
        return attention(heads_of_turn, mask_B11T)

    if recomputes:
        context = tf.recompute_grad(context)
    # The gradients of keys and values are sums over the turns: in float32.
    key = wide(key_BNTD)
    value = wide(value_BNTD)
    contexts = tf.map_fn(lambda query: context(query, key, value), turns, parallel_iterations=1)
    split = tf.transpose(contexts, [1, 2, 0, 3, 4])
    padded = tf.reshape(split, [rows, num_heads, -1, width])
    return padded[:, :, :length]
