"""Examples of a corpus -> batches with masked tokens, and their losses.

Tensors have their shape as a suffix: B rows, M masked tokens of all rows, V vocabulary.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from bert.batch import Batch, Grouping, batch_of, is_fixed, num_examples
from bert.corpus.masking import Masking, example_keys, mask
from ringbase.ragged import padded

NOT_MASKED = -1  # the id of padding among the masked tokens of a batch


def collate(
    fields: dict,
    masking: Masking | None,
    seed: int,
    grouping: Grouping | None = None,
    most: Callable[[int], int] | None = None,
) -> Batch:
    """Examples -> the encoder's inputs, `masked_tokens` (rows of the hidden state) and `masked_ids` [M], and
    `next_sentence_label` [B] (1: the second sentence is a random one).

    If the groups have fixed shapes, M depends on these shapes only: `most` gives the maximum number of masked
    tokens in a row of a given length, and the masked tokens are padded to it with the id -1.
    """
    if masking:
        values, offsets = fields["input_ids"]
        drawn = mask(values, offsets, example_keys(seed, fields["row"], fields["epoch"]), masking)
        values, positions, position_offsets, masked_ids = drawn
        fields = fields | {"input_ids": (values, offsets), "masked_lm_positions": (positions, position_offsets)}
        fields["masked_lm_ids"] = masked_ids, position_offsets
    fields, batch = batch_of(fields, grouping)
    (positions, position_offsets), (masked_ids, _) = fields["masked_lm_positions"], fields["masked_lm_ids"]
    masked = np.diff(position_offsets)
    batch["masked_tokens"] = np.repeat(batch["first_tokens"][: len(masked)], masked) + positions.astype(np.int32)
    batch["masked_ids"] = masked_ids.astype(np.int32)
    if "is_random_next" in fields:
        labels = fields["is_random_next"].astype(np.int32)
        batch["next_sentence_label"] = padded(labels, len(batch["first_tokens"]))
    if is_fixed(batch) and most:
        size = sum(rows * most(length) for rows, length in batch["groups"])
        batch["masked_tokens"] = padded(batch["masked_tokens"], size)
        batch["masked_ids"] = padded(batch["masked_ids"], size, NOT_MASKED)
    return batch


def weights(batch: Batch) -> dict[str, float]:
    """The weight of a batch in each loss term: the number of masked tokens, and of examples.

    The sums over all ranks divide the loss terms.
    """
    masked = {"mlm": float((batch["masked_ids"] != NOT_MASKED).sum())}
    return masked | ({"nsp": float(num_examples(batch))} if "next_sentence_label" in batch else {})


def losses(scores: dict[str, tf.Tensor], batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """The sums of the cross-entropies of masked tokens and of next sentences."""

    def cross_entropy(labels: tf.Tensor, logits: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), logits)
        return tf.reduce_sum(losses * tf.cast(counts, losses.dtype))

    sums = {"mlm": cross_entropy(batch["masked_ids"], scores["mlm"], batch["masked_ids"] != NOT_MASKED)}
    if "next_sentence_label" in batch:
        sums["nsp"] = cross_entropy(batch["next_sentence_label"], scores["nsp"], batch["is_example"])
    return sums
