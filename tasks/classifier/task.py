"""The task of bert-classifier: the label of a text or a pair of texts, or a number.

Tensors have their shape as a suffix: B rows, L labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from bert.batch import Batch, Grouping, batch_of, num_examples
from distributed.rows import Rows
from ringbase.errors import InputError
from ringbase.ragged import padded
from tasks.classifier.named_tasks import Labels

LEAST_WEIGHT = 1e-6  # of a label; its inverse is the greatest


@dataclass(frozen=True)
class LabelTask:
    """Texts with a label; see `tasks.task.Task`. `weight_of_label`, float32 [L]: None for equal weights."""

    max_seq_length: int
    weight_of_label: np.ndarray | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    head = "classifier"
    terms = ("loss",)

    def batch(self, fields: dict[str, Any], grouping: Grouping | None = None) -> Batch:
        fields, batch = batch_of(fields, grouping)
        return batch | {"label": padded(fields["label"], len(batch["first_tokens"]))}

    def weights(self, batch: Batch) -> dict[str, float]:
        label = batch["label"][: num_examples(batch)]
        weights = np.ones(len(label)) if self.weight_of_label is None else self.weight_of_label[label]
        return {"loss": float(weights.sum(dtype=np.float64))}

    def loss(self, scores_BL: tf.Tensor, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Weighted sum over rows of the cross-entropy, or of the squared error when the label is a number."""
        label = batch["label"]
        if label.dtype.is_floating:
            losses_B = tf.square(scores_BL[:, 0] - label)
        else:
            losses_B = tf.nn.sparse_softmax_cross_entropy_with_logits(label, scores_BL)
        if self.weight_of_label is not None:
            losses_B *= tf.gather(tf.constant(self.weight_of_label), label)
        return {"loss": tf.reduce_sum(losses_B * batch["is_example"])}


def class_weights(setting: str | None, labels: Labels, rows: Rows) -> np.ndarray | None:
    """The weight of each label, float32 [L]; None for equal weights.

    Args:
      setting: None, LABEL=WEIGHT,… or "balanced": n / (L * examples with the label), as in scikit-learn.
      rows: the training set.
    """
    if setting is None:
        return None
    if labels is None:
        raise InputError("--class_weights needs labels, which a regression does not have")
    if setting == "balanced":
        counts = np.bincount(np.asarray(rows.column("label")), minlength=len(labels))
        if not counts.all():
            raise InputError(f"--class_weights balanced: no example has label {labels[int(np.argmin(counts))]}")
        return (counts.sum() / (len(labels) * counts)).astype(np.float32)
    parts = [part.rpartition("=") for part in setting.split(",")]
    try:
        weights = {name: float(weight) for name, _, weight in parts}
        is_right = all(LEAST_WEIGHT <= weights[name] <= 1 / LEAST_WEIGHT for name in labels)
    except (ValueError, KeyError):
        is_right = False
    if not is_right or len(parts) > len(labels):
        raise InputError(
            f"--class_weights must be LABEL=WEIGHT,… with each of the labels {', '.join(labels)} and weights from "
            f"{LEAST_WEIGHT:g} to {1 / LEAST_WEIGHT:g}, got {setting}"
        )
    return np.array([weights[name] for name in labels], np.float32)
