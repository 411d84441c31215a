"""TFRecord files: we read what TensorFlow writes, and damage is named."""

import gzip
import os
import shutil
from functools import partial
from types import SimpleNamespace

import pytest
from harness import corpora
from harness.corpora import padded, write_records
from harness.refusals import refused

from bert.corpus.shards import find_shards, read_manifest
from tasks.pretraining.shards import Limits, converted

SIZES = {"max_seq_length": 48, "max_predictions_per_seq": 6}
VOCAB = 5000
pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Rows of an Arrow corpus with masks."""
    folder = tmp_path_factory.mktemp("corpus")
    corpora.write(folder, corpora.make_texts(10))
    options = {"masking": "static", "dupe_factor": 2, "num_shards": 2}
    examples, _ = corpora.build(folder, "arrow", **options, **SIZES)
    return examples[:70]


def read(patterns, flag="--input_file", **limits):
    """The rows that bert-pretraining trains on."""
    limits = SIZES | {"vocab_size": VOCAB} | limits
    folder = converted(find_shards(str(patterns), flag), Limits(**limits), flag)
    return corpora.open_table(str(folder), flag)[0].to_pylist()


def test_we_read_what_tensorflow_writes_and_write_nothing_beside_it(tmp_path, rows):
    """What padding and predictions of weight 0 hold does not matter."""
    data = tmp_path / "data"
    data.mkdir()
    for number, part in enumerate((rows[:40], rows[40:41], rows[41:])):
        write_records(data / f"part-{number}.tfrecord", map(padded, part))
    data.chmod(0o555)
    assert read(f"{data}/part-[01].tfrecord, {data}/part-2.*") == rows
    assert sorted(os.listdir(data)) == [f"part-{number}.tfrecord" for number in range(3)]
    example = padded(rows[0]) | {
        "input_mask": [1] * 6 + [0] * 42,
        "input_ids": [5] * 6 + [9999] * 42,
        "segment_ids": [0] * 4 + [1] * 2 + [7] * 42,
        "masked_lm_weights": [0.0, 1.0, 0.0] * 2,
        "masked_lm_positions": [99, 2, 99, 99, 4, 99],
        "masked_lm_ids": [9999, 8, 9999, 9999, 9, 9999],
        "extra": [b"whatever"],
    }
    write_records(tmp_path / "file", [example])
    (row,) = read(tmp_path / "file")
    assert (row["input_ids"], row["sentence_a_tokens"]) == ([5] * 6, 4)
    assert (row["masked_lm_positions"], row["masked_lm_ids"]) == ([2, 4], [8, 9])


def test_the_digest_tells_contents_apart_and_not_copies_and_a_changed_file_is_read_anew(
    tmp_path, rows, cache
):
    (tmp_path / "copy").write_bytes(write_records(tmp_path / "file", map(padded, rows)))
    assert read(tmp_path / "file") == read(tmp_path / "copy") == rows
    changed = [*rows[:3], rows[3] | {"is_random_next": 1 - rows[3]["is_random_next"]}, *rows[4:]]
    write_records(tmp_path / "file", map(padded, changed))
    assert read(tmp_path / "file") == changed
    digests = [read_manifest(folder)["digest"] for folder in (cache / "records").iterdir()]
    assert (len(digests), len(set(digests))) == (3, 2)


def test_damaged_empty_missing_foreign_and_compressed_files_are_named(tmp_path, rows):
    data = write_records(tmp_path / "good", map(padded, rows[:2]))
    files = {
        "flipped": data[:60] + bytes([data[60] ^ 1]) + data[61:],
        "cut": data[:-5],
        "empty": b"",
        "text": b"one sentence per line\n" * 20,
        "a.tfrecord.gz": gzip.compress(data),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    write_records(tmp_path / "other", [b"\x0a\x05no example"])
    for name in (*files, "other", "none*"):
        refused(partial(read, f"{tmp_path}/good,{tmp_path}/{name}"), "--input_file", name)
    refused(lambda: read(tmp_path, "--eval_input_file"), "--eval_input_file", tmp_path)


def test_a_cache_without_room_is_named_before_it_is_filled(tmp_path, rows, cache, monkeypatch):
    write_records(tmp_path / "file", map(padded, rows))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    refused(lambda: read(tmp_path / "file"), "--input_file", cache, 100, "RINGBERT_CACHE")


@pytest.mark.parametrize(
    ("named", "changes", "limits"),
    [
        ("masked_lm_ids", {"masked_lm_ids": None}, {}),
        ("masked_lm_weights", {"masked_lm_weights": [1] * 6}, {}),
        (VOCAB, {"input_ids": [7, VOCAB] * 24}, {}),
        ("--vocab_file", {"input_ids": [-1, 7] * 24}, {}),
        ("next_sentence_labels", {"next_sentence_labels": [2]}, {}),
        ("masked_lm_weights", {"masked_lm_weights": [0.5] + [0.0] * 5}, {}),
        ("input_mask", {"input_mask": [0] + [1] * 47}, {}),
        ("segment_ids", {"segment_ids": [0, 1] * 24, "input_mask": [1] * 48}, {}),
        (
            "position",
            {"masked_lm_positions": [48] + [0] * 5, "masked_lm_weights": [1.0] + [0.0] * 5},
            {},
        ),
        ("--max_seq_length=128", {}, {"max_seq_length": 128}),
        ("--max_predictions_per_seq=20", {}, {"max_predictions_per_seq": 20}),
        ("--vocab_file", {}, {"vocab_size": 3}),
    ],
)
def test_an_example_that_does_not_fit_is_named(tmp_path, rows, named, changes, limits):
    example = padded(rows[2]) | changes
    kept = {key: value for key, value in example.items() if value is not None}
    write_records(tmp_path / "file", [kept])
    refused(lambda: read(tmp_path / "file", **limits), "--input_file", tmp_path / "file", named)
