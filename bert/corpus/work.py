"""The two passes of a build, as numbered pieces of work that any worker on any rank can do.

`make_unit` turns a unit of text into examples: an Arrow file in `output_dir/.work`, whose record batches deal the
examples to the bins of the corpus. `make_shard` reads its bins from all units, and sorts each by random keys.
"""

import functools
import itertools
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bert.corpus.columns import array, schema_of, values_of
from bert.corpus.examples import make_examples, parts_of
from bert.corpus.manifest import FORMAT_VERSION, WORK
from bert.corpus.masking import Masking
from bert.corpus.read import documents
from bert.corpus.settings import BuildSettings
from bert.corpus.shards import write_arrow
from bert.corpus.tfrecord import write_records
from bert.corpus.units import Unit, input_facts
from bert.corpus.words import Encoder
from bert.text.tokenizer import Tokenizer, check_unknown
from ringbase.errors import InputError
from ringbase.files import replacing, write_json
from ringbase.hashing import digest, sha256
from ringbase.ragged import offsets_of

# Bytes of text per shard unless --num_shards is given. A small corpus gets smaller shards, so that several workers
# can write it.
SHARD_BYTES, SMALLEST_SHARD_BYTES, MOST_SMALL_SHARDS = 256 << 20, 8 << 20, 16
BIN_BYTES = 128 << 20  # of text, whose examples are sorted in memory at once
BATCH_TOKENS = 1 << 17  # of a record batch of about 256 KiB, the piece of a shard that training reads and checks


@dataclass(frozen=True)
class CorpusWork:
    """A build, as its workers see it."""

    settings: BuildSettings
    tokenizer: Tokenizer
    units: tuple[Unit, ...]

    @property
    def output_dir(self) -> Path:
        return Path(self.settings.output_dir).expanduser()

    @property
    def folder(self) -> Path:
        """The folder of unfinished work."""
        return self.output_dir / WORK

    @property
    def num_bytes(self) -> int:
        """Bytes of the text that becomes examples, about."""
        return sum(piece.size for unit in self.units for piece in unit) * self.settings.examples.num_duplicates

    @property
    def num_shards(self) -> int:
        size = self.num_bytes
        by_size = max(-(-size // SHARD_BYTES), min(MOST_SMALL_SHARDS, size // SMALLEST_SHARD_BYTES), 1)
        return self.settings.num_shards or by_size

    @property
    def bins_per_shard(self) -> int:
        return -(-self.num_bytes // (self.num_shards * BIN_BYTES)) or 1

    @functools.cached_property
    def encoder(self) -> Encoder:
        return Encoder(self.tokenizer)

    @functools.cached_property
    def masks(self) -> Masking | None:
        """The parameters of static masks; None with dynamic masks."""
        settings = self.settings.examples
        if not settings.has_static_masks:
            return None
        limits = settings.masked_lm_prob, settings.max_predictions_per_seq
        return Masking.of(self.tokenizer, *limits, settings.do_whole_word_mask)

    # -- first pass: a unit of text -> examples -------------------------------------------------------------------

    def unit_path(self, number: int) -> Path:
        """The examples of a unit: a batch for each bin, again for each part and duplicate, and an empty one, which
        has the counts."""
        return self.folder / f"unit-{number:06d}.arrow"

    def make_unit(self, number: int) -> None:
        settings, num_bins = self.settings.examples, self.num_shards * self.bins_per_shard
        counts = Counter[str]()
        schema = schema_of(settings, self.tokenizer.vocab_size).append(pa.field("key", pa.uint64()))
        texts = documents(self.units[number], self.settings.text)
        with replacing(self.unit_path(number)) as file, pa.ipc.new_file(file, schema) as writer:
            for index, part in enumerate(parts_of(texts, self.encoder)):
                unknown = int((part.tokens == self.tokenizer.unk_id).sum())
                if number == index == 0:  # a wrong vocabulary is noticed early
                    share, source = unknown / len(part.tokens), f"the beginning of {self.settings.text.source}"
                    check_unknown(share, source, self.tokenizer, self.settings.unknown.allow_unknown)
                counts.update(
                    documents=len(part.documents) - 1,
                    sentences=len(part.sentences) - 1,
                    tokens=len(part.tokens),
                    unknown=unknown,
                )
                for duplicate in range(settings.num_duplicates):
                    place = (number, index, duplicate)
                    batch = make_examples(part, settings, self.tokenizer, self.masks, place, schema)
                    bins = (counts["examples"] + number + np.arange(len(batch))) % num_bins
                    dealt = batch.take(array(np.argsort(bins, kind="stable")))
                    for start, stop in itertools.pairwise(
                        offsets_of(np.bincount(bins, minlength=num_bins)).tolist()
                    ):
                        writer.write_batch(dealt.slice(start, stop - start))
                    random_next = values_of(batch.column("is_random_next")).sum() if settings.next_sentence else 0
                    counts.update(examples=len(batch), random_next=int(random_next))
            writer.write_batch(pa.RecordBatch.from_pylist([], schema), {"counts": json.dumps(counts)})

    def counts(self) -> Counter[str]:
        """What all units hold together."""
        total = Counter[str]()
        for number in range(len(self.units)):
            with pa.OSFile(str(self.unit_path(number))) as source:
                reader = pa.ipc.open_file(source)
                _, metadata = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
            total.update(json.loads(metadata[b"counts"]))
        return total

    # -- second pass: bins of all units -> a shard ----------------------------------------------------------------

    def shard_marker(self, number: int) -> Path:
        """The file that marks a shard as written; it holds the shard's entry for the manifest."""
        return self.folder / f"shard-{number:05d}.json"

    def make_shard(self, number: int) -> None:
        settings = self.settings.examples
        schema = schema_of(settings, self.tokenizer.vocab_size)
        rows = max(1, BATCH_TOKENS // settings.max_seq_length)
        bins = map(self._bin, range(number * self.bins_per_shard, (number + 1) * self.bins_per_shard))
        batches = (examples.slice(start, rows) for examples in bins for start in range(0, len(examples), rows))
        path = self.output_dir / f"shard-{number:05d}-of-{self.num_shards:05d}.{settings.format}"
        with replacing(path) as file:
            if settings.format == "arrow":
                sizes = write_arrow(file, batches, schema, self.facts["settings"])
            else:
                sizes = write_records(file, batches, settings.max_seq_length, settings.max_predictions_per_seq)
        if not sizes:
            raise InputError(f"--num_shards is {self.num_shards}: too many for this text, a shard would be empty")
        facts = {"file": path.name, "examples": sum(sizes), "bytes": path.stat().st_size, "sha256": sha256(path)}
        write_json(self.shard_marker(number), facts | {"batches": sizes}, indent=None)

    def _bin(self, number: int) -> pa.RecordBatch:
        """The examples of a bin, in the order of their keys."""
        num_bins, parts = self.num_shards * self.bins_per_shard, []
        for unit in range(len(self.units)):
            with pa.OSFile(str(self.unit_path(unit))) as source:
                reader = pa.ipc.open_file(source)
                parts += [
                    reader.get_batch(place) for place in range(number, reader.num_record_batches - 1, num_bins)
                ]
        for examples in pa.Table.from_batches(parts).combine_chunks().to_batches():
            order = np.argsort(values_of(examples.column("key")), kind="stable")
            return examples.drop_columns(["key"]).take(array(order))
        return parts[0].drop_columns(["key"])

    # -- what decides the result ----------------------------------------------------------------------------------

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """Everything that decides the result, as stored in the manifest."""
        text, inputs = self.settings.text, input_facts(self.settings.text)
        reading = {name: getattr(text, name) for name in ("split_sentences", "document_separator", "text_column")}
        return {
            "format_version": FORMAT_VERSION,
            "settings": self.settings.examples.recorded() | reading,
            "num_shards": self.settings.num_shards or "by size",
            "tokenizer_digest": self.tokenizer.digest,
            "vocab_size": self.tokenizer.vocab_size,
            "do_lower_case": self.tokenizer.lower_case,
            "input": {
                "input_file": text.input_file,
                "dataset_name": text.dataset_name,
                "dataset_config": text.dataset_config,
                "dataset_revision": text.dataset_revision,
                "files": len(inputs),
                "bytes" if text.dataset_name is None else "rows": sum(size for _, size, _ in inputs),
                "digest": digest([(name, size) for name, size, _ in inputs]),
            },
        }

    def __getstate__(self) -> dict[str, Any]:
        """Without the cached properties."""
        return {name: getattr(self, name) for name in ("settings", "tokenizer", "units")}
