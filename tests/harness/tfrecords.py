"""TFRecord files of pretraining examples, written by TensorFlow, and what bert-pretraining reads from them."""

from pathlib import Path

import numpy as np
import tensorflow as tf
from harness.corpora import open_table

from bert.corpus.shards import find_shards
from tasks.pretraining.records import Limits, converted

LENGTH, PREDICTIONS, VOCAB = 24, 4, 500


def random_rows(number: int, seed: int = 0) -> list[dict]:
    """Rows of Arrow shards: 5 to 24 tokens, a few without predictions or without a second sentence."""
    chance = np.random.default_rng(seed)
    rows = []
    for length in [LENGTH, *chance.integers(5, LENGTH + 1, number - 1).tolist()]:
        predicted = int(chance.integers(0, PREDICTIONS + 1))
        rows.append({
            "input_ids": chance.integers(1, VOCAB, length).tolist(),
            "sentence_a_tokens": min(length, int(chance.integers(3, LENGTH + 1))),
            "is_random_next": int(chance.integers(0, 2)),
            "masked_lm_positions": chance.integers(1, 5, predicted).tolist(),
            "masked_lm_ids": chance.integers(1, VOCAB, predicted).tolist(),
        })  # fmt: skip
    return rows


def padded(row: dict, length: int = LENGTH, predictions: int = PREDICTIONS) -> dict[str, list]:
    """An example as create_pretraining_data.py's write_instance_to_example_files pads it, written out."""
    ids, first, number = row["input_ids"], row["sentence_a_tokens"], len(row["masked_lm_ids"])
    features: dict[str, list] = {
        "input_ids": ids,
        "input_mask": [1] * len(ids),
        "segment_ids": [0] * first + [1] * (len(ids) - first),
        "masked_lm_positions": row["masked_lm_positions"],
        "masked_lm_ids": row["masked_lm_ids"],
        "masked_lm_weights": [1.0] * number,
    }
    for key, values in features.items():
        size = predictions if "masked" in key else length
        features[key] = values + [0.0 if "weights" in key else 0] * (size - len(values))
    return features | {"next_sentence_labels": [row["is_random_next"]]}


def tensorflows(features: dict[str, list]) -> bytes:
    def feature(values: list) -> tf.train.Feature:
        if values and isinstance(values[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if values and isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    made = {key: feature(values) for key, values in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString(deterministic=True)


def write(path: Path, records: list[bytes]) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)


def write_rows(path: Path, rows: list[dict]) -> None:
    write(path, [tensorflows(padded(row)) for row in rows])


def read(patterns: object, flag: str = "--input_file", **limits: int) -> list[dict]:
    """The rows that bert-pretraining trains on."""
    fit = {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS, "vocab_size": VOCAB} | limits
    return open_table(str(converted(find_shards(str(patterns), flag), Limits(**fit), flag)), flag)[0].to_pylist()
