"""What a task is, said once: training, evaluation, prediction, the Python API, export and the page
use one object.

    source -> read -> examples -> tables -> rows -> batch -> model -> scores of a row
           -> decoder -> results of the examples -> scores, files, sections of the page
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np
import tensorflow as tf

from bert.batch import Batch, Grouping
from bert.heads import Head
from distributed.rows import BatchRows, Rows
from distributed.run import Run
from ringbase.errors import InputError
from tasks.runs.cache import Prepared, Recipe, Tables, in_memory
from tasks.runs.details import Details
from tasks.runs.reader import Examples, Reader, rows_key
from tasks.runs.texts import Preparation

Results = TypeVar("Results")
Scores = dict[str, float]
Tensors = dict[str, tf.Tensor]


class Trains:
    """What training needs of a task: a head with its rows, targets and loss."""

    head: ClassVar[Head]  # of bert/heads.py
    max_seq_length: Any  # the most tokens of a row
    terms: Any = ("loss",)  # the names of the loss terms
    settings: Any  # what prediction must know, by flag; kept beside the model
    # the most rows of attention that a row of data has
    texts_per_row: Any = 1
    # instead of `loss` one that joins the rows of all ranks (distributed/joint.py), and a function:
    # batch -> which texts it has, and which rows of attention have one
    joint: Any = None

    @property
    def metric(self) -> str:
        """The score whose highest value is that of the best model."""
        raise NotImplementedError

    def files(self, width: int) -> Mapping:
        """JSON files beside a trained model of this hidden size, by name."""
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


@dataclass(frozen=True, eq=False)
class DataSet(Generic[Examples]):
    """The examples of a source, and their rows."""

    source: Any  # its text names the flag and the file
    prepared: Prepared
    table: str  # the one whose rows the model reads
    examples: Callable[[], Examples]  # which are read once, by the ranks that ask for them

    @property
    def rows(self) -> Rows:
        return self.prepared.tables[self.table]

    @property
    def tables(self) -> Mapping[str, Rows]:
        return self.prepared.tables

    @property
    def is_printed(self) -> bool:
        """Whether its predictions go to standard output only: those of standard input."""
        return getattr(self.source, "is_printed", False)

    @property
    def suffix(self) -> str:
        """Of the files of predictions, where a task has several sets."""
        return getattr(self.source, "suffix", "")


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


class Record(NamedTuple):
    """A line of predictions.jsonl, and whether it is a mistake."""

    # the input, the truth if there is one, the prediction, its probability or probabilities
    fields: Mapping
    # of a mistake, how sure the model was; None if it is right, or nobody knows
    mistake: float | None = None
    # what the page shows of a mistake, cells by their columns; None: the fields
    shown: Mapping | None = None


class Task(Reader[Examples], Trains, Generic[Examples, Results]):
    """The base of all tasks but pretraining, which has no examples: its rows come from shards."""

    @property
    def fixed(self) -> Mapping:
        """The settings, by flag, that must not change when a training is resumed."""
        return self.settings

    def tables(self, examples: Examples, preparation: Preparation) -> Tables:
        """The rows of examples, with the facts "notes", to be printed, and those of
        `Preparation.fit`."""
        raise NotImplementedError

    # -- from scores to results --------------------------------------------------------------------

    def decoder(self, data: DataSet[Examples]) -> Decoder:
        """What makes the scores of these rows results."""
        return Decoder()

    def outputs(self, scores: tf.Tensor) -> Tensors:
        """What an exported model says, from the scores of rows [B, …], per token [B, T, …]."""
        return {"logits": scores}

    # -- what results are worth. On rank 0 ---------------------------------------------------------

    def scores(self, kind: str, data: DataSet[Examples], results: Results) -> Scores:
        """The scores of results, of which the page shows the first four large; none if nobody
        knows the truth. `kind`, "eval" or "predict", begins their names."""
        return {}

    def records(self, data: DataSet[Examples], results: Results) -> Iterable[Record]:
        """The lines of predictions.jsonl, of which those of mistakes go to mistakes.jsonl too."""
        return ()

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


def open_set(task: Task, source: Any, preparation: Preparation) -> DataSet:
    """The rows of a source on every rank; each machine makes them once and keeps them in its cache.
    Raises InputError as `task.read` and `Preparation.rows`."""

    def recipe() -> Recipe:
        key, read = rows_key(task, source, preparation.tokenizer)
        return key, lambda: task.tables(read(), preparation)

    prepared = preparation.rows(recipe, source)

    @cache
    def examples() -> Any:
        """Read again where they are needed: those to train on would only take memory."""
        key, read = rows_key(task, source, preparation.tokenizer)
        if key != prepared.key:
            raise InputError(f"{source}: the data changed while this program ran: run it again")
        return read()

    return DataSet(source, prepared, task.table, examples)


def set_of(task: Task, examples: Any, preparation: Preparation) -> DataSet:
    """The rows of examples that are in memory, without a cache."""
    tables = in_memory(task.tables(examples, preparation))
    return DataSet(None, tables, task.table, lambda: examples)
