"""Google's TFRecord files of pretraining examples, converted by tf.data into a corpus in the cache."""

import hashlib
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from bert.corpus.columns import column_of, schema_of
from bert.corpus.manifest import write_manifest
from bert.corpus.settings import ExampleSettings
from bert.corpus.shards import write_arrow
from ringbase.errors import InputError
from ringbase.files import build_folder
from ringbase.hashing import digest, sha256
from ringbase.ragged import Ragged, offsets_of
from tasks.environment import cache_folder

VERSION = 1  # bump when other rows are made of the same files
RECORDS_AT_ONCE = 1024
GZIP_MAGIC = b"\x1f\x8b\x08"  # as the start of a record's length it would mean 500 kB or more


@dataclass(frozen=True)
class Limits:
    """What the examples must fit: the flags and the model."""

    max_seq_length: int
    max_predictions_per_seq: int
    vocab_size: int

    @property
    def lengths(self) -> dict[str, tuple[int, str]]:
        """The features of an example: how many values each has, and the flag that says so."""
        tokens = dict.fromkeys(
            ("input_ids", "input_mask", "segment_ids"), (self.max_seq_length, "--max_seq_length")
        )
        names = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
        predictions = dict.fromkeys(names, (self.max_predictions_per_seq, "--max_predictions_per_seq"))
        return tokens | predictions | {"next_sentence_labels": (1, "")}


def converted(files: Iterable[Path], limits: Limits, flag: str) -> Path:
    """The folder in the cache of a corpus with the examples of these files; written if it is not there yet.

    Raises InputError: there is no room for it; a file is empty, compressed or damaged; an example does not fit.
    """
    facts = {str(file.resolve()): (file.stat().st_size, file.stat().st_mtime_ns) for file in files}
    folder = cache_folder() / "records" / digest(VERSION, facts, asdict(limits))
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        needed, free = sum(size for size, _ in facts.values()), shutil.disk_usage(folder.parent).free
        if needed > free:
            raise InputError(
                f"{flag}: the rows of the TFRecord files need up to {needed:,} bytes in {folder.parent}, where "
                f"{free:,} are free: set RINGBERT_CACHE to a folder with more room"
            )
        build_folder(folder, lambda into: _write(into, list(files), limits, flag))
    return folder


def _write(folder: Path, files: list[Path], limits: Limits, flag: str) -> None:
    settings = {"masking": "static", "next_sentence": True, **asdict(limits)}
    schema = schema_of(ExampleSettings(format="tfrecord"), limits.vocab_size)
    path, content = folder / "shard-00000-of-00001.arrow", hashlib.sha256()

    def batches() -> Iterator[pa.RecordBatch]:
        for file in files:
            for columns in _examples_of(file, limits, flag, content):
                arrays = [column_of(columns[field.name], field.type) for field in schema]
                yield pa.record_batch(arrays, schema=schema)

    with path.open("wb") as file:
        sizes = write_arrow(file, batches(), schema, settings)
    shard = {"file": path.name, "examples": sum(sizes), "bytes": path.stat().st_size, "sha256": sha256(path)}
    facts = {"settings": settings, "tokenizer_digest": "", "records_digest": content.hexdigest()}
    write_manifest(folder, facts | {"shards": [shard | {"batches": sizes}]})


def _examples_of(file: Path, limits: Limits, flag: str, content: Any) -> Iterator[dict[str, np.ndarray | Ragged]]:
    """The examples of a file, as columns without padding; adds the bytes of its records to the hash `content`."""
    where, number = f"{flag} {file}", 0
    with file.open("rb") as opened:
        if opened.read(len(GZIP_MAGIC)) == GZIP_MAGIC:
            raise InputError(f"{where}: the file is compressed, unpack it first: gzip -dc {file} > FILE")
    kinds = {"masked_lm_weights": tf.float32}
    features = {key: tf.io.RaggedFeature(kinds.get(key, tf.int64)) for key in limits.lengths}
    try:
        for records in tf.data.TFRecordDataset(str(file)).batch(RECORDS_AT_ONCE):
            content.update(b"".join(records.numpy()))
            yield _without_padding(tf.io.parse_example(records, features), limits, f"{where}: record ", number)
            number += len(records)
    except tf.errors.OpError as error:
        raise InputError(f"{where}: after record {number}: {' '.join(error.message.split())}") from error
    if not number:
        raise InputError(f"{where}: the file is empty")


def _without_padding(parsed: dict, limits: Limits, where: str, first: int) -> dict[str, np.ndarray | Ragged]:
    def check(is_wrong: np.ndarray, problem: str) -> None:
        if is_wrong.any():
            row = np.flatnonzero(is_wrong.reshape(len(is_wrong), -1).any(axis=1))[0]
            raise InputError(f"{where}{first + row}: {problem}")

    values = {}
    for key, (length, name) in limits.lengths.items():
        lengths = parsed[key].row_lengths().numpy()
        other = lengths[lengths != length]
        advice = f"{name} is {length}: give {name}={other[0]}" if name and len(other) else f"expected {length}"
        check(lengths != length, f"{key} has {other[:1].sum()} values, {advice}")
        values[key] = parsed[key].flat_values.numpy().reshape(-1, length)
    ids, segments, weights = (values[key] for key in ("input_ids", "segment_ids", "masked_lm_weights"))
    positions, originals, labels = (
        values[key] for key in ("masked_lm_positions", "masked_lm_ids", "next_sentence_labels")
    )
    lengths = np.count_nonzero(values["input_mask"], axis=1)
    place = np.arange(limits.max_seq_length)
    inside = place < lengths[:, None]
    is_wrong = (values["input_mask"] != inside) | (lengths == 0)[:, None]
    check(is_wrong, "input_mask is not ones followed by zeros")
    a_tokens = np.count_nonzero((segments == 0) & inside, axis=1)
    is_second = (place >= a_tokens[:, None]) & inside
    check((segments != is_second) & inside, "segment_ids are not zeros followed by ones")
    check((weights != 0) & (weights != 1), "masked_lm_weights are not all 0 or 1")
    used = weights == 1
    is_wrong = ((positions < 0) | (positions >= lengths[:, None])) & used
    check(is_wrong, "a masked_lm_position is past the end of its tokens")
    for key, is_used in (("input_ids", inside), ("masked_lm_ids", used)):
        is_wrong = ((values[key] < 0) | (values[key] >= limits.vocab_size)) & is_used
        found = values[key][is_wrong][:1].sum()
        check(
            is_wrong,
            f"id {found} in {key} is outside the vocabulary of {limits.vocab_size} entries (--vocab_file)",
        )
    check((labels != 0) & (labels != 1), "next_sentence_labels is not 0 or 1")
    offsets = offsets_of(used.sum(axis=1))
    return {
        "input_ids": (ids[inside], offsets_of(lengths)),
        "sentence_a_tokens": a_tokens,
        "masked_lm_positions": (positions[used], offsets),
        "masked_lm_ids": (originals[used], offsets),
        "is_random_next": labels[:, 0],
    }
