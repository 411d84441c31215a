"""The task of bert-pretraining: masked tokens, and whether the second sentence is a random one.

Tensors have their shape as a suffix: B rows, M masked tokens of all rows, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from bert.batch import Batch, Grouping, batch_of, is_fixed, num_examples
from bert.corpus.masking import Masking, example_keys, mask
from ringbase.ragged import padded

NOT_MASKED = -1  # the id of padding among the masked tokens of a batch


@dataclass(frozen=True)
class MaskedTask:
    """Examples of a corpus; see `tasks.task.Task`.

    Attributes:
      masking, seed: how masks are drawn; None if the rows have them.
      most_masked: the length of a row -> the most masked tokens in it.
    """

    max_seq_length: int
    masking: Masking | None
    seed: int
    most_masked: Callable[[int], int]
    has_next_sentence: bool = True
    head = "pretraining"

    @property
    def terms(self) -> tuple[str, ...]:
        return ("mlm", "nsp") if self.has_next_sentence else ("mlm",)

    @property
    def settings(self) -> dict[str, object]:
        return {"max_seq_length": self.max_seq_length}

    def batch(self, fields: dict[str, Any], grouping: Grouping | None = None) -> Batch:
        """Adds `masked_tokens` (rows of the hidden state) and `masked_ids` [M], and `next_sentence_label` [B] (1:
        the second sentence is a random one).

        If the groups have fixed shapes, M depends on these shapes only: the masked tokens are padded with the id
        -1 to the most that there can be.
        """
        if self.masking:
            values, offsets = fields["input_ids"]
            keys = example_keys(self.seed, fields["row"], fields["epoch"])
            values, positions, position_offsets, masked_ids = mask(values, offsets, keys, self.masking)
            fields = fields | {
                "input_ids": (values, offsets),
                "masked_lm_positions": (positions, position_offsets),
            }
            fields["masked_lm_ids"] = masked_ids, position_offsets
        fields, batch = batch_of(fields, grouping)
        (positions, position_offsets), (masked_ids, _) = fields["masked_lm_positions"], fields["masked_lm_ids"]
        masked = np.diff(position_offsets)
        first_tokens = np.repeat(batch["first_tokens"][: len(masked)], masked)
        size = len(positions)
        if is_fixed(batch):
            size = sum(rows * self.most_masked(length) for rows, length in batch["groups"])
        batch["masked_tokens"] = padded(first_tokens + positions.astype(np.int32), size)
        batch["masked_ids"] = padded(masked_ids.astype(np.int32), size, NOT_MASKED)
        if "is_random_next" in fields:
            labels = fields["is_random_next"].astype(np.int32)
            batch["next_sentence_label"] = padded(labels, len(batch["first_tokens"]))
        return batch

    def weights(self, batch: Batch) -> dict[str, float]:
        """The number of masked tokens, and of examples."""
        masked = {"mlm": float((batch["masked_ids"] != NOT_MASKED).sum())}
        return masked | ({"nsp": float(num_examples(batch))} if "next_sentence_label" in batch else {})

    def loss(self, scores: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The sums of the cross-entropies of masked tokens and of next sentences."""
        sums = {"mlm": cross_entropy(batch["masked_ids"], scores["mlm"], batch["masked_ids"] != NOT_MASKED)}
        if "next_sentence_label" in batch:
            sums["nsp"] = cross_entropy(batch["next_sentence_label"], scores["nsp"], batch["is_example"])
        return sums


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), logits)
    return tf.reduce_sum(losses * tf.cast(counts, losses.dtype))
