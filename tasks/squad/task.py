"""The task of bert-squad: the start and the end of the answer in a window of tokens.

Tensors have their shape as a suffix: B rows, T positions of a row, R of the hidden state, 2 for
start and end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from bert.batch import Batch, Grouping, batch_of, num_examples
from bert.heads import SPAN
from bert.model import in_places, split_groups
from ringbase.ragged import padded

LARGE = 1e30
ANSWERS = ("start_position", "end_position")


@dataclass(frozen=True)
class SpanTask:
    """Windows with an answer's first and last token; see `tasks.task.Task`."""

    max_seq_length: int
    settings: Mapping[str, object] = field(default_factory=dict)
    head = SPAN
    terms = ("loss",)

    def batch(self, fields: dict[str, Any], grouping: Grouping | None = None) -> Batch:
        fields, batch = batch_of(
            fields | {"sentence_a_tokens": fields["question_tokens"]}, grouping
        )
        return batch | {name: padded(fields[name], len(batch["first_tokens"])) for name in ANSWERS}

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(num_examples(batch))}

    def loss(self, scores_R2: tf.Tensor, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The sum over rows of (cross-entropy of the start + cross-entropy of the end) / 2, without
        padding."""
        groups = zip(
            in_places(scores_R2, batch), split_groups(batch["attention_mask"], batch), strict=True
        )
        targets_B2 = tf.stack([batch[name] for name in ANSWERS], 1)
        is_example_B = batch["is_example"]
        sums = []
        for scores_BT2, mask_BT in groups:
            padding_B1T = 1 - tf.cast(mask_BT, scores_BT2.dtype)[:, None]
            log_probs_B2T = tf.nn.log_softmax(
                tf.transpose(scores_BT2, [0, 2, 1]) - LARGE * padding_B1T
            )
            rows, length = tf.unstack(tf.shape(mask_BT))
            here_B2, targets_B2 = targets_B2[:rows], targets_B2[rows:]
            is_here_B, is_example_B = is_example_B[:rows], is_example_B[rows:]
            # GPUs compute shapes for the gradients of tf.gather with batch_dims and of sums without
            # keepdims, and the host waits for them.
            here_B2T = tf.one_hot(here_B2, length, dtype=scores_BT2.dtype)
            log_probs_B21 = tf.reduce_sum(log_probs_B2T * here_B2T, -1, keepdims=True)
            sums.append(tf.reduce_sum(log_probs_B21 * is_here_B[:, None, None]))
        return {"loss": -tf.add_n(sums) / 2}
