"""Shards as rows for training: those of `bert-corpus build`, or Google's TFRecord files."""

from dataclasses import dataclass
from pathlib import Path

from bert.corpus.masking import Masking
from bert.corpus.shards import TOKENIZER, find_shards, is_arrow, open_shards
from distributed.rows import BatchRows
from ringbase.errors import InputError
from ringbase.files import digest
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
    """

    rows: BatchRows
    key: str
    masking: Masking | None
    masks: dict[str, object]
    has_next_sentence: bool

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
    files = find_shards(patterns, flag)
    if is_arrow(files):
        if start.tokenizer is None:
            raise InputError(
                "--eval_input_file has Arrow shards, but --input_file has none: give their --vocab_file"
            )
        if next(iter(files.values()))["tokenizer_digest"] != start.tokenizer.digest:
            raise InputError(f"{flag}: the shards were made with a vocabulary other than {start.tokenizer.source}")
    else:
        most = settings.masks({})["max_predictions_per_seq"]
        limits = Limits(settings.max_seq_length, most, start.bert_config.vocab_size)
        files = find_shards(str(job.world.on_each_machine(converted, list(files), limits, flag)), flag)
    parts, manifest = open_shards(files, flag)
    built = manifest["settings"]
    masks, is_static = settings.masks(built), built["masking"] == "static"
    given = {"max_seq_length": settings.max_seq_length} | masks
    for name in ("max_seq_length", "max_predictions_per_seq")[: 1 + is_static]:
        if built[name] > given[name]:
            raise InputError(f"--{name} must be at least {built[name]}, that of the shards, got {given[name]}")
    rows, key = BatchRows(parts), manifest.get("records_digest") or digest(manifest)
    job.world.agree({f"the shards {patterns}": (key, len(rows))})
    source = "read from the shards" if is_static else "drawn again in every epoch"
    job.run.say(f"{patterns}: {len(rows):,} examples, masks {source}")
    masking = None if is_static else Masking.of(start.words, **masks)
    return Shards(rows, key, masking, {f"--{name}": masks[name] for name in masks}, built["next_sentence"])
