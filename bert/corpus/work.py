"""The two passes of a build, as numbered pieces of work that any worker on any rank can do.

`make_unit` turns a unit of text into examples: an Arrow file in `output_dir/.work`, whose record batches deal the
examples to the bins of the corpus. `make_shard` reads its bins from all units, and sorts each by random keys.
"""

import functools
import itertools
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
from bert.corpus.units import Unit, input_sizes
from bert.corpus.words import Encoder
from bert.text.tokenizer import Tokenizer, check_unknown
from ringbase.errors import InputError
from ringbase.files import replacing, write_json
from ringbase.hashing import HashingWriter, digest
from ringbase.json_files import read_json
from ringbase.ragged import offsets_of
from ringbase.settings import flat

# Bytes of text per shard unless --num_shards is given. A small corpus gets smaller shards, so that several workers
# can write it.
SHARD_BYTES, SMALLEST_SHARD_BYTES, MOST_SMALL_SHARDS = 256 << 20, 8 << 20, 16
BIN_BYTES = 128 << 20  # of text, whose examples are sorted in memory at once
BATCH_TOKENS = 1 << 17  # of a record batch of about 256 KiB, the piece of a shard that training reads and checks

encoder_of = functools.lru_cache(1)(Encoder)  # a worker's, which remembers words


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

    @property
    def masks(self) -> Masking | None:
        """The parameters of static masks; None with dynamic masks."""
        settings = self.settings.examples
        if not settings.has_static_masks:
            return None
        limits = settings.masked_lm_prob, settings.max_predictions_per_seq
        return Masking.of(self.tokenizer, *limits, settings.do_whole_word_mask)

    # -- first pass: a unit of text -> examples -------------------------------------------------------------------

    def unit_path(self, number: int) -> Path:
        """The examples of a unit: a record batch for each bin, again for each part and duplicate. Their counts
        are in a JSON file beside it."""
        return self.folder / f"unit-{number:06d}.arrow"

    def make_unit(self, number: int) -> None:
        settings, num_bins = self.settings.examples, self.num_shards * self.bins_per_shard
        counts, masks = Counter[str](), self.masks
        schema = schema_of(settings, self.tokenizer.vocab_size).append(pa.field("key", pa.uint64()))
        texts = documents(self.units[number], self.settings.text)
        with replacing(self.unit_path(number)) as file, pa.ipc.new_file(file, schema) as writer:
            for index, part in enumerate(parts_of(texts, encoder_of(self.tokenizer))):
                counts.update(
                    documents=len(part.documents) - 1,
                    sentences=len(part.sentences) - 1,
                    tokens=len(part.tokens),
                    unknown=int((part.tokens == self.tokenizer.unk_id).sum()),
                )
                if number == index == 0:  # a wrong vocabulary is noticed early
                    self.check_unknown(counts, f"the beginning of {self.settings.text.source}")
                for duplicate in range(settings.num_duplicates):
                    place = (number, index, duplicate)
                    batch = make_examples(part, settings, self.tokenizer, masks, place, schema)
                    bins = (counts["examples"] + number + np.arange(len(batch))) % num_bins
                    dealt = batch.take(array(np.argsort(bins, kind="stable")))
                    edges = offsets_of(np.bincount(bins, minlength=num_bins)).tolist()
                    for start, stop in itertools.pairwise(edges):
                        writer.write_batch(dealt.slice(start, stop - start))
                    random_next = values_of(batch.column("is_random_next")).sum() if settings.next_sentence else 0
                    counts.update(examples=len(batch), random_next=int(random_next))
            write_json(self.unit_path(number).with_suffix(".json"), counts)

    def counts(self) -> Counter[str]:
        """What all units hold together."""
        total = Counter[str]()
        for number in range(len(self.units)):
            total.update(read_json(self.unit_path(number).with_suffix(".json")))
        return total

    def check_unknown(self, counts: Counter[str], source: str) -> None:
        """Raises InputError if too many of the tokens counted are [UNK]."""
        share = counts["unknown"] / counts["tokens"]
        check_unknown(share, source, self.tokenizer, self.settings.unknown.allow_unknown)

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
            sink = HashingWriter(file)
            if settings.format == "arrow":
                sizes = write_arrow(sink, batches, schema, settings.recorded())
            else:
                sizes = write_records(sink, batches, settings.max_seq_length, settings.max_predictions_per_seq)
        if not sizes:
            raise InputError(f"--num_shards is {self.num_shards}: too many for this text, a shard would be empty")
        facts = {"file": path.name, "examples": sum(sizes), "bytes": sink.size, "sha256": sink.sha256()}
        write_json(self.shard_marker(number), facts | {"batches": sizes}, indent=None)

    def _bin(self, number: int) -> pa.RecordBatch:
        """The examples of a bin, in the order of their keys."""
        num_bins, parts = self.num_shards * self.bins_per_shard, list[pa.RecordBatch]()
        for unit in range(len(self.units)):
            with pa.OSFile(str(self.unit_path(unit))) as source:
                reader = pa.ipc.open_file(source)
                parts += map(reader.get_batch, range(number, reader.num_record_batches, num_bins))
        for examples in pa.Table.from_batches(parts).combine_chunks().to_batches():
            order = np.argsort(values_of(examples.column("key")), kind="stable")
            return examples.drop_columns(["key"]).take(array(order))
        return parts[0].drop_columns(["key"])

    # -- what decides the result ----------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        """Everything that decides the result, as stored in the manifest."""
        text = self.settings.text
        return {
            "format_version": FORMAT_VERSION,
            "settings": self.settings.examples.recorded(),
            "num_shards": self.settings.num_shards or "by size",
            "tokenizer_digest": self.tokenizer.digest,
            "vocab_size": self.tokenizer.vocab_size,
            "do_lower_case": self.tokenizer.lower_case,
            "input": flat(text) | {"digest of the input files' names and sizes": digest(input_sizes(text))},
        }
