"""Shards as rows for training: those of `bert-corpus build`, or Google's TFRecord files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringbase.errors import InputError
from ringbase.hashing import digest
from tasks.environment import cache_folder
from tasks.job import Job
from tasks.pretraining.settings import ShardSettings
from tasks.start import Start

if TYPE_CHECKING:
    import numpy as np

    from bert.corpus.masking import Masking
    from distributed.rows import RowSource


@dataclass(frozen=True)
class Shards:
    """Examples as rows.

    Attributes:
      masking: how masks are drawn; None if the shards contain masks.
      masks: the settings of masks, by flag.
      lengths: row numbers -> their numbers of tokens; None if these are not known before the rows are read.
    """

    rows: "RowSource"
    key: str
    masking: "Masking | None"
    masks: dict[str, object]
    has_next_sentence: bool
    lengths: Callable[["np.ndarray"], "np.ndarray"] | None

    def most_masked(self, length: int) -> int:
        """The maximum number of masked tokens in an example of this length."""
        if self.masking is None:
            return min(length, int(str(self.masks["--max_predictions_per_seq"])))
        return self.masking.num_predictions(length)


def tokenizer_of_shards(patterns: str) -> Path | None:
    """The folder of the tokenizer that Arrow shards were made with; None for TFRecord files. On rank 0."""
    from bert.corpus.shards import find_shards, tokenizer_folder

    kind, files = find_shards(patterns)
    return tokenizer_folder(files) if kind == "arrow" else None


def open_shards(settings: ShardSettings, job: Job, start: Start, patterns: str, flag: str) -> Shards:
    """The shards on every rank, memory-mapped. Raises InputError when they do not fit the flags or the model.

    Their bytes are checked when rows are taken, so that the start does not wait for a large corpus.
    """
    from bert.corpus.shards import find_shards

    kind, files = find_shards(patterns, flag)
    if kind == "arrow":
        shards = _open_arrow(settings, start, files, flag)
    else:
        shards = _open_records(settings, job, start, files, flag)
    job.world.agree({f"the shards {patterns}": (shards.key, len(shards.rows))})
    source = "drawn again in every epoch" if shards.masking else "read from the shards"
    job.run.say(f"{patterns}: {len(shards.rows):,} examples, masks {source}")
    return shards


def _open_arrow(settings: ShardSettings, start: Start, files: str, flag: str) -> Shards:
    from bert.corpus.shards import open_shards
    from distributed.rows import BatchRows

    parts, manifest = open_shards(files, cache_folder(), flag)
    masks = settings.masks(manifest["settings"])
    rows = BatchRows(parts)
    return Shards(
        rows,
        digest(manifest),
        _masking(settings, masks, manifest, start, flag),
        _by_flag(masks),
        manifest["settings"]["next_sentence"],
        partial(rows.lengths_at, "input_ids"),
    )


def _open_records(settings: ShardSettings, job: Job, start: Start, files: str, flag: str) -> Shards:
    from bert.corpus.tfrecord import RecordRows

    masks = settings.masks({})

    def open_records() -> RecordRows:
        return RecordRows(
            files,
            cache_folder(),
            max_seq_length=settings.max_seq_length,
            max_predictions_per_seq=masks["max_predictions_per_seq"],
            vocab_size=start.bert_config.vocab_size,
            flag=flag,
        )

    job.world.on_each_machine(lambda: len(open_records()))  # the index is made once per machine
    rows = open_records()
    return Shards(rows, rows.digest, None, _by_flag(masks), has_next_sentence=True, lengths=None)


def _by_flag(masks: Mapping[str, Any]) -> dict[str, object]:
    return {f"--{name}": value for name, value in masks.items()}


def _masking(
    settings: ShardSettings, masks: Mapping[str, Any], manifest: dict, start: Start, flag: str
) -> "Masking | None":
    """How masks are drawn for these shards; None if they contain masks.

    Raises InputError: the shards do not fit the flags or the vocabulary.
    """
    from bert.corpus.masking import Masking

    built, tokenizer = manifest["settings"], start.tokenizer
    if tokenizer is None:
        raise InputError("--eval_input_file has Arrow shards, but --input_file has none: give their --vocab_file")
    if manifest["tokenizer_digest"] != tokenizer.digest:
        raise InputError(f"{flag}: the shards were made with a vocabulary other than {tokenizer.source}")
    if built["max_seq_length"] > settings.max_seq_length:
        raise InputError(
            f"--max_seq_length must be at least {built['max_seq_length']}, the length of the shards' examples, "
            f"got {settings.max_seq_length}"
        )
    if built["masking"] == "static":
        if built["max_predictions_per_seq"] > masks["max_predictions_per_seq"]:
            raise InputError(
                f"--max_predictions_per_seq must be at least the shards' {built['max_predictions_per_seq']}, "
                f"got {masks['max_predictions_per_seq']}"
            )
        return None
    return Masking(
        vocab_size=tokenizer.vocab_size,
        mask_id=tokenizer.mask_id,
        special_ids=(tokenizer.cls_id, tokenizer.sep_id),
        masked_lm_prob=masks["masked_lm_prob"],
        max_predictions_per_seq=masks["max_predictions_per_seq"],
        continues_word=tokenizer.continues_word if masks["do_whole_word_mask"] else None,
    )
