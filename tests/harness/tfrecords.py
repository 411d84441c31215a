"""TFRecord files of pretraining examples, written by TensorFlow and by us."""

from pathlib import Path

import numpy as np
import tensorflow as tf
from bert.corpus.tfrecord_writer import serialized

from bert.corpus.tfrecord import RecordRows
from ringbase.files import replacing

LENGTH, PREDICTIONS, VOCAB = 24, 4, 500
FLAGS = {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS}


def fields(number: int, seed: int = 0) -> dict:
    """Examples of 5 to 24 tokens, a few without predictions or without a second sentence."""
    chance = np.random.default_rng(seed)

    def ragged(lengths: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
        offsets = np.cumsum([0, *lengths]).astype(np.int64)
        return chance.integers(1, most, offsets[-1]).astype(np.int32), offsets

    lengths = chance.integers(5, LENGTH + 1, number)
    lengths[0] = LENGTH
    predicted = chance.integers(0, PREDICTIONS + 1, number)
    return {
        "input_ids": ragged(lengths, VOCAB),
        "sentence_a_tokens": np.minimum(lengths, chance.integers(3, LENGTH + 1, number)).astype(np.int32),
        "masked_lm_positions": ragged(predicted, 5),
        "masked_lm_ids": ragged(predicted, VOCAB),
        "is_random_next": chance.integers(0, 2, number).astype(np.int8),
    }


def padded(columns: dict, row: int, length: int = LENGTH, predictions: int = PREDICTIONS) -> dict[str, list]:
    """One example as create_pretraining_data.py's write_instance_to_example_files pads it, written out."""

    def part(key: str) -> list[int]:
        values, offsets = columns[key]
        return values[offsets[row] : offsets[row + 1]].tolist()

    ids, positions, original = part("input_ids"), part("masked_lm_positions"), part("masked_lm_ids")
    first = int(columns["sentence_a_tokens"][row])
    weights = [1.0] * len(positions)
    features: dict[str, list] = {
        "input_ids": ids,
        "input_mask": [1] * len(ids),
        "segment_ids": [0] * first + [1] * (len(ids) - first),
        "masked_lm_positions": positions,
        "masked_lm_ids": original,
        "masked_lm_weights": weights,
        "next_sentence_labels": [int(columns["is_random_next"][row])],
    }
    for key in ("input_ids", "input_mask", "segment_ids"):
        features[key] = features[key] + [0] * (length - len(ids))
    for key in ("masked_lm_positions", "masked_lm_ids"):
        features[key] = features[key] + [0] * (predictions - len(positions))
    features["masked_lm_weights"] = weights + [0.0] * (predictions - len(positions))
    return features


def tensorflows(features: dict[str, list]) -> bytes:
    def feature(values: list) -> tf.train.Feature:
        if values and isinstance(values[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if values and isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    made = {key: feature(values) for key, values in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString(deterministic=True)


def write_by_tensorflow(path: Path, records: list[bytes], options=None) -> Path:
    with tf.io.TFRecordWriter(str(path), options) as writer:
        for record in records:
            writer.write(record)
    return path


def shard(path: Path, number: int, seed: int = 0) -> dict:
    columns = fields(number, seed)
    write_by_tensorflow(path, [tensorflows(padded(columns, row)) for row in range(number)])
    return columns


def open_rows(patterns: object, tmp_path: Path, **settings) -> RecordRows:
    return RecordRows(str(patterns), tmp_path / "cache", **(FLAGS | {"vocab_size": VOCAB} | settings))


def assert_rows(found: dict, columns: dict, rows: list[int]) -> None:
    assert found.keys() == columns.keys()
    for key, expected in columns.items():
        if not isinstance(expected, tuple):
            assert found[key].dtype == expected.dtype
            np.testing.assert_array_equal(found[key], expected[rows])
            continue
        (values, offsets), (all_values, all_offsets) = found[key], expected
        assert (values.dtype, offsets.dtype) == (np.int32, np.int64)
        parts = [all_values[all_offsets[row] : all_offsets[row + 1]] for row in rows]
        np.testing.assert_array_equal(np.diff(offsets), [len(part) for part in parts])
        np.testing.assert_array_equal(values, np.concatenate([np.empty(0, np.int32), *parts]))
        assert (len(offsets), offsets[0]) == (len(rows) + 1, 0)


def write_records(path: Path, columns: dict, **lengths: int) -> None:
    with replacing(path) as file:
        for data in serialized(columns, **lengths):
            file.write(data)
