"""Google's TFRecord files of pretraining examples, converted by tf.data into a corpus in the cache."""

import hashlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert.corpus.settings import ExampleSettings
from bert.corpus.shards import record_batch, schema_of, write_manifest, write_shard
from ringbase.errors import InputError, one_line
from ringbase.files import build_folder, digest
from ringbase.ragged import Ragged, offsets_of
from tasks.environment import cache_folder

VERSION = 1  # bump when other rows are made of the same files
RECORDS_AT_ONCE = 1024
PREDICTIONS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


class Limits(NamedTuple):
    """What the examples must fit: the flags and the model."""

    max_seq_length: int
    max_predictions_per_seq: int
    vocab_size: int


def converted(files: Iterable[Path], limits: Limits, flag: str) -> Path:
    """The folder in the cache of a corpus with the examples of these files; written if it is not there yet.

    Raises InputError: there is no room for it; a file is empty, compressed or damaged; an example does not fit.
    """
    facts = {str(file.resolve()): (file.stat().st_size, file.stat().st_mtime_ns) for file in files}
    folder = cache_folder() / "records" / digest(VERSION, facts, limits._asdict())
    schema, content = schema_of(ExampleSettings(format="tfrecord"), limits.vocab_size), hashlib.sha256()

    def write(into: Path) -> None:
        settings = {"masking": "static", "next_sentence": True, **limits._asdict()}
        examples = (columns for file in files for columns in _examples_of(file, limits, flag, content))
        batches = (record_batch(columns, schema) for columns in examples)
        entry = write_shard(into / "shard-00000-of-00001.arrow", batches, schema, settings)
        stored = {"settings": settings, "tokenizer_digest": "", "records_digest": content.hexdigest()}
        write_manifest(into, stored | {"shards": [entry]})

    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        needed, free = sum(size for size, _ in facts.values()), shutil.disk_usage(folder.parent).free
        if needed > free:
            raise InputError(
                f"{flag}: the rows of the TFRecord files need up to {needed:,} bytes in {folder.parent}, where "
                f"{free:,} are free: set RINGBERT_CACHE to a folder with more room"
            )
        build_folder(folder, write)
    return folder


def _examples_of(file: Path, limits: Limits, flag: str, content: Any) -> Iterator[dict[str, np.ndarray | Ragged]]:
    """The examples of a file, as columns without padding; adds the bytes of its records to the hash `content`."""
    where, number = f"{flag} {file}", 0
    tokens, predictions = ([size] for size in limits[:2])
    features = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), tf.io.FixedLenFeature(tokens, tf.int64))
    features |= dict.fromkeys(PREDICTIONS, tf.io.FixedLenFeature(predictions, tf.int64))
    features["masked_lm_weights"] = tf.io.FixedLenFeature(predictions, tf.float32)
    features["next_sentence_labels"] = tf.io.FixedLenFeature([1], tf.int64)
    try:
        for records in tf.data.TFRecordDataset(str(file)).batch(RECORDS_AT_ONCE):
            content.update(b"".join(records.numpy()))
            parsed = {name: tensor.numpy() for name, tensor in tf.io.parse_example(records, features).items()}
            yield _without_padding(parsed, limits, where, number)
            number += len(records)
    except tf.errors.OpError as error:
        reason, sizes = one_line(error).rpartition("}} ")[2], "--max_seq_length={} --max_predictions_per_seq={}"
        expected = f"expected an intact file, not compressed, of {sizes.format(*limits)}"
        raise InputError(f"{where}: from record {number:,} on: {reason} ({expected})") from error
    if not number:
        raise InputError(f"{where}: the file is empty")


def _without_padding(
    parsed: dict[str, np.ndarray], limits: Limits, where: str, first: int
) -> dict[str, np.ndarray | Ragged]:
    ids, segments, labels = parsed["input_ids"], parsed["segment_ids"], parsed["next_sentence_labels"]
    positions, originals, weights = (parsed[name] for name in PREDICTIONS)
    lengths, used = np.count_nonzero(parsed["input_mask"], axis=1), weights == 1
    place = np.arange(limits.max_seq_length)
    inside = place < lengths[:, None]
    a_tokens = np.count_nonzero((segments == 0) & inside, axis=1)

    unknown_ids, unknown_originals = ((x < 0) | (x >= limits.vocab_size) for x in (ids, originals))
    vocabulary = f"is not in the vocabulary of {limits.vocab_size} entries (--vocab_file)"
    for is_wrong, problem in (
        ((parsed["input_mask"] != inside) | (lengths == 0)[:, None], "input_mask is not ones followed by zeros"),
        ((segments != (place >= a_tokens[:, None])) & inside, "segment_ids are not zeros followed by ones"),
        (~used & (weights != 0), "masked_lm_weights are not all 0 or 1"),
        (((positions < 0) | (positions >= lengths[:, None])) & used, "a masked_lm_position is past its tokens"),
        (~np.isin(labels, (0, 1)), "next_sentence_labels is not 0 or 1"),
        (unknown_ids & inside, f"one of the input_ids {vocabulary}"),
        (unknown_originals & used, f"one of the masked_lm_ids {vocabulary}"),
    ):
        if is_wrong.any():
            row = first + np.flatnonzero(is_wrong.any(axis=1))[0]
            raise InputError(f"{where}: record {row}: {problem}")
    offsets = offsets_of(used.sum(axis=1))
    return {
        "input_ids": (ids[inside], offsets_of(lengths)),
        "sentence_a_tokens": a_tokens,
        "masked_lm_positions": (positions[used], offsets),
        "masked_lm_ids": (originals[used], offsets),
        "is_random_next": labels[:, 0],
    }
