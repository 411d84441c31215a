"""Shards as rows for training: those of `bert-corpus build`, or Google's TFRecord files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bert.corpus.masking import Masking
from bert.corpus.shards import TOKENIZER, Manifest, find_shards, is_arrow, open_shards
from distributed.rows import BatchRows
from ringbase.errors import InputError
from ringbase.hashing import digest
from tasks.job import Job
from tasks.pretraining.records import Limits, converted
from tasks.pretraining.settings import ShardSettings
from tasks.start import Start


@dataclass(frozen=True)
class Shards:
    """Examples as rows.

    Attributes:
      masking: how masks are drawn; None if the shards contain masks.
      masks: the settings of masks, by flag.
      lengths: row numbers -> their numbers of tokens.
    """

    rows: BatchRows
    key: str
    masking: Masking | None
    masks: dict[str, object]
    has_next_sentence: bool
    lengths: Callable[[np.ndarray], np.ndarray]

    def most_masked(self, length: int) -> int:
        """The maximum number of masked tokens in an example of this length."""
        if self.masking is None:
            return min(length, int(str(self.masks["--max_predictions_per_seq"])))
        return self.masking.num_predictions(length)


def tokenizer_of_shards(patterns: str) -> Path | None:
    """The folder of the tokenizer that Arrow shards were made with; None for TFRecord files. On rank 0."""
    shards = find_shards(patterns)
    return next(iter(shards)).parent / TOKENIZER if is_arrow(shards) else None


def open_rows(settings: ShardSettings, job: Job, start: Start, patterns: str, flag: str) -> Shards:
    """The shards on every rank, memory-mapped. Raises InputError when they do not fit the flags or the model.

    Arrow shards are checked when rows are taken, so that the start does not wait for a large corpus. TFRecord
    files are converted once per machine.
    """
    found, masks = find_shards(patterns, flag), settings.masks({})
    if is_arrow(found):
        parts, manifest = open_shards(patterns, flag)
        masks = settings.masks(manifest["settings"])
        masking = _masking(settings, masks, manifest, start, flag)
    else:
        limits = Limits(settings.max_seq_length, masks["max_predictions_per_seq"], start.bert_config.vocab_size)
        folder = job.world.on_each_machine(converted, list(found), limits, flag)
        parts, manifest = open_shards(str(folder), flag)
        masking = None
    rows = BatchRows(parts)
    key = manifest.get("records_digest") or digest(manifest)
    job.world.agree({f"the shards {patterns}": (key, len(rows))})
    source = "drawn again in every epoch" if masking else "read from the shards"
    job.run.say(f"{patterns}: {len(rows):,} examples, masks {source}")
    by_flag = {f"--{name}": value for name, value in masks.items()}
    lengths = partial(rows.lengths_at, "input_ids")
    return Shards(rows, key, masking, by_flag, manifest["settings"]["next_sentence"], lengths)


def _masking(
    settings: ShardSettings, masks: Mapping[str, Any], manifest: Manifest, start: Start, flag: str
) -> Masking | None:
    """How masks are drawn for these shards; None if they contain masks.

    Raises InputError: the shards do not fit the flags or the vocabulary.
    """
    built, tokenizer = manifest["settings"], start.tokenizer
    if tokenizer is None:
        raise InputError("--eval_input_file has Arrow shards, but --input_file has none: give their --vocab_file")
    if manifest["tokenizer_digest"] != tokenizer.digest:
        raise InputError(f"{flag}: the shards were made with a vocabulary other than {tokenizer.source}")
    limits = [("max_seq_length", settings.max_seq_length)]
    if built["masking"] == "static":
        limits.append(("max_predictions_per_seq", masks["max_predictions_per_seq"]))
    for name, value in limits:
        if built[name] > value:
            raise InputError(f"--{name} must be at least {built[name]}, that of the shards, got {value}")
    return None if built["masking"] == "static" else Masking.of(tokenizer, **masks)
