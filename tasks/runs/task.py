"""What a task is, said once: training, evaluation, prediction, the Python API, export and the page
use one object.

    source -> read -> examples -> tables -> rows -> batch -> model -> scores of a row
           -> decoder -> results of the examples -> scores, files, sections of the page
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np
import tensorflow as tf

from bert.batch import Batch, Grouping
from bert.heads import Head
from distributed.joint import JointLoss
from distributed.rows import BatchRows
from distributed.run import Run
from distributed.world import World
from tasks.runs.details import Details, Record
from tasks.runs.resolve.command import Stream
from tasks.runs.rows.reader import Examples, Reader
from tasks.runs.rows.sets import DataSet

Results = TypeVar("Results")
Scores = dict[str, float]
Tensors = dict[str, tf.Tensor]
# of a batch: which texts it has, and which rows of attention have one
TextsOf = Callable[[Batch], tuple[list[np.ndarray], np.ndarray]]


class Trainable:
    """What training needs of a task: a head with its rows, targets and loss."""

    # For type checkers only. Subclasses have these as fields or properties, and a dataclass would
    # take a property of its base for the default of a field.
    if TYPE_CHECKING:

        @property
        def head(self) -> Head:
            """Of bert/heads.py."""

        @property
        def max_seq_length(self) -> int:
            """The most tokens of a row."""

        @property
        def settings(self) -> Mapping[str, Any]:
            """What prediction must know, by flag; kept beside the model."""

    @property
    def terms(self) -> tuple[str, ...]:
        """The names of the loss terms. "mlm/news" is a part of "mlm", which is only logged."""
        return ("loss",)

    @property
    def texts_per_row(self) -> int:
        """The most rows of attention that a row of data has."""
        return 1

    @property
    def stream(self) -> Stream:
        """The order of the rows to train on, and what changes along it."""
        return Stream()

    @property
    def joint(self) -> tuple[JointLoss, TextsOf] | None:
        """Instead of `loss` one that joins the rows of all ranks (distributed/joint.py)."""
        return None

    @property
    def metric(self) -> str:
        """The score whose highest value is that of the best model."""
        raise NotImplementedError

    def files(self, width: int) -> Mapping:
        """JSON files beside a trained model of this hidden size, by name."""
        return {}

    @property
    def assets(self) -> Mapping:
        """JSON files beside an exported model, by name: what callers must know to make its
        input."""
        return {}

    def batch(self, fields: dict, grouping: Grouping | None = None) -> Batch:
        """Rows, with their numbers "row" and "epoch" -> the model's input (bert/batch.py), and the
        targets."""
        raise NotImplementedError

    def lengths(self, rows: BatchRows, numbers: np.ndarray) -> np.ndarray:
        """The tokens of each row of attention of these rows of data, int64."""
        return rows.lengths_at("input_ids", numbers)

    def weights(self, batch: Batch) -> Mapping[str, float]:
        """The weight of each loss term in a batch. The sum over all ranks divides the term."""
        raise NotImplementedError

    def loss(self, scores: Any, batch: Tensors) -> Mapping[str, tf.Tensor]:
        """The sum of each loss term over a batch, from the model's scores."""
        raise NotImplementedError


class Decoder:
    """Makes the scores of rows the results of examples. This one is for tasks with one row for each
    example: the results are the scores of all, [examples, …]."""

    def keep(self, row: int, scores: np.ndarray) -> Any:
        """What is kept of a row's scores, float32 [tokens, …] for a head per token. It is called
        where they were computed, while the model computes the next batch."""
        return scores.copy()

    def results(self, kept: Sequence) -> Any:
        """The results of all examples, in their order, from what was kept of each row. On
        rank 0."""
        return np.array(kept)


class Task(Reader[Examples], Trainable, Generic[Examples, Results]):
    """The base of all tasks but pretraining, which has no examples: its rows come from shards."""

    def decoder(self, data: DataSet[Examples]) -> Decoder:
        """What makes the scores of these rows results."""
        return Decoder()

    def outputs(self, scores: tf.Tensor) -> Tensors:
        """What an exported model says, from the scores of rows [B, …], per token [B, T, …]."""
        return {"logits": scores}

    def finished(self, data: DataSet[Examples], results: Results | None, world: World) -> Any:
        """The results of a set to predict, with what all ranks compute of them together. Rank 0 has
        results and gets them; the others have and get None."""
        return results

    # -- what results are worth. On rank 0 ---------------------------------------------------------

    def scores(self, kind: str, data: DataSet[Examples], results: Results) -> Scores:
        """The scores of results, of which the page shows the first four large; none if nobody
        knows the truth. `kind`, "eval" or "predict", begins their names."""
        return {}

    def records(self, data: DataSet[Examples], results: Results) -> Iterable[Record]:
        """The lines of predictions.jsonl."""
        return ()

    def cases(self, data: DataSet[Examples], results: Results) -> Iterable[Record]:
        """What is right or a mistake, of which mistakes.jsonl has the mistakes: the records, unless
        something else is scored, as the queries of a ranking."""
        return self.records(data, results)

    def write(self, run: Run, data: DataSet[Examples], results: Results) -> None:
        """Writes the predictions of a set in other forms."""

    def details(self, data: DataSet[Examples], results: Results) -> Details:
        """What result.json and the page show of an evaluation, besides its scores."""
        return Details()

    def calibrated(self, data: DataSet[Examples], results: Results) -> dict:
        """What an evaluation teaches, as further `settings` of the model."""
        return {}

    def taught(self, settings: Mapping) -> Self:
        """The task with what an evaluation has taught, among the settings of a model."""
        return self


def named_outputs(scores: tf.Tensor, labels: Sequence[str]) -> dict[str, tf.Tensor]:
    """What an exported model says of one label for each row or token, from scores [..., L]."""
    best = tf.argmax(scores, -1)
    label = tf.gather(tf.constant(labels), best)
    return {"probabilities": tf.nn.softmax(scores), "logits": scores, "label": label}
