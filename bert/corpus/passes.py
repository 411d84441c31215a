"""The three passes of a build, as numbered pieces of work that any worker on any rank can do."""

import functools
import hashlib
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from bert.corpus.encoder import Encoder, Words
from bert.corpus.example_files import (
    ExampleFiles,
    TaskCounts,
    is_sampled,
    read_task_counts,
    task_path,
    write_examples,
)
from bert.corpus.examples import make_examples
from bert.corpus.inputs import Unit, input_facts
from bert.corpus.manifest import FORMAT_VERSION, WORK
from bert.corpus.masking import Masking
from bert.corpus.settings import BuildSettings
from bert.corpus.shard_writer import shard_batches, shard_name, shard_range, write_shard
from bert.corpus.tokens import (
    TokenFiles,
    UnitCounts,
    id_type,
    is_tokenized,
    read_counts,
    tokenize_unit,
    unit_path,
)
from ringbase.files import sync_folder, write_json

# Tokens per shard unless --num_shards is given. A small corpus gets smaller shards, so that several workers can
# write it.
SHARD_TOKENS, SMALLEST_SHARD_TOKENS, MOST_SMALL_SHARDS = 1 << 26, 1 << 21, 16
BUCKET_TOKENS = 1 << 20
BUCKETS_PER_SHARD = 4


def shards_by_size(tokens: int) -> int:
    """The number of shards unless --num_shards is given: it depends on the tokens, not on the workers."""
    return max(-(-tokens // SHARD_TOKENS), min(MOST_SMALL_SHARDS, tokens // SMALLEST_SHARD_TOKENS), 1)


def total(counts: list[Any], name: str) -> int:
    return sum(getattr(count, name) for count in counts)


@dataclass
class CorpusWork:
    """The shared description of a build. Workers read the results of earlier passes from its folder."""

    settings: BuildSettings
    words: Words
    units: tuple[Unit, ...]

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # without cached properties

    @property
    def output_dir(self) -> Path:
        return Path(self.settings.output_dir).expanduser()

    @property
    def folder(self) -> Path:
        """The folder of unfinished work."""
        return self.output_dir / WORK

    @property
    def dtype(self) -> np.dtype:
        return id_type(self.words.vocab_size)

    # First pass: units of text -> token ids.

    def tokenize(self, number: int) -> None:
        marker = unit_path(self.folder, number)
        tokenize_unit(marker, self.units[number], self.settings, self.encoder, self.words.unk_id, self.dtype)

    def is_tokenized(self, number: int) -> bool:
        return is_tokenized(unit_path(self.folder, number), self.dtype)

    @functools.cached_property
    def encoder(self) -> Encoder:
        return Encoder(self.words)

    # Second pass: blocks of token ids -> examples.

    @functools.cached_property
    def unit_counts(self) -> list[UnitCounts]:
        return [read_counts(unit_path(self.folder, number)) for number in range(len(self.units))]

    @functools.cached_property
    def token_files(self) -> TokenFiles:
        return TokenFiles(self.folder, [counts.documents for counts in self.unit_counts], self.dtype)

    @functools.cached_property
    def tasks(self) -> list[tuple[int, int, int, int]]:
        """For each task a block (its unit, first and last document) and the number of the duplicate."""
        return [
            (unit, start, stop, duplicate)
            for unit, counts in enumerate(self.unit_counts)
            for start, stop in zip(counts.blocks[:-1], counts.blocks[1:], strict=True)
            for duplicate in range(self.settings.num_duplicates)
        ]

    @property
    def num_shards(self) -> int:
        return self.settings.num_shards or shards_by_size(self._tokens)

    @property
    def bucket_bits(self) -> int:
        return max(self._tokens // BUCKET_TOKENS, BUCKETS_PER_SHARD * self.num_shards).bit_length()

    @property
    def _tokens(self) -> int:
        return total(self.unit_counts, "tokens") * self.settings.num_duplicates

    def sample(self, number: int) -> None:
        unit, start, stop, duplicate = self.tasks[number]
        block = self.token_files.block(unit, start, stop)
        examples = make_examples(block, self.token_files, self.settings, self.words, duplicate, self.masks)
        write_examples(task_path(self.folder, number), examples, self.bucket_bits)

    def is_sampled(self, number: int) -> bool:
        return is_sampled(task_path(self.folder, number), self.bucket_bits, self.dtype)

    @functools.cached_property
    def masks(self) -> Masking | None:
        """The parameters of static masks; None with dynamic masks."""
        settings, words = self.settings, self.words
        if not settings.has_static_masks:
            return None
        return Masking(
            words.vocab_size, words.mask_id, (words.cls_id, words.sep_id), settings.masked_lm_prob,
            settings.max_predictions_per_seq, words.continues_word,
        )  # fmt: skip

    # Third pass: examples -> shards.

    @functools.cached_property
    def task_counts(self) -> list[TaskCounts]:
        return [read_task_counts(task_path(self.folder, number)) for number in range(len(self.tasks))]

    @functools.cached_property
    def example_files(self) -> tuple[ExampleFiles, np.ndarray]:
        """The examples, and the number in each bucket."""
        files = ExampleFiles(self.folder, self.task_counts, self.bucket_bits, self.dtype)
        return files, files.bucket_sizes()

    def write(self, number: int) -> None:
        start, stop = shard_range(number, self.num_shards, total(self.task_counts, "examples"))
        batches = shard_batches(*self.example_files, start, stop)
        path = self.folder / shard_name(number, self.num_shards, self.settings.format)
        facts = write_shard(path, batches, self.settings, self.dtype, self.facts["settings"])
        path.replace(self.output_dir / path.name)
        sync_folder(self.output_dir)
        write_json(self.shard_marker(number), facts, indent=None)

    def is_written(self, number: int) -> bool:
        return self.shard_marker(number).is_file()

    def shard_marker(self, number: int) -> Path:
        """The file that marks a shard as written; it holds the shard's entry for the manifest."""
        return self.folder / f"shard-{number:05d}.json"

    # The settings and inputs that decide the result.

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """Everything that decides the result, as stored in the manifest."""
        settings, inputs = self.settings, input_facts(self.settings)
        return {
            "format_version": FORMAT_VERSION,
            "format": settings.format,
            "settings": settings.recorded | {
                "num_shards": None,  # it does not decide the examples; Arrow shards hold this entry
                "split_sentences": settings.split_sentences,
                "document_separator": settings.document_separator,
                "text_column": settings.text_column,
            },
            "num_shards": settings.num_shards or "by size",
            "tokenizer_digest": self.words.digest,
            "vocab_size": self.words.vocab_size,
            "do_lower_case": self.words.lower_case,
            "input": {
                "input_file": settings.input_file,
                "dataset_name": settings.dataset_name,
                "dataset_config": settings.dataset_config,
                # Only if given, so that corpora from before this setting are still recognized.
                **({"dataset_revision": settings.dataset_revision} if settings.dataset_revision else {}),
                "files": len(inputs),
                "bytes" if settings.dataset_name is None else "rows": sum(size for _, size, _ in inputs),
                "digest": _digest([(name, size) for name, size, _ in inputs]),
            },
        }  # fmt: skip

    @property
    def changed(self) -> str:
        """A digest of the modification times of the input files."""
        return _digest(input_facts(self.settings))


def _digest(values: object) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
