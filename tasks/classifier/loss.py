"""The classifier's loss: cross-entropy or squared error, with each example weighted by its label.

Tensors have their shape as a suffix: B rows, L labels.
"""

import numpy as np
import tensorflow as tf

from bert.batch import num_examples
from distributed.feed import Batch
from distributed.rows import Rows
from ringbase.errors import InputError
from tasks.classifier.tasks import Labels

LEAST_WEIGHT = 1e-6  # of a label; its inverse is the greatest


def class_weights(setting: str | None, labels: Labels, rows: Rows) -> np.ndarray | None:
    """The weight of each label, float32 [L]; None for equal weights.

    Args:
      setting: None, LABEL=WEIGHT,… or "balanced": n / (L * examples with the label), as in scikit-learn.
      rows: the training set.
    Raises InputError: a label has no weight or no example, a label is unknown, or a weight is not positive.
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
    weights = {}
    for part in setting.split(","):
        name, _, text = part.rpartition("=")
        try:
            weights[name] = float(text)
        except ValueError:
            weights[name] = 0.0
        if name not in labels or not LEAST_WEIGHT <= weights[name] <= 1 / LEAST_WEIGHT:
            raise InputError(
                f"--class_weights must be LABEL=WEIGHT,… with labels among {', '.join(labels)} and weights "
                f"from {LEAST_WEIGHT:g} to {1 / LEAST_WEIGHT:g}, got {part}"
            )
    missing = [name for name in labels if name not in weights]
    if missing:
        raise InputError(f"--class_weights {setting}: no weight for {', '.join(missing)}")
    return np.array([weights[name] for name in labels], np.float32)


def example_weights(batch: Batch, weight_of_label: np.ndarray | None) -> np.ndarray:
    """How much each example counts in the loss, float64 [B]."""
    label = batch["label"][: num_examples(batch)]
    return np.ones(len(label)) if weight_of_label is None else weight_of_label[label].astype(np.float64)


def label_loss(scores_BL: tf.Tensor, batch: dict[str, tf.Tensor], weight_of_label: np.ndarray | None) -> tf.Tensor:
    """Weighted sum over rows of the cross-entropy, or of the squared error when the label is a number."""
    label = batch["label"]
    if label.dtype.is_floating:
        return tf.reduce_sum(tf.square(scores_BL[:, 0] - label) * batch["is_example"])
    losses_B = tf.nn.sparse_softmax_cross_entropy_with_logits(label, scores_BL)
    if weight_of_label is not None:
        losses_B *= tf.gather(tf.constant(weight_of_label), label)
    return tf.reduce_sum(losses_B * batch["is_example"])
