"""A task of one's own: how many stars a text gets, as a number, with a loss that forgives wrong
labels.

    bert-launch -np 2 -- python examples/own_task.py --model MODEL --output_dir stars \
        --do_train --do_eval --do_predict --train_file reviews.csv --dev_file dev.csv \
        --predict_file new.csv --early_stopping_patience 2

The files have the columns `text` and `stars`; those to predict need no stars.
docs/contributing.md walks through this file.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from ringbert.task import (
    CLASSIFIER,
    Batch,
    Config,
    DataSet,
    Grouping,
    InputError,
    Run,
    Scores,
    Source,
    Tables,
    Task,
    Tensors,
    Tokenization,
    batch_of,
    main,
    num_examples,
    number_in,
    padded,
    rows_of_texts,
    setting,
    with_facts,
)

import numpy as np
import pyarrow as pa
import tensorflow as tf


class StarsConfig(Config):
    """The flags: those that every program has, and one more."""

    forgiven_error: float = setting(
        1.0,
        "errors above this count in proportion, and not squared",
        "training",
        at_least=0.01,
        changes="training",
        is_saved=True,
    )


class Reviews(NamedTuple):
    texts: Sequence[str]
    stars: Sequence[float] | None = None


class Stars(Task[Reviews, np.ndarray]):
    """Learn the stars of texts, by Huber's loss."""

    name = "stars"
    head = CLASSIFIER
    labels = ("stars",)  # with one label the classifier's head gives a number
    metric = "eval_minus_error"

    def read(self, source: Source) -> Reviews:
        table = source.table(("text", "stars"))
        has_stars = table.find("stars", is_needed=False)
        texts, stars = [], []
        for place, row in itertools.islice(table.rows, source.limit):
            texts.append(str(row[table.find("text")]))
            number = number_in(row["stars"]) if has_stars else np.nan
            if number is None:
                raise InputError(f"{source}: {place}: stars must be a number, got {row['stars']}")
            stars.append(number)
        return Reviews(texts, stars if has_stars else None)

    def tables(self, reviews: Reviews, tokenization: Tokenization) -> Tables:
        no_pairs = [None] * len(reviews.texts)
        columns, facts = rows_of_texts(tokenization, reviews.texts, no_pairs, self.max_seq_length)
        columns["stars"] = pa.array(reviews.stars or no_pairs, pa.float32()).fill_null(0)
        return with_facts({"rows": columns}, {"notes": [], **facts})

    def batch(self, fields: dict[str, Any], grouping: Grouping | None = None) -> Batch:
        fields, batch = batch_of(fields, grouping)
        return batch | {"stars": padded(fields["stars"], len(batch["is_example"]))}

    def weights(self, batch: Batch) -> dict[str, float]:
        return {"loss": float(num_examples(batch))}

    def loss(self, scores_B1: tf.Tensor, batch: Tensors) -> Tensors:
        limit = self.settings["forgiven_error"]
        error_B = tf.abs(scores_B1[:, 0] - batch["stars"])
        losses_B = tf.where(error_B < limit, 0.5 * error_B**2, limit * (error_B - 0.5 * limit))
        return {"loss": tf.reduce_sum(losses_B * batch["is_example"])}

    def outputs(self, scores_B1: tf.Tensor) -> Tensors:
        return {"stars": scores_B1[:, 0]}

    def scores(self, kind: str, data: DataSet[Reviews], results_B1: np.ndarray) -> Scores:
        if (stars := data.examples().stars) is None:
            return {}
        return {f"{kind}_minus_error": -float(np.abs(results_B1[:, 0] - stars).mean())}

    def write(self, run: Run, data: DataSet[Reviews], results_B1: np.ndarray) -> None:
        run.write("stars.txt", "".join(f"{number:.2f}\n" for number in results_B1[:, 0]))


if __name__ == "__main__":
    main(Stars, StarsConfig)
