"""Losses by which vectors learn a teacher's scores of each pair's texts, without other pairs.

Tensors have their shape as a suffix: C candidates, the positives and hard negatives of all pairs of
a batch.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import tensorflow as tf

from bert.batch import Batch
from distributed.joint import ANCHOR, POSITIVE
from ringbase.ragged import padded

NO_PAIR = -1  # of a candidate that is padding


class Distillation(Protocol):
    """A loss of the products of candidates with their anchors, beside the teacher's scores."""

    def weight(self, batch: Batch) -> float:
        """By how much the loss of a batch is divided."""

    def loss(self, products_C: tf.Tensor, batch: Batch) -> tf.Tensor:
        """The sum over the batch."""


class MarginMSE:
    """The squared error of the lead of the positive over each negative (Hofstätter et al. 2020,
    "Improving Efficient Neural Ranking Models with Cross-Architecture Knowledge Distillation")."""

    def weight(self, batch: Batch) -> float:
        """The number of negatives."""
        return float(batch["is_negative"].sum())

    def loss(self, products_C: tf.Tensor, batch: Batch) -> tf.Tensor:
        positive_C = batch["candidate_positive"]
        leads_C = tf.gather(products_C, positive_C) - products_C
        right_C = tf.gather(batch["teacher"], positive_C) - batch["teacher"]
        return tf.reduce_sum(tf.square(leads_C - right_C) * batch["is_negative"])


class KLDivergence:
    """The KL divergence of the shares of a pair's candidates, the softmax of products divided by
    the temperature, from those of the teacher, the softmax of its scores."""

    def __init__(self, temperature: float):
        self._temperature = temperature

    def weight(self, batch: Batch) -> float:
        """The number of pairs."""
        return float((batch["slot"] == ANCHOR).sum())

    def loss(self, products_C: tf.Tensor, batch: Batch) -> tf.Tensor:
        pair_C = batch["candidate_pair"]
        student_C = _log_softmax_in_pairs(products_C / self._temperature, pair_C)
        teacher_C = _log_softmax_in_pairs(batch["teacher"], pair_C)
        terms_C = tf.exp(teacher_C) * (teacher_C - student_C)
        return tf.reduce_sum(tf.where(pair_C == NO_PAIR, 0.0, terms_C))


def distillation(kind: str | None, temperature: float) -> Distillation | None:
    """That of `--kd_loss_type`."""
    losses: Mapping[str | None, Distillation] = {
        "margin_mse": MarginMSE(),
        "kl_div": KLDivergence(temperature),
    }
    return losses.get(kind)


def _log_softmax_in_pairs(scores_C: tf.Tensor, pair_C: tf.Tensor) -> tf.Tensor:
    """The logarithm of the softmax over the candidates of each pair; 0 for padding."""
    size = tf.size(scores_C)
    segments_C = tf.where(pair_C == NO_PAIR, size, pair_C)  # padding is a pair of its own
    highest = tf.math.unsorted_segment_max(scores_C, segments_C, size + 1)
    shifted_C = scores_C - tf.stop_gradient(tf.gather(highest, segments_C))
    sums = tf.math.unsorted_segment_sum(tf.exp(shifted_C), segments_C, size + 1)
    logs_C = shifted_C - tf.math.log(tf.gather(sums, segments_C))
    return tf.where(pair_C == NO_PAIR, 0.0, logs_C)


def candidates_of(texts: Mapping, size: int) -> Batch:
    """The rows of attention of the candidates and of their anchors, where each candidate's positive
    is among the candidates, the number of its pair, and the teacher's score; padded to the number
    of rows of attention. `texts` has columns for these rows."""
    candidates = np.flatnonzero(texts["slot"] >= POSITIVE)
    anchors = np.flatnonzero(texts["slot"] == ANCHOR)
    anchors = anchors[np.argsort(texts["row_id"][anchors], kind="stable")]
    rows = texts["row_id"][candidates]
    pairs = np.searchsorted(texts["row_id"][anchors], rows)
    is_positive = texts["slot"][candidates] == POSITIVE
    place_of_pair = np.empty(len(anchors), np.int64)
    place_of_pair[pairs[is_positive]] = np.flatnonzero(is_positive)
    columns = {
        "candidate": candidates.astype(np.int32),
        "candidate_anchor": anchors[pairs].astype(np.int32),
        "candidate_positive": place_of_pair[pairs].astype(np.int32),
        "teacher": texts["teacher"][candidates].astype(np.float32),
        "is_negative": (~is_positive).astype(np.float32),
    }
    batch = {name: padded(column, size) for name, column in columns.items()}
    return batch | {"candidate_pair": padded(pairs.astype(np.int32), size, NO_PAIR)}
