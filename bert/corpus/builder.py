"""What a corpus is built from, and the pieces of work of its three passes."""

import functools
import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bert.corpus.documents import Source, Unit, input_facts
from bert.corpus.encoder import Encoder, Words
from bert.corpus.examples import (
    ExampleFiles,
    Sampling,
    TaskCounts,
    is_sampled,
    make_examples,
    read_task_counts,
    write_examples,
)
from bert.corpus.masking import Masking
from bert.corpus.shards import (
    FORMAT_VERSION,
    WORK,
    schema,
    shard_batches,
    shard_name,
    shard_range,
    total,
    write_arrow,
    write_tfrecord,
)
from bert.corpus.tokens import (
    TokenFiles,
    UnitCounts,
    id_type,
    is_tokenized,
    read_counts,
    sync_folder,
    tokenize_unit,
    write_json,
)
from ringbert.errors import InputError

# Of one shard, unless --num_shards is given: small corpora too are written by several workers.
SHARD_TOKENS, FEWEST_SHARDS, SMALLEST_SHARD_TOKENS = 1 << 26, 16, 1 << 21
BUCKET_TOKENS = 1 << 20
BUCKETS_PER_SHARD = 4


@dataclass(frozen=True)
class Settings:
    """What decides the examples and the files, besides the input and the tokenizer. Defaults are Google's.

    `dupe_factor` None is 1 with dynamic masks and 10 with static ones. `num_shards` None makes one for each
    67 million tokens, but 16 where these have 2 million or more. Raises InputError: a value out of its range, or
    two that exclude each other.
    """

    max_seq_length: int = 128
    next_sentence: bool = True
    short_seq_prob: float = 0.1
    format: Literal["arrow", "tfrecord"] = "arrow"
    masking: Literal["dynamic", "static"] = "dynamic"
    dupe_factor: int | None = None
    masked_lm_prob: float = 0.15
    max_predictions_per_seq: int = 20
    do_whole_word_mask: bool = False
    random_seed: int = 12345
    num_shards: int | None = None

    def __post_init__(self):
        least = {"max_seq_length": 5, "dupe_factor": 1, "max_predictions_per_seq": 1, "num_shards": 1}
        for name, needed in least.items():
            if getattr(self, name) is not None and getattr(self, name) < needed:
                raise InputError(f"--{name} is {getattr(self, name)}, needed is at least {needed}")
        if not 0 <= self.short_seq_prob <= 1:
            raise InputError(f"--short_seq_prob is {self.short_seq_prob}, needed is 0 to 1")
        if not 0 < self.masked_lm_prob <= 1:
            raise InputError(f"--masked_lm_prob is {self.masked_lm_prob}, needed is more than 0 and at most 1")
        if self.format == "tfrecord" and self.masking == "dynamic":
            raise InputError("--format tfrecord holds static masks: give --masking static too")
        if self.format == "tfrecord" and not self.next_sentence:
            raise InputError("--format tfrecord has next_sentence_labels: give --format arrow or --next_sentence")
        if self.dupe_factor is None:
            object.__setattr__(self, "dupe_factor", 10 if self.masking == "static" else 1)


def shards_by_size(tokens: int) -> int:
    """How many shards a corpus has unless --num_shards is given: its tokens alone decide, not the workers."""
    return max(-(-tokens // SHARD_TOKENS), min(FEWEST_SHARDS, tokens // SMALLEST_SHARD_TOKENS), 1)


def shard_marker(work: Path, number: int) -> Path:
    return work / f"shard-{number:05d}.json"


@dataclass
class Builder:
    """One build as every worker of every rank sees it; what passes left is read from the work folder."""

    source: Source
    settings: Settings
    words: Words
    output_dir: Path
    units: tuple[Unit, ...]

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # without what is cached

    @property
    def work(self) -> Path:
        return self.output_dir / WORK

    @property
    def dtype(self) -> np.dtype:
        return id_type(self.words.vocab_size)

    # First pass.

    def tokenize(self, number: int) -> None:
        tokenize_unit(
            self.work, number, self.units[number], self.source, self.encoder, self.words.unk_id, self.dtype
        )

    def is_tokenized(self, number: int) -> bool:
        return is_tokenized(self.work, number, self.dtype)

    @functools.cached_property
    def encoder(self) -> Encoder:
        return Encoder(self.words)

    # Second pass.

    @functools.cached_property
    def unit_counts(self) -> list[UnitCounts]:
        return [read_counts(self.work, number) for number in range(len(self.units))]

    @functools.cached_property
    def token_files(self) -> TokenFiles:
        return TokenFiles(self.work, [counts.documents for counts in self.unit_counts], self.dtype)

    @functools.cached_property
    def tasks(self) -> list[tuple[int, int, int, int]]:
        """Unit, first and last document of a block, duplicate."""
        return [
            (unit, start, stop, duplicate)
            for unit, counts in enumerate(self.unit_counts)
            for start, stop in zip(counts.blocks[:-1], counts.blocks[1:], strict=True)
            for duplicate in range(self.settings.dupe_factor or 1)
        ]

    @property
    def num_shards(self) -> int:
        tokens = total(self.unit_counts, "tokens") * (self.settings.dupe_factor or 1)
        return self.settings.num_shards or shards_by_size(tokens)

    @property
    def bucket_bits(self) -> int:
        tokens = total(self.unit_counts, "tokens") * (self.settings.dupe_factor or 1)
        return max(tokens // BUCKET_TOKENS, BUCKETS_PER_SHARD * self.num_shards).bit_length()

    def sample(self, number: int) -> None:
        unit, start, stop, duplicate = self.tasks[number]
        sampling = Sampling(
            self.settings.max_seq_length, self.settings.next_sentence, self.settings.short_seq_prob,
            self.settings.random_seed, self.words.cls_id, self.words.sep_id,
        )  # fmt: skip
        block = self.token_files.block(unit, start, stop)
        made = make_examples(block, self.token_files, sampling, duplicate, self.masks)
        write_examples(self.work, number, made, self.bucket_bits)

    def is_sampled(self, number: int) -> bool:
        return is_sampled(self.work, number, self.bucket_bits, self.dtype)

    @functools.cached_property
    def masks(self) -> Masking | None:
        settings, words = self.settings, self.words
        if settings.masking == "dynamic":
            return None
        return Masking(
            words.vocab_size, words.mask_id, (words.cls_id, words.sep_id), settings.masked_lm_prob,
            settings.max_predictions_per_seq, words.continues_word,
        )  # fmt: skip

    # Third pass.

    @functools.cached_property
    def task_counts(self) -> list[TaskCounts]:
        return [read_task_counts(self.work, number) for number in range(len(self.tasks))]

    @functools.cached_property
    def example_files(self) -> tuple[ExampleFiles, np.ndarray]:
        files = ExampleFiles(self.work, self.task_counts, self.bucket_bits, self.dtype)
        return files, files.bucket_sizes()

    def write(self, number: int) -> None:
        start, stop = shard_range(number, self.num_shards, total(self.task_counts, "examples"))
        found = shard_batches(*self.example_files, start, stop)
        path = self.work / shard_name(number, self.num_shards, self.settings.format)
        if self.settings.format == "tfrecord":
            most = self.settings.max_predictions_per_seq
            facts = write_tfrecord(path, found, self.settings.max_seq_length, most)
        else:
            static = self.settings.masking == "static"
            columns = schema(self.dtype, self.settings.next_sentence, static, self.facts["settings"])
            facts = write_arrow(path, found, columns)
        path.replace(self.output_dir / path.name)
        sync_folder(self.output_dir)
        write_json(shard_marker(self.work, number), facts)

    def is_written(self, number: int) -> bool:
        return shard_marker(self.work, number).is_file()

    # What it is.

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """Everything that decides the result."""
        inputs = input_facts(self.source)
        return {
            "format_version": FORMAT_VERSION,
            "format": self.settings.format,
            "settings": asdict(replace(self.settings, num_shards=None)) | {
                "split_sentences": self.source.split_sentences,
                "document_separator": self.source.document_separator,
                "text_column": self.source.text_column,
            },
            "num_shards": self.settings.num_shards or "by size",
            "tokenizer_digest": self.words.digest,
            "vocab_size": self.words.vocab_size,
            "do_lower_case": self.words.lower_case,
            "input": {
                "input_file": self.source.input_file,
                "dataset_name": self.source.dataset_name,
                "dataset_config": self.source.dataset_config,
                "files": len(inputs),
                "bytes" if self.source.dataset_name is None else "rows": sum(size for _, size, _ in inputs),
                "digest": _digest([(name, size) for name, size, _ in inputs]),
            },
        }  # fmt: skip

    @property
    def changed(self) -> str:
        """A digest of the times at which the input was changed."""
        return _digest(input_facts(self.source))


def _digest(values: object) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
