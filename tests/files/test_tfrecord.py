"""TFRecord shards: TensorFlow reads what we write, we read what TensorFlow writes, and damage is named."""

import gzip
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from harness.refusals import refused
from harness.tfrecords import (
    FLAGS,
    LENGTH,
    assert_rows,
    fields,
    open_rows,
    padded,
    shard,
    tensorflows,
    write_by_tensorflow,
    write_records,
)


def read_all(patterns, tmp_path, **settings):
    rows = open_rows(patterns, tmp_path, **settings)
    return rows.take(np.arange(len(rows)))


def test_tensorflow_reads_what_we_write(tmp_path):
    columns = fields(600)  # more than are serialized at once
    write_records(tmp_path / "ours", columns, **FLAGS)
    expected = [padded(columns, row) for row in range(600)]
    kinds = {key: tf.float32 if key == "masked_lm_weights" else tf.int64 for key in expected[0]}
    spec = {key: tf.io.FixedLenFeature([len(values)], kinds[key]) for key, values in expected[0].items()}
    (records,) = tf.data.TFRecordDataset(str(tmp_path / "ours")).batch(1000)
    for key, values in tf.io.parse_example(records, spec).items():
        assert values.numpy().tolist() == [example[key] for example in expected]


def test_we_read_what_tensorflow_writes(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    shards = [shard(data / f"part-{number}.tfrecord", count, number) for number, count in enumerate((40, 1, 25))]
    data.chmod(0o555)
    rows = open_rows(f"{data}/part-[01].tfrecord, {data}/part-2.*", tmp_path)
    assert len(rows) == 66
    assert_rows(rows.take(np.arange(40)), shards[0], list(range(40)))
    assert_rows(rows.take(np.array([40])), shards[1], [0])
    assert_rows(rows.take(np.array([65, 42, 42, 41])), shards[2], [24, 1, 1, 0])
    found, places = rows.take(np.array([65, 3, 40])), ((shards[2], 24), (shards[0], 3), (shards[1], 0))
    assert found["is_random_next"].tolist() == [part["is_random_next"][row] for part, row in places]
    assert_rows(rows.take(np.array([], np.int64)), shards[0], [])
    for outside in (66, -1):
        with pytest.raises(IndexError):
            rows.take(np.array([outside]))
    assert sorted(os.listdir(data)) == [f"part-{number}.tfrecord" for number in range(3)], "written beside them"


def test_what_padding_and_weight_0_hold_does_not_matter(tmp_path):
    example = padded(fields(1), 0)
    example |= {
        "input_mask": [1] * 6 + [0] * 18, "input_ids": [5] * 6 + [9999] * 18,
        "segment_ids": [0] * 4 + [1] * 2 + [7] * 18, "masked_lm_weights": [0.0, 1.0, 0.0, 1.0],
        "masked_lm_positions": [99, 2, 99, 4], "masked_lm_ids": [9999, 8, 9999, 9], "extra": [b"whatever"],
    }  # fmt: skip
    write_by_tensorflow(tmp_path / "file", [tensorflows(example)])
    found = read_all(tmp_path / "file", tmp_path)
    assert (found["input_ids"][0].tolist(), found["sentence_a_tokens"].tolist()) == ([5] * 6, [4])
    assert (found["masked_lm_positions"][0].tolist(), found["masked_lm_ids"][0].tolist()) == ([2, 4], [8, 9])


def test_the_digest_tells_contents_apart_and_not_copies_and_a_changed_file_is_read_anew(tmp_path):
    columns = shard(tmp_path / "file", 10)
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "file", tmp_path / "copy" / "file")
    digests = [open_rows(tmp_path / name, tmp_path).digest for name in ("file", "copy/file")]
    columns["masked_lm_ids"][0][-1] ^= 1
    write_records(tmp_path / "file", columns, **FLAGS)
    assert_rows(read_all(tmp_path / "file", tmp_path), columns, list(range(10)))
    changed = open_rows(tmp_path / "file", tmp_path).digest
    assert digests[0] == digests[1] != changed


@pytest.mark.parametrize("byte", [0, 1, 8, 11, 12, 40, -5, -2])
def test_a_flipped_bit_in_any_part_of_a_record_and_a_cut_are_named(tmp_path, byte):
    """Length, its checksum, content, its checksum."""
    file = tmp_path / "part.tfrecord"
    shard(file, 10)
    raw, start = bytearray(file.read_bytes()), 0
    for _ in range(4):
        start += int.from_bytes(raw[start : start + 8], "little") + 16
    raw[start + byte] ^= 0x10
    for content in (raw, file.read_bytes()[: byte - 20]):
        file.write_bytes(content)
        refused(lambda: read_all(file, tmp_path), "--input_file", file)


def test_empty_missing_foreign_and_compressed_files_are_named(tmp_path):
    shard(tmp_path / "good", 2)
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("one sentence per line\n" * 20)
    (tmp_path / "a.tfrecord.gz").write_bytes(gzip.compress((tmp_path / "good").read_bytes()))
    write_by_tensorflow(tmp_path / "long", [b"short", bytes(1 << 18)])
    write_by_tensorflow(tmp_path / "other", [b"\x0a\x05no example"])
    for name in ("empty", "none*", "g*", "text", "a.tfrecord.gz", "long", "other"):
        patterns = f"{tmp_path}/good,{tmp_path}/{name}"
        refused(lambda patterns=patterns: read_all(patterns, tmp_path), "--input_file", name.strip("*"))
    refused(lambda: read_all(tmp_path, tmp_path, flag="--eval_input_file"), "--eval_input_file", tmp_path)


ONES = [1] * LENGTH


@pytest.mark.parametrize(
    ("named", "changes"),
    [("masked_lm_ids", {"masked_lm_ids": None}), ("input_ids", {"input_ids": [b"text"]}),
     ("masked_lm_weights", {"masked_lm_weights": [1, 1, 1, 1]}), ("--max_seq_length", {"input_ids": [1] * 30}),
     ("--max_predictions_per_seq", {"masked_lm_positions": [1] * 9}), ("500", {"input_ids": [7, 500] * 12}),
     ("next_sentence_labels", {"next_sentence_labels": [2]}), ("-1", {"input_ids": [-1, 7] * 12}),
     ("masked_lm_weights", {"masked_lm_weights": [0.5, 0, 0, 0]}), ("input_mask", {"input_mask": [0, *ONES[1:]]}),
     ("segment_ids", {"segment_ids": [0, 1] * 12, "input_mask": ONES}),
     ("position", {"masked_lm_positions": [24, 0, 0, 0], "masked_lm_weights": [1.0, 0.0, 0.0, 0.0]})],
)  # fmt: skip
def test_an_example_that_does_not_fit_is_named(tmp_path, named, changes):
    columns = fields(4)
    examples = [padded(columns, row) for row in range(4)]
    examples[2] = {key: value for key, value in (examples[2] | changes).items() if value is not None}
    write_by_tensorflow(tmp_path / "file", [tensorflows(example) for example in examples])
    refused(lambda: read_all(tmp_path / "file", tmp_path), "--input_file", tmp_path / "file", named)


def test_the_flags_must_be_those_of_the_files(tmp_path):
    shard(tmp_path / "file", 3)
    for name, value in {"max_seq_length": 128, "max_predictions_per_seq": 20, "vocab_size": 3}.items():
        line = refused(lambda n=name, v=value: read_all(tmp_path / "file", tmp_path, **{n: v}), tmp_path / "file")
        assert f"--{name}" in line or name == "vocab_size"
    for name, less in {"max_seq_length": 20, "max_predictions_per_seq": 3}.items():
        refused(
            lambda n=name, v=less: write_records(tmp_path / "x", fields(30), **FLAGS | {n: v}), f"--{name}", less
        )
