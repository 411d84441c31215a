"""Shards as rows for training: those of `bert-corpus build`, or Google's TFRecord files, converted
by tf.data."""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import tensorflow as tf

from bert.corpus.masking import Masking
from bert.corpus.settings import GOOGLES_MASKS, ExampleSettings, given_masks
from bert.corpus.shards import (
    Manifest,
    Shard,
    differences,
    find_shards,
    how_to_build_again,
    is_arrow,
    open_shards,
    record_batch,
    schema_of,
    write_manifest,
    write_shard,
)
from bert.heads import MASKED_WORDS
from distributed.rows import BatchRows
from ringbase.errors import InputError, one_line
from ringbase.files import build_folder, cache_folder, digest
from ringbase.ragged import Ragged, offsets_of
from tasks.pretraining.settings import PretrainingConfig, ShardSettings, highest
from tasks.pretraining.stream import (
    PretrainingStream,
    last_share,
    names_of,
    refuse_twice,
    stream_of,
)
from tasks.pretraining.task import MaskedTask, head_of
from tasks.runs.environment import writing_cache
from tasks.runs.execute.job import Job
from tasks.runs.execute.trainer import TrainingData
from tasks.runs.naming import Named
from tasks.runs.resolve.mixture import Corpus
from tasks.runs.resolve.spec import Start

VERSION = 2  # bump when other rows are made of the same TFRecord files
RECORDS_AT_ONCE = 1024
Columns = dict[str, np.ndarray | Ragged]
PREDICTIONS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


class Source(NamedTuple):
    """What is read: the flag that names it, its corpora, and whether a training reads it."""

    flag: str
    named: Sequence[Named]
    trains: bool

    def __str__(self) -> str:
        return ", ".join(each.patterns for each in self.named)


class Opened(NamedTuple):
    """The shards of one corpus."""

    files: Mapping[Path, Manifest]
    shards: Sequence[Shard]
    manifest: Manifest


def open_rows(
    config: PretrainingConfig, job: Job, start: Start, source: Source, seed: int
) -> tuple[MaskedTask, TrainingData]:
    """The task and the memory-mapped rows of the shards of a source, on every rank. Raises
    InputError when they do not fit each other, the flags or the model.

    Arrow shards are checked when rows are taken, so that the start does not wait for a large
    corpus. TFRecord files are converted once per machine.
    """
    flag, named = source.flag, source.named
    settings = config.shards
    opened = [open_corpus(each.patterns, settings, job, start, flag) for each in named]
    refuse_mixture(source, opened, settings)
    built = opened[0].manifest["settings"]
    is_static = built["masking"] == "static"
    head = head_of(start.bert_config)
    masks = settings.masks(built, is_modern=head is MASKED_WORDS)
    given = {"max_seq_length": settings.max_seq_length, **masks}
    for name in ("max_seq_length", "max_predictions_per_seq")[: 1 + is_static]:
        if built[name] > given[name]:
            raise InputError(
                f"--{name} must be at least {built[name]}, that of the shards, got {given[name]}"
            )
    rows = BatchRows([shard for corpus in opened for shard in corpus.shards])
    key = digest(*(corpus.manifest for corpus in opened))
    job.world.agree({f"the shards {source}": key})
    drawn = "read from the shards" if is_static else "drawn again in every epoch"
    job.run.say(f"{source}: {len(rows):,} examples, masks {drawn}")
    if is_static:
        say_or_refuse_masks(settings, job, flag)
    has_next = built["next_sentence"]
    if has_next and head is MASKED_WORDS:
        raise InputError(
            f"{flag}: the shards have next sentences, which ModernBERT does not predict: build them"
            " with --nonext_sentence"
        )
    stream = PretrainingStream()
    if source.trains:
        names = names_of(named, [corpus.files for corpus in opened])
        sizes = [sum(shard.num_rows for shard in corpus.shards) for corpus in opened]
        stream = stream_of(config, [*map(Corpus, names, sizes)])
        job.world.agree({"what changes along the training": stream.fixed()})
        if note := limit_of_masks(masks, settings.max_seq_length):
            job.run.say(note)
    masking = None
    if not is_static:
        # of held-out examples always the last share, so that their scores can be compared
        share = last_share(masks["masked_lm_prob"])
        masking = Masking(start.words, **masks | {"masked_lm_prob": share})
    task = MaskedTask(
        settings.max_seq_length,
        masking,
        seed,
        masks["max_predictions_per_seq"],
        has_next,
        head,
        stream.masked_lm_prob,
        stream.names,
    )
    return task, TrainingData(rows, key, given, stream=stream)


def open_corpus(
    patterns: str, settings: ShardSettings, job: Job, start: Start, flag: str
) -> Opened:
    """The shards of one corpus. Raises InputError: they were made with another vocabulary than the
    model's."""
    files = find_shards(patterns, flag)
    if is_arrow(files):
        if start.tokenizer is None:
            raise InputError(
                "--eval_input_file has Arrow shards, but --input_file has none: give their"
                " --vocab_file"
            )
        if next(iter(files.values()))["tokenizer_digest"] != start.tokenizer.digest:
            raise InputError(
                f"{flag} {patterns}: the shards were made with a vocabulary other than"
                f" {start.tokenizer.source}: build them again with it (bert-corpus build with the"
                " same --model, --vocab_file or --spm_model_file)"
            )
    else:
        most = settings.masks({})["max_predictions_per_seq"]
        limits = Limits(settings.max_seq_length, most, start.bert_config.vocab_size)
        folder = job.world.on_each_machine(converted, [*files], limits, flag)
        return Opened(files, *open_shards(find_shards(str(folder), flag)))
    return Opened(files, *open_shards(files))


def refuse_mixture(source: Source, opened: Sequence[Opened], settings: ShardSettings) -> None:
    """Raises InputError: corpora have a shard in common, or cannot be mixed."""
    flag, named = source.flag, source.named
    refuse_twice(named, [corpus.files for corpus in opened], flag)
    first = facts_of_rows(opened[0].manifest, settings)
    for each, corpus in zip(named, opened, strict=True):
        both = f"{flag}: the corpora {named[0].patterns} and {each.patterns}"
        if is_arrow(corpus.files) != is_arrow(opened[0].files):
            raise InputError(
                f"{both} are of different kinds, TFRecord files and shards of bert-corpus build,"
                " which cannot be mixed: give corpora of one kind"
            )
        other = facts_of_rows(corpus.manifest, settings)
        if different := differences(first, other, first):
            again = how_to_build_again(first, other, next(iter(opened[0].files)).parent)
            raise InputError(f"{both} differ in {different}: build {each.patterns} again {again}")


def facts_of_rows(manifest: Manifest, settings: ShardSettings) -> dict[str, Any]:
    """What corpora of a mixture must have in common, by name; of masks that are drawn later only
    what the flags leave open."""
    built = manifest["settings"]
    masks = set(GOOGLES_MASKS)
    if built["masking"] == "dynamic":
        masks -= given_masks(settings).keys()
    names = "max_seq_length", "next_sentence", "masking", *sorted(masks)
    facts = {name: built.get(name) for name in names}
    return {"tokenizer_digest": manifest["tokenizer_digest"], **facts}


def limit_of_masks(masks: Mapping[str, Any], length: int) -> str | None:
    """What to say if rows may have fewer masks than a share that changes says."""
    share, most = masks["masked_lm_prob"], masks["max_predictions_per_seq"]
    if not isinstance(share, str) or most >= highest(share) * length:
        return None
    longest = int(most / highest(share))
    return (
        f"note: --max_predictions_per_seq {most} is less than --masked_lm_prob {share} asks for in"
        f" rows of more than {longest} tokens"
    )


def say_or_refuse_masks(settings: ShardSettings, job: Job, flag: str) -> None:
    """Says which settings of masks change nothing because the rows have theirs. Raises InputError:
    masks cannot change along the training."""
    share = settings.masked_lm_prob
    if isinstance(share, str):
        raise InputError(
            f"--masked_lm_prob {share}: the rows of {flag} have their masks, which cannot change:"
            " build them with --masking dynamic, or leave it out"
        )
    for name in ("masked_lm_prob", "do_whole_word_mask"):
        if name in settings.given:
            job.run.say(f"note: --{name} changes nothing: the shards have masks")


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
    facts = {}
    needed = 0
    for file in files:
        size = file.stat().st_size
        facts[str(file.resolve())] = size, file.stat().st_mtime_ns
        needed += size
    folder = cache_folder() / "records" / digest(VERSION, facts, limits._asdict())
    if folder.is_dir():
        return folder
    schema = schema_of(ExampleSettings(masking="static"), limits.vocab_size)

    def batches() -> Iterator[pa.RecordBatch]:
        for file in files:
            for columns in _examples_of(file, limits, flag):
                yield record_batch(columns, schema)

    def write(into: Path) -> None:
        settings = {"masking": "static", "next_sentence": True, **limits._asdict()}
        entry = write_shard(into / "shard-00000-of-00001.arrow", batches(), schema, settings)
        write_manifest(into, {"settings": settings, "tokenizer_digest": "", "shards": [entry]})

    with writing_cache():
        folder.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder.parent).free
        if needed > free:
            raise InputError(
                f"{flag}: the rows of the TFRecord files need up to {needed:,} bytes in"
                f" {folder.parent}, where {free:,} are free: set RINGBERT_CACHE to a folder with"
                " more room"
            )
        build_folder(folder, write)
    return folder


def _examples_of(file: Path, limits: Limits, flag: str) -> Iterator[Columns]:
    """The examples of a file, as columns without padding."""
    where = f"{flag} {file}"
    shapes = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), limits.max_seq_length)
    shapes |= dict.fromkeys(PREDICTIONS, limits.max_predictions_per_seq)
    shapes["next_sentence_labels"] = 1
    features = {}
    for name, size in shapes.items():
        kind = tf.float32 if name == "masked_lm_weights" else tf.int64
        features[name] = tf.io.FixedLenFeature([size], kind)
    number = 0
    try:
        for records in tf.data.TFRecordDataset(str(file)).batch(RECORDS_AT_ONCE):
            parsed = tf.io.parse_example(records, features)
            parsed = {name: tensor.numpy() for name, tensor in parsed.items()}
            yield _without_padding(parsed, limits, where, number)
            number += len(records)
    except tf.errors.OpError as error:
        reason = one_line(error).rpartition("}} ")[2]
        sizes = "--max_seq_length={} --max_predictions_per_seq={}".format(*limits)
        raise InputError(
            f"{where}: from record {number:,} on: {reason} (expected an intact file, not"
            f" compressed, of {sizes})"
        ) from error
    if not number:
        raise InputError(f"{where}: the file is empty")


def _without_padding(
    parsed: dict[str, np.ndarray], limits: Limits, where: str, first: int
) -> Columns:
    """The columns of shards. Raises InputError for the first record that is not of Google's
    form."""
    ids, mask = parsed["input_ids"], parsed["input_mask"]
    segments, labels = parsed["segment_ids"], parsed["next_sentence_labels"]
    positions, originals, weights = (parsed[name] for name in PREDICTIONS)
    lengths = np.count_nonzero(mask, axis=1)
    ends = lengths[:, None]
    place = np.arange(limits.max_seq_length)
    inside = place < ends
    a_tokens = np.count_nonzero((segments == 0) & inside, axis=1)
    is_b = place >= a_tokens[:, None]
    used = weights == 1
    mask_is_wrong = (mask != inside) | (ends == 0)
    is_unknown = _outside(ids, limits.vocab_size) & inside
    is_unknown_original = _outside(originals, limits.vocab_size) & used
    all_unknown = np.hstack([is_unknown, is_unknown_original])
    vocabulary = f"the vocabulary of {limits.vocab_size} entries (--vocab_file)"
    problems = {
        "input_mask is not ones followed by zeros": mask_is_wrong,
        "segment_ids are not zeros followed by ones": (segments != is_b) & inside,
        "masked_lm_weights are not all 0 or 1": ~used & (weights != 0),
        "a masked_lm_position is past its tokens": _outside(positions, ends) & used,
        "next_sentence_labels is not 0 or 1": _outside(labels, 2),
        f"an id is not in {vocabulary}": all_unknown,
    }
    for problem, places in problems.items():
        wrong_rows = np.flatnonzero(places.any(axis=1))
        if len(wrong_rows):
            raise InputError(f"{where}: record {first + wrong_rows[0]}: {problem}")
    offsets = offsets_of(used.sum(axis=1))
    return {
        "input_ids": (ids[inside], offsets_of(lengths)),
        "sentence_a_tokens": a_tokens,
        "masked_lm_positions": (positions[used], offsets),
        "masked_lm_ids": (originals[used], offsets),
        "is_random_next": labels[:, 0],
    }


def _outside(values: np.ndarray, limit: np.ndarray | int) -> np.ndarray:
    return (values < 0) | (values >= limit)
