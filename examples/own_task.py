"""A task of one's own: how many stars a text gets, as a number, with a loss that forgives wrong
labels.

    bert-launch -np 2 -- python examples/own_task.py --model MODEL --output_dir stars \
        --do_train --train_file reviews.csv --predict_file new.csv

The files have the columns `text` and `stars`. docs/contributing.md walks through this file.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import tensorflow as tf

from bert.batch import Batch, Grouping, batch_of, num_examples
from bert.heads import CLASSIFIER
from ringbase.errors import InputError, one_line
from ringbase.files import digest, sha256
from ringbase.ragged import padded
from ringbase.settings import setting
from tasks import flags
from tasks.cache import Prepared, Recipe, Tables, prepared, with_facts
from tasks.job import Job, run_on_ranks
from tasks.predict import Predictor
from tasks.settings import ProgramConfig
from tasks.start import Needs, start_of_run
from tasks.texts import Preparation, rows_of_texts
from tasks.trained import saved_settings
from tasks.training import Training, TrainingData


@dataclass(frozen=True, kw_only=True)
class StarsConfig(ProgramConfig):
    """The flags: those that every program has, and its own."""

    train_file: str | None = setting(
        None, "CSV with the columns text and stars, for --do_train", "data"
    )
    predict_file: str = setting(help="CSV with the column text", group="data")
    max_seq_length: int = setting(
        128, "maximum number of tokens per text", "data", at_least=3, is_saved=True
    )

    def check(self) -> None:
        if self.do_train and not self.train_file:
            raise ValueError("--do_train needs --train_file")


@dataclass(frozen=True)
class StarsTask:
    """Huber's loss of one number per text; see `tasks.task.Task`."""

    max_seq_length: int
    settings: dict[str, object] = field(default_factory=dict)
    head = CLASSIFIER  # with one label it gives a number
    terms = ("loss",)

    def batch(self, fields: dict[str, Any], grouping: Grouping | None = None) -> Batch:
        fields, batch = batch_of(fields, grouping)
        return batch | {"stars": padded(fields["stars"], len(batch["is_example"]))}

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(num_examples(batch))}

    def loss(self, scores_B1: tf.Tensor, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        error_B = tf.abs(scores_B1[:, 0] - batch["stars"])
        losses_B = tf.where(error_B < 1, 0.5 * error_B**2, error_B - 0.5)
        return {"loss": tf.reduce_sum(losses_B * batch["is_example"])}


def run_stars(config: StarsConfig, job: Job) -> list[float] | None:
    """Trains and predicts, on every rank. Returns the predictions on rank 0."""
    world, run, seed = job.world, job.run, config.training.loop.seed
    start = start_of_run(config, job, Needs(config.max_seq_length))
    task = StarsTask(config.max_seq_length, saved_settings(config))
    start = replace(start, bert_config=replace(start.bert_config, labels=("stars",)))
    model = start.model(task.head)
    preparation = Preparation(world, run, start.words)
    if config.do_train:
        train = rows_of(config.train_file, ["text", "stars"], preparation, config.max_seq_length)
        data = TrainingData.of(train, "rows", task.settings)
        Training(model, task, data, config.training, job).run(start, job, seed)
    else:
        start.load(model, world, run)
    new = rows_of(config.predict_file, ["text"], preparation, config.max_seq_length)
    predictor = Predictor(model, task.batch, task.max_seq_length, job)
    stars = predictor(new.tables["rows"], 8, lambda row, scores: float(scores[0]))
    world.on_first(
        lambda: run.write("stars.txt", "".join(f"{number:.2f}\n" for number in stars or ()))
    )
    job.finish(config.do_train, {})
    return stars


def rows_of(file: Any, names: list[str], preparation: Preparation, max_seq_length: int) -> Prepared:
    """The rows of a file on every rank; each machine tokenizes once and keeps them in its cache."""

    def recipe() -> Recipe:
        tokens = preparation.tokenizer.digest
        key = digest("stars", 1, names, tokens, max_seq_length, sha256(Path(file)))
        return key, partial(tables, file, names, preparation, max_seq_length, key)

    return prepared(recipe, file, preparation.world, preparation.run)


def tables(
    file: str, names: list[str], preparation: Preparation, max_seq_length: int, key: str
) -> Tables:
    types = {"text": pa.string(), "stars": pa.float32()}
    try:
        options = pa.csv.ConvertOptions(include_columns=names, column_types=types)
        table = pa.csv.read_csv(file, convert_options=options)
    except pa.ArrowException as error:  # a column is missing, or a cell is no number
        raise InputError(f"{file}: {one_line(error)}") from error
    for name in names:
        if None in (values := table.column(name).to_pylist()):
            raise InputError(f"{file}: row {values.index(None) + 1} has no {name}")
    texts = table.column("text").to_pylist()
    columns, _, _ = rows_of_texts(preparation, texts, [None] * len(texts), max_seq_length)
    columns["stars"] = (
        table.column("stars") if "stars" in names else pa.array(np.zeros(len(texts), np.float32))
    )
    return with_facts({"rows": columns}, {"digest": key})


if __name__ == "__main__":
    config = flags.parse(StarsConfig, prog="own_task", description="Learn the stars of texts.")
    run_on_ranks("own_task", config, config.machine, config.output_dir, run_stars)
