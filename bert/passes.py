"""What a pass through the model is, whichever its encoder: what the layers share, and what heads
read.

Shapes, as suffixes, are those of bert/encoder.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import tensorflow as tf
from tensorflow import Tensor

from bert.batch import Batch
from bert.configuration import BertConfig
from bert.kernels import Kernels
from bert.layers import Shapes, Tensors, from_places, group_shapes, in_places, split_groups
from bert.ops import Dropout, Heads

MASKED_SCORE = -10000.0  # google-research/bert modeling.py, attention_layer


class Pass(ABC):
    """One pass through the model.

    `dtype` is that of the hidden state and the matrix products. `dropout_key`, int32 [], is that of
    `Dropout`; None without dropout.
    """

    def __init__(
        self,
        config: BertConfig,
        batch: Batch,
        dtype: str,
        kernels: Kernels,
        dropout_key: Tensor | None,
    ):
        self.config = config
        self.batch = batch
        self.dtype = dtype
        self.kernels = kernels
        self.dropout_key = dropout_key
        self.dropout = partial(Dropout, key=dropout_key, words=kernels.random_words)
        has_token_P = tf.cast(batch["attention_mask"], tf.float32)
        scores_P = (1.0 - has_token_P) * MASKED_SCORE
        masks = split_groups(tf.cast(scores_P, dtype), batch)
        self.masks = [mask_BT[:, None, None] for mask_BT in masks]  # added to the scores

    @staticmethod
    @abstractmethod
    def shapes(config: BertConfig) -> Shapes:
        """The tensors of the encoder, in their order in checkpoints."""

    @staticmethod
    def deviation(config: BertConfig, name: str) -> float:
        """The standard deviation of the initial values of a tensor, before they are cut at two."""
        return config.initializer_range

    @abstractmethod
    def embedded(self, tensors: Tensors) -> Tensor:
        """The hidden state before the first layer, [R, H]."""

    def is_local(self, number: int) -> bool:
        """Whether tokens of the layer with this number attend only to those nearby."""
        return False

    @abstractmethod
    def layer(
        self,
        hidden_RH: Tensor,
        tensors: Tensors,
        place: Tensor,
        rows: Tensor | None,
        is_local: bool = False,
    ) -> Tensor:
        """The hidden state after a layer with these tensors: all rows, or these, int32 [S]. `place`
        is that of the first of the layer's three dropouts."""

    def finished(self, hidden_RH: Tensor, tensors: Tensors) -> Tensor:
        """The output of the last layer, as heads read it."""
        return hidden_RH

    def dropped(self, x: Tensor, number: int) -> Tensor:
        """x after the head's dropout of this number, behind those of the layers."""
        config = self.config
        rate = config.classifier_dropout
        if rate is None:
            rate = config.hidden_dropout_prob
        dropout = Dropout(rate, self.dropout_key, 1 + 3 * config.num_hidden_layers + number)
        return dropout(x)

    def in_groups(self, heads_R3H: Tensor, attend: Callable[[int, Heads], Tensor]) -> Tensor:
        """The context [R, H]: `attend` gets the number of each group and its heads, and returns
        [B, N, T, D]."""
        hidden, num_heads = self.config.hidden_size, self.config.num_attention_heads
        size = hidden // num_heads
        parts = in_places(heads_R3H, self.batch)
        contexts_BTH = []
        for number, (rows, length) in enumerate(group_shapes(self.batch)):
            split = tf.reshape(parts[number], [rows, length, 3, num_heads, size])
            heads_3BNTD = tf.transpose(split, [2, 0, 3, 1, 4])
            context_BNTD = attend(number, tf.unstack(heads_3BNTD))
            context_BTND = tf.transpose(context_BNTD, [0, 2, 1, 3])
            contexts_BTH.append(tf.reshape(context_BTND, [rows, length, hidden]))
        return from_places(contexts_BTH, self.batch)
