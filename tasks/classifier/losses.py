"""What TensorFlow computes for each kind of label (targets.py): its loss, and the outputs of an
exported model.

Tensors have their shape as a suffix: B rows, L labels.
"""

from functools import singledispatch
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tasks.classifier.targets import Number, OneLabel, SeveralLabels, Target
from tasks.runs.task import Tensors, named_outputs


class Weighing(NamedTuple):
    """What the loss of labels depends on besides them."""

    of_label: np.ndarray | None = None  # the weight of each label, float32 [L]
    smoothing: float = 0.0  # --label_smoothing_factor


@singledispatch
def losses_of(
    target: Target, scores_BL: tf.Tensor, label: tf.Tensor, weighing: Weighing
) -> tf.Tensor:
    """The loss of each row, [B]. `label` is what `target.truth` gives."""
    raise NotImplementedError(type(target))


@losses_of.register
def _(target: Number, scores_BL: tf.Tensor, label: tf.Tensor, weighing: Weighing) -> tf.Tensor:
    return tf.square(scores_BL[:, 0] - label)


@losses_of.register
def _(target: OneLabel, scores_BL: tf.Tensor, label: tf.Tensor, weighing: Weighing) -> tf.Tensor:
    losses_B = tf.nn.sparse_softmax_cross_entropy_with_logits(label, scores_BL)
    if weighing.of_label is not None:
        losses_B *= tf.gather(weighing.of_label, label)
    share = weighing.smoothing
    if not share:
        return losses_B
    losses_BL = -tf.nn.log_softmax(scores_BL)
    if weighing.of_label is not None:
        losses_BL *= weighing.of_label
    return (1 - share) * losses_B + share * tf.reduce_mean(losses_BL, 1)


@losses_of.register
def _(
    target: SeveralLabels, scores_BL: tf.Tensor, label: tf.Tensor, weighing: Weighing
) -> tf.Tensor:
    weight_of_label = weighing.of_label
    losses_BL = tf.nn.sigmoid_cross_entropy_with_logits(label, scores_BL)
    weights_L = 1.0 if weight_of_label is None else weight_of_label
    return tf.reduce_mean(losses_BL * weights_L, 1)


@singledispatch
def outputs_of(target: Target, scores_BL: tf.Tensor) -> Tensors:
    """What an exported model gives."""
    raise NotImplementedError(type(target))


@outputs_of.register
def _(target: Number, scores_BL: tf.Tensor) -> Tensors:
    return {"value": scores_BL[:, 0]}


@outputs_of.register
def _(target: OneLabel, scores_BL: tf.Tensor) -> Tensors:
    return named_outputs(scores_BL, target.labels)


@outputs_of.register
def _(target: SeveralLabels, scores_BL: tf.Tensor) -> Tensors:
    return {"probabilities": tf.math.sigmoid(scores_BL), "logits": scores_BL}
