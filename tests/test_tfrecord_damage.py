"""Damaged TFRecord files and examples that do not fit are named."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tfrecords import (
    LENGTH,
    assert_rows,
    fields,
    open_rows,
    padded,
    refusal,
    shard,
    tensorflows,
    write_by_tensorflow,
)  # fmt: skip

from ringbert.errors import InputError

# -- what is wrong with a file ------------------------------------------------------------------------------------


@pytest.fixture
def damaged(tmp_path: Path):
    """(a file of 10 examples, where each record begins, and a function that changes its bytes)."""
    file = tmp_path / "part.tfrecord"
    shard(file, 10)
    raw, starts = bytearray(file.read_bytes()), [0]
    while starts[-1] < len(raw):
        starts.append(starts[-1] + int.from_bytes(raw[starts[-1] : starts[-1] + 8], "little") + 16)

    def flip(place: int) -> None:
        raw[place] ^= 0x10
        file.write_bytes(raw)

    return file, starts, flip


@pytest.mark.parametrize("byte", range(12))
def test_a_damaged_length_is_named(damaged, tmp_path: Path, byte: int) -> None:
    file, starts, flip = damaged
    flip(starts[4] + byte)
    message = refusal(file, tmp_path)
    assert f"{file}: record 4 at byte {starts[4]}: the checksum of its length is wrong" in message


@pytest.mark.parametrize("record", [0, 6])
@pytest.mark.parametrize("place", ["first byte", "last byte", "checksum"])
def test_a_damaged_content_is_named_when_it_is_read(damaged, tmp_path: Path, record: int, place: str) -> None:
    file, starts, flip = damaged
    flip({"first byte": starts[record] + 12}.get(place, starts[record + 1] - (5 if place == "last byte" else 2)))
    if record == 0:
        message = refusal(file, tmp_path)
    else:
        rows = open_rows(file, tmp_path)
        rows.take(np.array([0, 5, 7]))
        with pytest.raises(InputError) as refused:
            rows.take(np.array([0, 6, 7]))
        message = str(refused.value)
    assert f"{file}: record {record} at byte {starts[record]}: the checksum of its content is wrong" in message


@pytest.mark.parametrize("cut", [1, 5, 100])
def test_a_truncated_file_is_named(damaged, tmp_path: Path, cut: int) -> None:
    file, starts, _ = damaged
    size = starts[-1] - cut
    os.truncate(file, size)
    expected = f"truncated: record 9 at byte {starts[9]} ends at byte {starts[10]}, but the file has {size} bytes"
    assert expected in refusal(file, tmp_path)
    os.truncate(file, starts[7] + 5)  # within a header
    assert f"truncated: record 7 at byte {starts[7]} ends at byte" in refusal(file, tmp_path)


def test_a_file_cut_while_it_is_read_is_named(damaged, tmp_path: Path) -> None:
    file, starts, _ = damaged
    rows = open_rows(file, tmp_path)
    os.truncate(file, starts[9] + 20)
    rows.take(np.arange(9))
    with pytest.raises(InputError, match=f"record 9 at byte {starts[9]}: .*changed"):
        rows.take(np.array([9]))
    os.truncate(file, starts[9])
    with pytest.raises(InputError, match=f"record 9 at byte {starts[9]}: .*changed"):
        rows.take(np.array([9]))
    file.unlink()
    with pytest.raises(InputError, match="No such file"):
        rows.take(np.array([0]))


def test_empty_missing_and_foreign_files_are_named(tmp_path: Path) -> None:
    shard(tmp_path / "good", 2)
    (tmp_path / "empty").touch()
    assert f"{tmp_path / 'empty'}: the file is empty" in refusal(f"{tmp_path}/good,{tmp_path}/empty", tmp_path)
    assert "none*: no such file" in refusal(f"{tmp_path}/good,{tmp_path}/none*", tmp_path)
    assert "good is matched twice" in refusal(f"{tmp_path}/good,{tmp_path}/g*", tmp_path)
    assert "Is a directory" in refusal(tmp_path, tmp_path)
    (tmp_path / "text").write_text("one sentence per line\n" * 20)
    assert "not a TFRecord file" in refusal(tmp_path / "text", tmp_path)
    (tmp_path / "short").write_text("short")
    assert "truncated: record 0 at byte 0" in refusal(tmp_path / "short", tmp_path)
    write_by_tensorflow(tmp_path / "long", [b"short", bytes(1 << 18)])
    assert "record 1 at byte 21 has 262,144 bytes, too many for a pretraining example" in refusal(
        tmp_path / "long", tmp_path
    )
    with pytest.raises(InputError, match=r"^--eval_input_file .*no such file"):
        open_rows(tmp_path / "none", tmp_path, flag="--eval_input_file")


@pytest.mark.parametrize("name", ["it's.tfrecord", "part.tfrecord.gz"])
def test_a_compressed_file_is_refused_with_the_command_that_converts_it(tmp_path: Path, name: str) -> None:
    columns = fields(5)
    records = [tensorflows(padded(columns, row)) for row in range(5)]
    options = tf.io.TFRecordOptions(compression_type="GZIP")
    message = refusal(write_by_tensorflow(tmp_path / name, records, options), tmp_path)
    command = message.partition("convert it: ")[2]
    subprocess.run(command, shell=True, check=True)
    (made,) = set(tmp_path.iterdir()) - {tmp_path / name, tmp_path / "cache"}
    assert_rows(open_rows(made, tmp_path).take(np.arange(5)), columns, list(range(5)))


# -- what is wrong with an example --------------------------------------------------------------------------------


def one(tmp_path: Path, **changes) -> Path:
    """A file whose third example is changed."""
    columns = fields(4)
    examples = [padded(columns, row) for row in range(4)]
    examples[2] = {key: value for key, value in (examples[2] | changes).items() if value is not None}
    return write_by_tensorflow(tmp_path / "file", [tensorflows(example) for example in examples])


ONES = [1] * LENGTH


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"masked_lm_ids": None},
            "no feature masked_lm_ids; its features are input_ids, input_mask, masked_lm_positions",
        ),
        ({"next_sentence_labels": None}, "no feature next_sentence_labels"),
        ({"input_ids": [b"text"]}, "input_ids is of type bytes_list, expected int64_list"),
        ({"masked_lm_weights": [1, 1, 1, 1]}, "masked_lm_weights is of type int64_list, expected float_list"),
        ({"input_ids": [1] * 30}, "input_ids has 30 values, --max_seq_length is 24: give --max_seq_length=30"),
        ({"segment_ids": [1]}, "segment_ids has 1 values, --max_seq_length is 24"),
        ({"masked_lm_positions": [1] * 9}, "masked_lm_positions has 9 values, --max_predictions_per_seq is 4"),
        ({"next_sentence_labels": [1, 0]}, "next_sentence_labels has 2 values, expected 1"),
        ({"next_sentence_labels": [2]}, "next_sentence_labels is not 0 or 1"),
        ({"input_ids": [7, 500] * 12}, "id 500 in input_ids is outside the vocabulary of 500 entries"),
        ({"input_ids": [-1, 7] * 12}, "id -1 in input_ids"),
        ({"masked_lm_ids": [900] * 4, "masked_lm_weights": [1.0, 0.0, 0.0, 0.0]}, "id 900 in masked_lm_ids"),
        ({"masked_lm_weights": [0.5, 0.0, 0.0, 0.0]}, "masked_lm_weights are not all 0 or 1"),
        ({"input_mask": [0, *ONES[1:]]}, "input_mask is not ones followed by zeros"),
        ({"input_mask": [0] * LENGTH}, "input_mask is not ones followed by zeros"),
        ({"input_mask": [2] * LENGTH}, "input_mask is not ones followed by zeros"),
        ({"segment_ids": [0, 1] * 12, "input_mask": ONES}, "segment_ids are not zeros followed by ones"),
        ({"segment_ids": [2] * LENGTH, "input_mask": ONES}, "segment_ids are not zeros followed by ones"),
        (
            {"masked_lm_positions": [24, 0, 0, 0], "masked_lm_weights": [1.0, 0.0, 0.0, 0.0]},
            "a masked_lm_position is past the end of its tokens",
        ),
    ],
)
def test_an_example_that_does_not_fit_is_named(tmp_path: Path, changes: dict, message: str) -> None:
    rows = open_rows(one(tmp_path, **changes), tmp_path)
    rows.take(np.array([0, 1, 3]))
    with pytest.raises(InputError, match=r"^--input_file .*file: record 2 at byte \d+: ") as refused:
        rows.take(np.array([3, 2]))
    assert message in str(refused.value)


def test_what_padding_and_weight_0_hold_does_not_matter(tmp_path: Path) -> None:
    columns = fields(1)
    example = padded(columns, 0)
    example["input_mask"] = [1] * 6 + [0] * 18
    example["input_ids"] = [5] * 6 + [9999] * 18
    example["segment_ids"] = [0] * 4 + [1] * 2 + [7] * 18
    example["masked_lm_weights"] = [0.0, 1.0, 0.0, 1.0]
    example["masked_lm_positions"] = [99, 2, 99, 4]
    example["masked_lm_ids"] = [9999, 8, 9999, 9]
    example["extra"] = [b"whatever"]
    write_by_tensorflow(tmp_path / "file", [tensorflows(example)])
    found = open_rows(tmp_path / "file", tmp_path).take(np.array([0]))
    assert found["input_ids"][0].tolist() == [5] * 6
    assert found["sentence_a_tokens"].tolist() == [4]
    assert found["masked_lm_positions"][0].tolist() == [2, 4]
    assert found["masked_lm_ids"][0].tolist() == [8, 9]
    assert found["masked_lm_ids"][1].tolist() == [0, 2]


def test_the_flags_are_compared_when_the_files_are_opened(tmp_path: Path) -> None:
    shard(tmp_path / "file", 3)
    assert "24 values, --max_seq_length is 128" in refusal(tmp_path / "file", tmp_path, max_seq_length=128)
    message = refusal(tmp_path / "file", tmp_path, max_predictions_per_seq=20)
    assert "4 values, --max_predictions_per_seq is 20: give --max_predictions_per_seq=4" in message
    assert "outside the vocabulary of 3 entries" in refusal(tmp_path / "file", tmp_path, vocab_size=3)
    write_by_tensorflow(tmp_path / "other", [b"\x0a\x05no example"])
    assert "record 0 at byte 0: not a tf.train.Example" in refusal(f"{tmp_path}/file,{tmp_path}/other", tmp_path)
