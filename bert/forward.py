"""What the layers of one forward pass share.

A graph computes it once, because TensorFlow's arithmetic of shapes runs on the host, even beside a GPU.

Shapes as in bert/model.py.
"""

from dataclasses import dataclass
from types import ModuleType

import tensorflow as tf
from transformers import BertConfig

from bert.dropout import Dropout, Extent
from bert.inputs import attention_masks
from bert.tokens import Tokens


@dataclass(frozen=True)
class Group:
    """The rows of one length: attention sees one group at a time.

    Attributes:
      mask: [B, 1, T, T], added to the attention scores.
      heads_shape: B, T, 3, N, D, the shape of queries, keys and values.
      scores_shape: B, N, T, T.
      draws: int32 [1] each: where the group's draws begin and end among those of all groups.
    """

    mask: tf.Tensor
    heads_shape: tf.Tensor
    scores_shape: tf.Tensor
    draws: tuple[tf.Tensor, tf.Tensor]


@dataclass(frozen=True)
class ForwardPass:
    """What the layers share in one forward pass.

    Args:
      ops: the module with the operations between the matrix products: bert.ops, ops_xla, ops_cpu or ops_gpu.
      groups: the groups of rows.
      sizes: int32 [groups + 1], the places of each group, and how many rows follow them in attention.
      padding: zeros [rows after the places, H].
      tokens: the places with a token if the hidden state has rows for these only; else None.
      dropout_key: int32 [], `bert.dropout.folded`; None without dropout.
      hidden_extent, scores_extent: of the dropout of a hidden state [R, H], and of all groups' attention.
    """

    ops: ModuleType
    groups: list[Group]
    sizes: tf.Tensor
    padding: tf.Tensor
    dropout_key: tf.Tensor | None
    hidden_extent: Extent
    scores_extent: Extent
    tokens: Tokens | None = None

    def dropout(self, rate: float, place: int) -> Dropout:
        return Dropout(rate, self.dropout_key, place, self.ops.random_words, self.hidden_extent)

    def attention_dropout(self, rate: float, place: int) -> Dropout:
        return Dropout(rate, self.dropout_key, place, self.ops.random_words, self.scores_extent)


def forward_pass(
    ops: ModuleType,
    config: BertConfig,
    inputs: dict[str, tf.Tensor],
    dtype: tf.DType,
    num_padding: tf.Tensor | int,
    dropout_key: tf.Tensor | None,
    tokens: Tokens | None = None,
) -> ForwardPass:
    """The forward pass of these inputs, in this compute dtype, with rows of padding after those of the tokens.

    With `tokens`, the hidden state has no other padding.
    """
    heads, hidden = config.num_attention_heads, config.hidden_size
    masks = attention_masks(inputs, dtype)
    shapes = [tf.unstack(tf.shape(mask_B1TT))[::3] for mask_B1TT in masks]  # B and T of each group
    sizes = [rows * length for rows, length in shapes]
    groups, draws = [], 0
    for mask_B1TT, (rows, length), size in zip(masks, shapes, sizes, strict=True):
        first, draws = draws, draws + size * length * heads
        heads_shape = tf.stack([rows, length, 3, heads, hidden // heads])
        scores_shape = tf.stack([rows, heads, length, length])
        groups.append(Group(mask_B1TT, heads_shape, scores_shape, (tf.stack([first]), tf.stack([draws]))))
    num_rows = tf.add_n(sizes) + num_padding if tokens is None else tf.size(tokens.place_of_row)
    num_last = num_padding if tokens is None else 1
    return ForwardPass(
        ops,
        groups,
        tf.stack([*sizes, num_last]),
        tf.zeros([num_last, hidden], dtype),
        dropout_key,
        Extent.of([num_rows, hidden], config.hidden_dropout_prob),
        Extent.of([draws], config.attention_probs_dropout_prob),
        tokens,
    )
