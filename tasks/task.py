"""A task: what a program adds to BERT's encoder. Training, evaluation and prediction share its
description."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from bert.batch import Batch, Grouping
from bert.heads import Head


class Task(Protocol):
    """A head with its rows, targets and loss."""

    @property
    def head(self) -> Head: ...  # of bert/heads.py
    @property
    def max_seq_length(self) -> int: ...  # the most tokens of a row
    @property
    def terms(self) -> Sequence[str]: ...  # the names of the loss terms
    @property
    # what prediction must know, by flag; kept beside the model
    def settings(self) -> Mapping[str, object]: ...

    def batch(self, fields: dict[str, Any], grouping: Grouping | None = None) -> Batch:
        """Rows, with their numbers "row" and "epoch" -> the model's input (bert/batch.py), and the
        targets."""
        ...

    def weights(self, batch: Batch) -> Mapping[str, float]:
        """The weight of each loss term in a batch. The sum over all ranks divides the term."""
        ...

    def loss(self, scores: Any, batch: dict[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        """The sum of each loss term over a batch, from the model's scores."""
        ...
