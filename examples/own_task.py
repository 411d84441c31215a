"""A task of one's own: how many stars a text gets, as a number, with a loss that forgives wrong
labels.

    bert-launch -np 2 -- python examples/own_task.py --model MODEL --output_dir stars \
        --do_train --do_eval --do_predict --train_file reviews.csv --dev_file dev.csv \
        --predict_file new.csv --early_stopping_patience 2

The files have the columns `text` and `stars`; those to predict need no stars.
docs/contributing.md walks through this file.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import tensorflow as tf

from bert.batch import Batch, Grouping, batch_of, num_examples
from bert.heads import CLASSIFIER
from distributed.run import Run
from ringbase.errors import InputError
from ringbase.ragged import padded
from tasks.runs import flags
from tasks.runs.cache import Tables, with_facts
from tasks.runs.commands import Command
from tasks.runs.job import Job, run_on_ranks
from tasks.runs.program import open_sets, resolved, run_task
from tasks.runs.resolve.command import Learned, Program, Say
from tasks.runs.resolve.spec import Start
from tasks.runs.sets import DataSet
from tasks.runs.settings import DataSettings, TaskConfig, other_file, row_setting, train_file
from tasks.runs.sources import Source
from tasks.runs.tables import number_in
from tasks.runs.task import Scores, Task
from tasks.runs.texts import Preparation, rows_of_texts
from tasks.runs.trained import saved_settings


class FileSettings(DataSettings):
    """Which texts are read."""

    train_file: str | None = train_file("CSV with the columns text and stars")
    dev_file: str | None = other_file("the same, to evaluate on")
    predict_file: str | None = other_file("CSV with the column text")


class StarsConfig(TaskConfig):
    """The flags: those that every program has, and its own."""

    files: FileSettings
    max_seq_length: int = row_setting(
        128, "maximum number of tokens per text", at_least=3, is_saved=True
    )

    def check(self) -> None:
        super().check()
        self.check_files(self.files, "dataset_name")


class Reviews(NamedTuple):
    texts: Sequence[str]
    stars: Sequence[float] | None = None


@dataclass(frozen=True)
class StarsTask(Task[Reviews, np.ndarray]):
    """Huber's loss of one number per text; see `tasks.runs.task.Task`."""

    max_seq_length: int
    settings: Mapping[str, object] = field(default_factory=dict)
    # with one label the classifier's head gives a number
    name, head, metric = "stars", CLASSIFIER, "eval_minus_error"

    def read(self, source: Source) -> Reviews:
        table = source.table(("text", "stars"))
        has_stars, texts, stars = table.find("stars", is_needed=False), [], []
        for place, row in itertools.islice(table.rows, source.limit):
            texts.append(str(row[table.find("text")]))
            number = number_in(row["stars"]) if has_stars else np.nan
            if number is None:
                raise InputError(f"{source}: {place}: stars must be a number, got {row['stars']}")
            stars.append(number)
        return Reviews(texts, stars if has_stars else None)

    def tables(self, reviews: Reviews, preparation: Preparation) -> Tables:
        texts, none = reviews.texts, [None] * len(reviews.texts)
        columns, facts = rows_of_texts(preparation, texts, none, self.max_seq_length)
        columns["stars"] = pa.array(reviews.stars or none, pa.float32()).fill_null(0)
        return with_facts({"rows": columns}, {"notes": [], **facts})

    def batch(self, fields: dict[str, Any], grouping: Grouping | None = None) -> Batch:
        fields, batch = batch_of(fields, grouping)
        return batch | {"stars": padded(fields["stars"], len(batch["is_example"]))}

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(num_examples(batch))}

    def loss(self, scores_B1: tf.Tensor, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        error_B = tf.abs(scores_B1[:, 0] - batch["stars"])
        losses_B = tf.where(error_B < 1, 0.5 * error_B**2, error_B - 0.5)
        return {"loss": tf.reduce_sum(losses_B * batch["is_example"])}

    def outputs(self, scores_B1: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"stars": scores_B1[:, 0]}

    def scores(self, kind: str, data: DataSet[Reviews], results_B1: np.ndarray) -> Scores:
        if (stars := data.examples().stars) is None:
            return {}
        return {f"{kind}_minus_error": -float(np.abs(results_B1[:, 0] - stars).mean())}

    def write(self, run: Run, data: DataSet[Reviews], results_B1: np.ndarray) -> None:
        run.write("stars.txt", "".join(f"{number:.2f}\n" for number in results_B1[:, 0]))


class Stars(Program[StarsConfig]):
    """What the program adds where its runs are resolved."""

    command = Command("own_task", StarsConfig)

    def length(self, config: StarsConfig) -> int:
        return config.max_seq_length

    def outputs(self, config: StarsConfig, start: Start, learned: Learned, say: Say) -> Start:
        return replace(start, bert_config=replace(start.bert_config, labels=("stars",)))

    def sources(self, config: StarsConfig, start: Start) -> Mapping[str, Sequence[Source]]:
        return {kind: [Source(config.files, kind)] for kind in config.wanted_sets}

    def reader(self, config: StarsConfig, start: Start) -> StarsTask:
        return StarsTask(config.max_seq_length, saved_settings(config))


def run_stars(config: StarsConfig, job: Job) -> Scores:
    """Trains, evaluates and predicts, on every rank."""
    program = Stars()
    work = resolved(program, config, job)
    sets = open_sets(program, work, job)
    task = program.reader(work.config, work.start)
    return run_task(task, sets, work, job)


def of_settings(settings: Mapping[str, Any]) -> StarsTask:
    """The task of a trained model, for `ringbert.TaskPredictor` and `ringbert.export`."""
    return StarsTask(settings["max_seq_length"])


if __name__ == "__main__":
    config = flags.parse(StarsConfig, prog="own_task", description="Learn the stars of texts.")
    run_on_ranks("own_task", config, config.output_dir, run_stars)
