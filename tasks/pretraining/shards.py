"""Shards as rows for training: those of `bert-corpus build`, or Google's TFRecord files, converted
by tf.data."""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bert.corpus.masking import Masking
from bert.corpus.settings import ExampleSettings
from bert.corpus.shards import (
    TOKENIZER,
    find_shards,
    is_arrow,
    open_shards,
    record_batch,
    schema_of,
    write_manifest,
    write_shard,
)
from bert.heads import MASKED_WORDS
from distributed.order import BlockOrder
from distributed.rows import BatchRows
from ringbase.errors import InputError, one_line
from ringbase.files import build_folder, digest
from ringbase.ragged import Ragged, offsets_of
from tasks.pretraining.settings import ShardSettings
from tasks.pretraining.task import MaskedTask, head_of
from tasks.runs.environment import cache_folder, writing_cache
from tasks.runs.job import Job
from tasks.runs.start import Start
from tasks.runs.training import TrainingData

VERSION = 2  # bump when other rows are made of the same TFRecord files
RECORDS_AT_ONCE = 1024
PREDICTIONS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


def tokenizer_of_shards(patterns: str) -> Path | None:
    """The folder of the tokenizer that Arrow shards were made with; None for TFRecord files. On
    rank 0."""
    shards = find_shards(patterns)
    return next(iter(shards)).parent / TOKENIZER if is_arrow(shards) else None


def open_rows(
    settings: ShardSettings, job: Job, start: Start, source: tuple[str, str], seed: int
) -> tuple[MaskedTask, TrainingData]:
    """The task and the memory-mapped rows of the shards that a flag names (`source` is the flag and
    its value), on every rank. Raises InputError when they do not fit the flags or the model.

    Arrow shards are checked when rows are taken, so that the start does not wait for a large
    corpus. TFRecord files are converted once per machine.
    """
    flag, patterns = source
    files = find_shards(patterns, flag)
    if is_arrow(files):
        if start.tokenizer is None:
            raise InputError(
                "--eval_input_file has Arrow shards, but --input_file has none: give their"
                " --vocab_file"
            )
        if next(iter(files.values()))["tokenizer_digest"] != start.tokenizer.digest:
            raise InputError(
                f"{flag}: the shards were made with a vocabulary other than"
                f" {start.tokenizer.source}"
            )
    else:
        most = settings.masks({})["max_predictions_per_seq"]
        limits = Limits(settings.max_seq_length, most, start.bert_config.vocab_size)
        files = find_shards(
            str(job.world.on_each_machine(converted, list(files), limits, flag)), flag
        )
    shards, manifest = open_shards(files)
    built = manifest["settings"]
    masks, is_static = settings.masks(built), built["masking"] == "static"
    given = {"max_seq_length": settings.max_seq_length} | masks
    for name in ("max_seq_length", "max_predictions_per_seq")[: 1 + is_static]:
        if built[name] > given[name]:
            raise InputError(
                f"--{name} must be at least {built[name]}, that of the shards, got {given[name]}"
            )
    rows, key = BatchRows(shards), digest(manifest)
    job.world.agree({f"the shards {patterns}": key})
    drawn = "read from the shards" if is_static else "drawn again in every epoch"
    job.run.say(f"{patterns}: {len(rows):,} examples, masks {drawn}")
    masking = None if is_static else Masking(start.words, **masks)
    most_masked = masks["max_predictions_per_seq"]
    has_next, head = built["next_sentence"], head_of(start.bert_config)
    if has_next and head is MASKED_WORDS:
        raise InputError(
            f"{flag}: the shards have next sentences, which ModernBERT does not predict: build them"
            " with --nonext_sentence"
        )
    task = MaskedTask(settings.max_seq_length, masking, seed, most_masked, has_next, head)
    fixed = {f"--{name}": value for name, value in given.items()}
    return task, TrainingData(rows=rows, order=BlockOrder, key=key, settings=fixed)


# -- Google's TFRecord files -----------------------------------------------------------------------


class Limits(NamedTuple):
    """What the examples must fit: the flags and the model."""

    max_seq_length: int
    max_predictions_per_seq: int
    vocab_size: int


def converted(files: Iterable[Path], limits: Limits, flag: str) -> Path:
    """The folder in the cache of a corpus with the examples of these files; written if it is not
    there yet.

    Raises InputError: there is no room for it; a file is empty, compressed or damaged; an example
    does not fit.
    """
    facts = {str(file.resolve()): (file.stat().st_size, file.stat().st_mtime_ns) for file in files}
    folder = cache_folder() / "records" / digest(VERSION, facts, limits._asdict())

    def write(into: Path) -> None:
        settings = {"masking": "static", "next_sentence": True, **limits._asdict()}
        schema = schema_of(ExampleSettings(masking="static"), limits.vocab_size)
        batches = (
            record_batch(columns, schema)
            for file in files
            for columns in _examples_of(file, limits, flag)
        )
        entry = write_shard(into / "shard-00000-of-00001.arrow", batches, schema, settings)
        write_manifest(into, {"settings": settings, "tokenizer_digest": "", "shards": [entry]})

    if folder.is_dir():
        return folder
    with writing_cache():
        folder.parent.mkdir(parents=True, exist_ok=True)
        needed, free = (
            sum(size for size, _ in facts.values()),
            shutil.disk_usage(folder.parent).free,
        )
        if needed > free:
            raise InputError(
                f"{flag}: the rows of the TFRecord files need up to {needed:,} bytes in"
                f" {folder.parent}, where {free:,} are free: set RINGBERT_CACHE to a folder with"
                " more room"
            )
        build_folder(folder, write)
    return folder


def _examples_of(file: Path, limits: Limits, flag: str) -> Iterator[dict[str, np.ndarray | Ragged]]:
    """The examples of a file, as columns without padding."""
    where, number = f"{flag} {file}", 0
    tokens, predictions = ([size] for size in limits[:2])
    features = dict.fromkeys(
        ("input_ids", "input_mask", "segment_ids"), tf.io.FixedLenFeature(tokens, tf.int64)
    )
    features |= dict.fromkeys(PREDICTIONS, tf.io.FixedLenFeature(predictions, tf.int64))
    features["masked_lm_weights"] = tf.io.FixedLenFeature(predictions, tf.float32)
    features["next_sentence_labels"] = tf.io.FixedLenFeature([1], tf.int64)
    try:
        for records in tf.data.TFRecordDataset(str(file)).batch(RECORDS_AT_ONCE):
            parsed = {
                name: tensor.numpy()
                for name, tensor in tf.io.parse_example(records, features).items()
            }
            yield _without_padding(parsed, limits, where, number)
            number += len(records)
    except tf.errors.OpError as error:
        reason, sizes = (
            one_line(error).rpartition("}} ")[2],
            "--max_seq_length={} --max_predictions_per_seq={}",
        )
        expected = f"expected an intact file, not compressed, of {sizes.format(*limits)}"
        raise InputError(f"{where}: from record {number:,} on: {reason} ({expected})") from error
    if not number:
        raise InputError(f"{where}: the file is empty")


def _without_padding(
    parsed: dict[str, np.ndarray], limits: Limits, where: str, first: int
) -> dict[str, np.ndarray | Ragged]:
    ids, segments, labels = (
        parsed["input_ids"],
        parsed["segment_ids"],
        parsed["next_sentence_labels"],
    )
    positions, originals, weights = (parsed[name] for name in PREDICTIONS)
    lengths, used = np.count_nonzero(parsed["input_mask"], axis=1), weights == 1
    place = np.arange(limits.max_seq_length)
    inside = place < lengths[:, None]
    a_tokens = np.count_nonzero((segments == 0) & inside, axis=1)
    unknown = ((ids < 0) | (ids >= limits.vocab_size)) & inside
    unknown_originals = ((originals < 0) | (originals >= limits.vocab_size)) & used
    vocabulary = f"the vocabulary of {limits.vocab_size} entries (--vocab_file)"
    for problem, places in {
        "input_mask is not ones followed by zeros": (
            (parsed["input_mask"] != inside) | (lengths == 0)[:, None]
        ),
        "segment_ids are not zeros followed by ones": (
            (segments != (place >= a_tokens[:, None])) & inside
        ),
        "masked_lm_weights are not all 0 or 1": ~used & (weights != 0),
        "a masked_lm_position is past its tokens": (
            ((positions < 0) | (positions >= lengths[:, None])) & used
        ),
        "next_sentence_labels is not 0 or 1": ~np.isin(labels, (0, 1)),
        f"an id is not in {vocabulary}": np.hstack([unknown, unknown_originals]),
    }.items():
        if places.any():
            row = first + np.flatnonzero(places.any(axis=1))[0]
            raise InputError(f"{where}: record {row}: {problem}")
    offsets = offsets_of(used.sum(axis=1))
    return {
        "input_ids": (ids[inside], offsets_of(lengths)),
        "sentence_a_tokens": a_tokens,
        "masked_lm_positions": (positions[used], offsets),
        "masked_lm_ids": (originals[used], offsets),
        "is_random_next": labels[:, 0],
    }
