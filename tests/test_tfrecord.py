"""TFRecord shards: TensorFlow reads what we write, we read what TensorFlow writes, and damage is named."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from mpi import ROOT

from bert.corpus.masking import Masking, example_keys, mask
from bert.corpus.tfrecord import RecordRows, masked_crc32c
from bert.corpus.tfrecord_writer import RecordWriter, write_records
from ringbert.errors import InputError

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


# -- TensorFlow as referee ----------------------------------------------------------------------------------------


def test_tensorflow_reads_what_we_write(tmp_path: Path) -> None:
    columns = fields(600)  # more than are serialized at once
    write_records(tmp_path / "ours", columns, **FLAGS)
    lengths = {"input_ids": LENGTH, "input_mask": LENGTH, "segment_ids": LENGTH}
    lengths |= {"masked_lm_positions": PREDICTIONS, "masked_lm_ids": PREDICTIONS, "next_sentence_labels": 1}
    spec = {key: tf.io.FixedLenFeature([length], tf.int64) for key, length in lengths.items()}
    spec["masked_lm_weights"] = tf.io.FixedLenFeature([PREDICTIONS], tf.float32)
    read = [tf.io.parse_single_example(record, spec) for record in tf.data.TFRecordDataset(str(tmp_path / "ours"))]
    assert len(read) == 600
    for row, example in enumerate(read):
        assert {key: values.numpy().tolist() for key, values in example.items()} == padded(columns, row)


def test_the_bytes_are_those_of_tensorflow(tmp_path: Path) -> None:
    columns = shard(tmp_path / "theirs", 300)
    write_records(tmp_path / "ours", columns, **FLAGS)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    with RecordWriter(tmp_path / "in steps", **FLAGS) as writer:
        for row in range(300):
            part = {
                key: column[row : row + 1]
                if not isinstance(column, tuple)
                else (column[0][column[1][row] : column[1][row + 1]], column[1][row : row + 2] - column[1][row])
                for key, column in columns.items()
            }
            writer.write(part)
        assert writer.num_records == 300
    assert (tmp_path / "in steps").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_the_bytes_are_those_of_tensorflow_for_numbers_of_any_size(tmp_path: Path) -> None:
    """Ids of one, two and three bytes, positions of two, and lists of which no, some and all values are there."""
    lengths = np.array([300, 5, 129, 1])
    ends, predicted = np.concatenate([[0], np.cumsum(lengths)]), np.array([0, 40, 42, 43, 43])
    columns = {
        "input_ids": (np.random.default_rng(1).integers(0, 1 << 21, ends[-1]).astype(np.int32), ends),
        "sentence_a_tokens": np.array([300, 2, 128, 1], np.int32),
        "masked_lm_positions": (np.arange(200, 243).astype(np.int32), predicted),
        "masked_lm_ids": (np.array([0, 127, 128, 16383, 16384, 2097151, *range(37)], np.int32), predicted),
        "is_random_next": np.array([0, 1, 1, 0], np.int8),
    }
    lengths = {"max_seq_length": 300, "max_predictions_per_seq": 40}
    write_records(tmp_path / "ours", columns, **lengths)
    records = [tensorflows(padded(columns, row, 300, 40)) for row in range(4)]
    write_by_tensorflow(tmp_path / "theirs", records)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_we_read_what_tensorflow_writes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    shards = [shard(data / f"part-{number}.tfrecord", count, number) for number, count in enumerate((40, 1, 25))]
    rows = open_rows(f"{data}/part-[01].tfrecord, {data}/part-2.*", tmp_path)
    assert [file.name for file in rows.files] == [f"part-{number}.tfrecord" for number in range(3)]
    assert len(rows) == 66
    assert_rows(rows.take(np.arange(40)), shards[0], list(range(40)))
    assert_rows(rows.take(np.arange(41, 66)), shards[2], list(range(25)))
    chosen = np.array([65, 3, 40, 3, 0, 41, 39])
    found = rows.take(chosen)
    for place, index in enumerate(chosen):
        columns, row = (
            (shards[0], index) if index < 40 else (shards[1], 0) if index == 40 else (shards[2], index - 41)
        )
        alone = rows.take(chosen[place : place + 1])
        assert_rows(alone, columns, [row])
        at = found["input_ids"][1]
        np.testing.assert_array_equal(found["input_ids"][0][at[place] : at[place + 1]], alone["input_ids"][0])
    assert_rows(rows.take(np.array([], np.int64)), shards[0], [])
    for outside in ([66], [-1]):
        with pytest.raises(IndexError):
            rows.take(np.array(outside))
    assert sorted(os.listdir(data)) == [f"part-{number}.tfrecord" for number in range(3)]


def test_a_masked_corpus_comes_back_whole(tmp_path: Path) -> None:
    columns = fields(50)
    values, offsets = columns["input_ids"]
    masking = Masking(VOCAB, 3, (1, 2), max_predictions_per_seq=PREDICTIONS)
    masked = mask(values, offsets, example_keys(0, np.arange(50)), masking)
    columns["input_ids"] = masked.values, offsets
    columns["masked_lm_positions"] = masked.positions, masked.position_offsets
    columns["masked_lm_ids"] = masked.original_ids, masked.position_offsets
    write_records(tmp_path / "file", columns | {"is_random_next": None}, **FLAGS)
    found = open_rows(tmp_path / "file", tmp_path).take(np.arange(50))
    assert found["is_random_next"].tolist() == [0] * 50
    positions, at = found["masked_lm_positions"]
    restored, starts = found["input_ids"]
    assert np.any(restored != values)
    restored[np.repeat(starts[:-1], np.diff(at)) + positions] = found["masked_lm_ids"][0]
    np.testing.assert_array_equal(restored, values)


def test_crc32c_of_the_published_vectors() -> None:
    # RFC 3720 B.4 and the check value of CRC-32/ISCSI; masked as record_writer.h says
    strings = {
        b"": 0, b"123456789": 0xE3069283, bytes(32): 0x8A9136AA, b"\xff" * 32: 0x62A8AB43,
        bytes(range(32)): 0x46DD794E, bytes(range(31, -1, -1)): 0x113FDB5C, b"a": 0xC1D04330,
    }  # fmt: skip
    expected = [((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32 for crc in strings.values()]
    assert [masked_crc32c(string) for string in strings] == expected


def test_neither_reading_nor_writing_imports_tensorflow(tmp_path: Path) -> None:
    shard(tmp_path / "file", 3)
    program = """
import sys
from pathlib import Path
import numpy as np
from bert.corpus.tfrecord import RecordRows
from bert.corpus.tfrecord_writer import write_records
folder = Path(sys.argv[1])
lengths = dict(max_seq_length=24, max_predictions_per_seq=4)
rows = RecordRows(str(folder / "file"), folder / "cache", vocab_size=500, **lengths).take(np.arange(3))
write_records(folder / "again", rows, **lengths)
print(sorted({"tensorflow", "keras", "mpi4py", "distributed"} & set(sys.modules)))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    told = subprocess.check_output([sys.executable, "-c", program, str(tmp_path)], env=environment, text=True)
    assert told == "[]\n"
    assert (tmp_path / "again").read_bytes() == (tmp_path / "file").read_bytes()


# -- the index ----------------------------------------------------------------------------------------------------


def test_nothing_is_written_beside_the_shards(tmp_path: Path) -> None:
    """So a folder that may only be read does (root writes everywhere: it is the listing that tells)."""
    folder = tmp_path / "shards"
    folder.mkdir()
    shard(folder / "file", 5)
    folder.chmod(0o555)
    before = sorted(path.name for path in folder.iterdir())
    rows = open_rows(folder / "file", tmp_path)
    assert len(rows.take(np.arange(5))["is_random_next"]) == 5
    assert sorted(path.name for path in folder.iterdir()) == before
    assert any((tmp_path / "cache").iterdir())
    folder.chmod(0o755)


def test_the_index_is_made_once_and_again_when_the_file_changes(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "file"
    shard(file, 10)
    first = open_rows(file, tmp_path)
    names = os.listdir(tmp_path / "cache")
    assert len(names) == 1
    with monkeypatch.context() as patched:
        patched.setattr("bert.corpus.tfrecord._find_records", None)
        again = open_rows(file, tmp_path)
    assert (len(again), again.digest) == (10, first.digest)
    columns = shard(file, 12, seed=1)
    changed = open_rows(file, tmp_path)
    assert len(changed) == 12
    assert changed.digest != first.digest
    assert_rows(changed.take(np.arange(12)), columns, list(range(12)))
    assert len(os.listdir(tmp_path / "cache")) == 2


def test_the_digest_tells_contents_apart_and_not_copies(tmp_path: Path) -> None:
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
    columns = shard(tmp_path / "a" / "file", 10)
    shutil.copy(tmp_path / "a" / "file", tmp_path / "b" / "file")
    columns["masked_lm_ids"][0][-1] ^= 1
    write_records(tmp_path / "c" / "file", columns, **FLAGS)
    assert (tmp_path / "c" / "file").stat().st_size == (tmp_path / "a" / "file").stat().st_size
    digests = [open_rows(tmp_path / folder / "file", tmp_path).digest for folder in ("a", "b", "c")]
    assert digests[0] == digests[1] != digests[2]
    (tmp_path / "b" / "other").write_bytes((tmp_path / "c" / "file").read_bytes())
    both = [
        open_rows(f"{tmp_path}/b/file,{tmp_path}/b/other", tmp_path).digest,
        open_rows(f"{tmp_path}/b/other,{tmp_path}/b/file", tmp_path).digest,
    ]
    assert both[0] != both[1]


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


def refusal(patterns: object, tmp_path: Path, **settings) -> str:
    with pytest.raises(InputError) as refused:
        open_rows(patterns, tmp_path, **settings)
    message = str(refused.value)
    assert message.startswith("--input_file ")
    assert "\n" not in message
    return message


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
    expected = f"truncated: record 9 at byte {starts[9]} ends at byte {starts[10]}, the file at {size}"
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
    assert "no TFRecord file" in refusal(tmp_path / "text", tmp_path)
    (tmp_path / "short").write_text("short")
    assert "truncated: record 0 at byte 0" in refusal(tmp_path / "short", tmp_path)
    write_by_tensorflow(tmp_path / "long", [b"short", bytes(1 << 18)])
    assert "record 1 at byte 21 of 262,144 bytes is no pretraining example" in refusal(tmp_path / "long", tmp_path)
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
    ("changes", "told"),
    [
        ({"masked_lm_ids": None}, "it has no masked_lm_ids; it holds input_ids, input_mask, masked_lm_positions"),
        ({"next_sentence_labels": None}, "it has no next_sentence_labels"),
        ({"input_ids": [b"text"]}, "input_ids is a bytes_list, not a int64_list"),
        ({"masked_lm_weights": [1, 1, 1, 1]}, "masked_lm_weights is a int64_list, not a float_list"),
        ({"input_ids": [1] * 30}, "input_ids holds 30 values, --max_seq_length is 24: give --max_seq_length=30"),
        ({"segment_ids": [1]}, "segment_ids holds 1 values, --max_seq_length is 24"),
        ({"masked_lm_positions": [1] * 9}, "masked_lm_positions holds 9 values, --max_predictions_per_seq is 4"),
        ({"next_sentence_labels": [1, 0]}, "next_sentence_labels holds 2 values, 1 was expected"),
        ({"next_sentence_labels": [2]}, "next_sentence_labels is not 0 or 1"),
        ({"input_ids": [7, 500] * 12}, "id 500 in input_ids is beyond the vocabulary of 500 entries"),
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
            "a masked_lm_position is beyond its tokens",
        ),
    ],
)
def test_an_example_that_does_not_fit_is_named(tmp_path: Path, changes: dict, told: str) -> None:
    rows = open_rows(one(tmp_path, **changes), tmp_path)
    rows.take(np.array([0, 1, 3]))
    with pytest.raises(InputError, match=r"^--input_file .*file: record 2 at byte \d+: ") as refused:
        rows.take(np.array([3, 2]))
    assert told in str(refused.value)


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
    assert "beyond the vocabulary of 3 entries" in refusal(tmp_path / "file", tmp_path, vocab_size=3)
    write_by_tensorflow(tmp_path / "other", [b"\x0a\x05no example"])
    assert "record 0 at byte 0: no tf.train.Example" in refusal(f"{tmp_path}/file,{tmp_path}/other", tmp_path)


# -- writing ------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("what was there")
    with pytest.raises(InputError, match="input_ids of 24 values do not fit into --max_seq_length 20"):
        write_records(tmp_path / "file", fields(9), max_seq_length=20, max_predictions_per_seq=4)
    with pytest.raises(
        InputError, match="masked_lm_positions of 4 values do not fit into --max_predictions_per_seq 3"
    ):
        write_records(tmp_path / "file", fields(30), max_seq_length=24, max_predictions_per_seq=3)
    with contextlib.suppress(KeyboardInterrupt), RecordWriter(tmp_path / "file", **FLAGS) as writer:
        writer.write(fields(9))
        raise KeyboardInterrupt
    assert (tmp_path / "file").read_text() == "what was there"
    assert os.listdir(tmp_path) == ["file"]


def test_a_killed_writer_leaves_no_shard_and_the_next_removes_its_remains(tmp_path: Path) -> None:
    shard(tmp_path / "source", 9)
    program = """
import os, signal, sys
from pathlib import Path
import numpy as np
from bert.corpus.tfrecord import RecordRows
from bert.corpus.tfrecord_writer import RecordWriter
folder = Path(sys.argv[1])
lengths = dict(max_seq_length=24, max_predictions_per_seq=4)
rows = RecordRows(str(folder / "source"), folder / "cache", vocab_size=500, **lengths)
with RecordWriter(folder / "shards" / "part[1]", **lengths) as writer:
    writer.write(rows.take(np.arange(9)))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    shards = tmp_path / "shards"
    shards.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=environment)
    assert killed.returncode == -signal.SIGKILL
    assert len(os.listdir(shards)) == 1, "the case is about what is left over"
    assert not (shards / "part[1]").exists()
    write_records(shards / "part[1]", fields(3), **FLAGS)
    assert os.listdir(shards) == ["part[1]"]
