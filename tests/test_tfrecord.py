"""TFRecord shards: TensorFlow reads what we write, and we read what TensorFlow writes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from mpi import ROOT
from tfrecords import (
    FLAGS,
    LENGTH,
    PREDICTIONS,
    VOCAB,
    assert_rows,
    fields,
    open_rows,
    padded,
    shard,
    tensorflows,
    write_by_tensorflow,
    write_records,
)  # fmt: skip

from bert.corpus.masking import Masking, example_keys, mask
from bert.corpus.tfrecord_format import masked_crc32c
from bert.corpus.tfrecord_writer import serialized
from ringbert.errors import InputError


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
    with (tmp_path / "in steps").open("wb") as file:
        for row in range(300):
            part = {
                key: column[row : row + 1]
                if not isinstance(column, tuple)
                else (column[0][column[1][row] : column[1][row + 1]], column[1][row : row + 2] - column[1][row])
                for key, column in columns.items()
            }
            file.writelines(serialized(part, **FLAGS))
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
from bert.corpus.tfrecord_writer import serialized
folder = Path(sys.argv[1])
lengths = dict(max_seq_length=24, max_predictions_per_seq=4)
rows = RecordRows(str(folder / "file"), folder / "cache", vocab_size=500, **lengths).take(np.arange(3))
(folder / "again").write_bytes(b"".join(serialized(rows, **lengths)))
print(sorted({"tensorflow", "keras", "mpi4py", "distributed"} & set(sys.modules)))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    printed = subprocess.check_output([sys.executable, "-c", program, str(tmp_path)], env=environment, text=True)
    assert printed == "[]\n"
    assert (tmp_path / "again").read_bytes() == (tmp_path / "file").read_bytes()


def test_examples_that_are_too_long_are_refused() -> None:
    with pytest.raises(InputError, match="input_ids of 24 values does not fit into --max_seq_length 20"):
        list(serialized(fields(9), max_seq_length=20, max_predictions_per_seq=4))
    message = "masked_lm_positions of 4 values does not fit into --max_predictions_per_seq 3"
    with pytest.raises(InputError, match=message):
        list(serialized(fields(30), max_seq_length=24, max_predictions_per_seq=3))


# -- the index ----------------------------------------------------------------------------------------------------


def test_nothing_is_written_beside_the_shards(tmp_path: Path) -> None:
    """So a read-only folder is enough. (Root may write anywhere, so the test compares the listings.)"""
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
        patched.setattr("bert.corpus.tfrecord_index._find_records", None)
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
