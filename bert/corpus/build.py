"""Builds a corpus of sharded pretraining examples, in two passes over numbered pieces of work.

`make_unit` turns a unit of text into examples: an Arrow file in `output_dir/.work`, whose record batches deal the
examples to the bins of the corpus. `make_shard` reads its bins from all units, and sorts each by random keys.

The result of each piece depends only on the input and the settings. So any number of workers and hosts write the
same bytes, and a build that was killed continues with the files that it finds.
"""

import functools
import itertools
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from bert.corpus import shards
from bert.corpus.columns import array, schema_of, values_of
from bert.corpus.examples import make_examples, parts_of
from bert.corpus.masking import Masking
from bert.corpus.read import documents
from bert.corpus.settings import BuildSettings
from bert.corpus.tfrecord import write_records
from bert.corpus.units import Unit, find_units, input_sizes
from bert.corpus.words import Encoder
from bert.corpus.workers import call_all
from bert.text.tokenizer import Tokenizer, check_unknown
from ringbase.errors import InputError
from ringbase.files import replacing, write_json
from ringbase.hashing import digest, sha256
from ringbase.json_files import read_json
from ringbase.ragged import offsets_of
from ringbase.settings import flat

# Bytes of text per shard unless --num_shards is given. A small corpus gets smaller shards, so that several workers
# can write it.
SHARD_BYTES, SMALLEST_SHARD_BYTES, MOST_SMALL_SHARDS = 256 << 20, 8 << 20, 16
BIN_BYTES = 128 << 20  # of text, whose examples are sorted in memory at once
BATCH_TOKENS = 1 << 17  # of a record batch of about 256 KiB, the piece of a shard that training reads and checks
MOST_RANDOM_NEXT = 0.9

encoder_of = functools.lru_cache(1)(Encoder)  # a worker's, which remembers words


def build(
    settings: BuildSettings,
    tokenizer: Tokenizer,
    *,
    num_workers: int,
    share: tuple[int, int] = (0, 1),
    barrier: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = print,
) -> shards.Manifest:
    """Writes the shards, the folder `tokenizer` and, last, the manifest, which it returns.

    Args:
      num_workers: worker processes of this rank.
      share: this rank's number and the number of ranks that build together, on a file system that they share.
      barrier: returns when every rank has called it.
    Raises InputError: the input cannot be read; more than 10 % of its tokens are [UNK]; the folder holds a corpus,
      or unfinished work, with other settings; there are too few documents or examples.
    """
    rank, num_ranks = share
    work = CorpusWork(settings, tokenizer, tuple(find_units(settings.text)))
    facts, unfinished = work.facts(), work.folder / "settings.json"
    if (work.output_dir / shards.MANIFEST).is_file():
        manifest = shards.read_manifest(work.output_dir, "--output_dir")
        _refuse_others({name: manifest.get(name) for name in facts}, facts, work, "a finished corpus")
        say(f"{work.output_dir} is complete: nothing to do")
        return manifest
    if rank == 0:
        if any(work.folder.glob("unit-*")):
            _refuse_others(read_json(unfinished), facts, work, "unfinished work")
        work.folder.mkdir(parents=True, exist_ok=True)
        write_json(unfinished, facts, indent=1)
    barrier()

    def make(what: str, function: Callable[[int], None], path: Callable[[int], Path], number: int) -> None:
        missing = [n for n in range(rank, number, num_ranks) if not path(n).is_file()]
        call_all(function, missing, num_workers, lambda progress: say(f"{what}: {progress}"))
        barrier()

    make("units of text", work.make_unit, work.unit_path, len(work.units))
    counts = work.checked_counts()
    make("shards", work.make_shard, work.shard_marker, work.num_shards)
    if rank == 0:
        if counts["random_next"] > MOST_RANDOM_NEXT * counts["examples"]:
            say(
                f"warning: the next sentence is random in {counts['random_next']:,} of {counts['examples']:,} "
                "examples, because documents of one sentence have no other: check --document_separator and "
                "--split_sentences, or give --nonext_sentence"
            )
        unknown_share = counts.pop("unknown") / counts["tokens"]
        _finish(work, facts | {"counts": {**counts, "unknown_share": unknown_share}})
    barrier()
    return shards.read_manifest(work.output_dir)


def _refuse_others(stored: shards.Manifest, facts: shards.Manifest, work: "CorpusWork", what: str) -> None:
    if different := shards.differences(stored, facts):
        raise InputError(
            f"--output_dir {work.output_dir} holds {what} with other settings: {different}: give another "
            "--output_dir, or remove this one"
        )


def _finish(work: "CorpusWork", facts: shards.Manifest) -> None:
    """Writes the tokenizer and the manifest, and removes the unfinished work."""
    folder = work.output_dir / shards.TOKENIZER
    shutil.rmtree(folder, ignore_errors=True)
    work.tokenizer.save(folder)
    files = {path.name: sha256(path) for path in sorted(folder.iterdir())}
    entries = [read_json(work.shard_marker(number)) for number in range(work.num_shards)]
    shards.write_manifest(work.output_dir, facts | {"tokenizer_files": files, "shards": entries})
    shutil.rmtree(work.folder)


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
        return self.output_dir / shards.WORK

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

    def facts(self) -> shards.Manifest:
        """Everything that decides the result, as stored in the manifest."""
        text = self.settings.text
        return {
            "format_version": shards.FORMAT_VERSION,
            "settings": self.settings.examples.recorded(),
            "num_shards": self.settings.num_shards or "by size",
            "tokenizer_digest": self.tokenizer.digest,
            "vocab_size": self.tokenizer.vocab_size,
            "do_lower_case": self.tokenizer.lower_case,
            "input": flat(text) | {"digest of the input files' names and sizes": digest(input_sizes(text))},
        }

    # -- first pass: a unit of text -> examples -------------------------------------------------------------------

    def unit_path(self, number: int) -> Path:
        """The examples of a unit: a record batch for each bin, again for each part and duplicate. Their counts
        are in a JSON file beside it."""
        return self.folder / f"unit-{number:06d}.arrow"

    def make_unit(self, number: int) -> None:
        settings, num_bins, masks = self.settings.examples, self.num_shards * self.bins_per_shard, None
        if settings.has_static_masks:
            limits = settings.masked_lm_prob, settings.max_predictions_per_seq
            masks = Masking.of(self.tokenizer, *limits, settings.do_whole_word_mask)
        counts = Counter[str]()
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
                    self._check_unknown(counts, f"the beginning of {self.settings.text.source}")
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

    def checked_counts(self) -> Counter[str]:
        """What all units hold together. Raises InputError if that is no corpus."""
        counts, source = Counter[str](), self.settings.text.source
        for number in range(len(self.units)):
            counts.update(read_json(self.unit_path(number).with_suffix(".json")))
        if not counts["examples"]:
            raise InputError(f"{source} contains no text")
        self._check_unknown(counts, source)
        if counts["documents"] == 1 and self.settings.examples.next_sentence:
            raise InputError(
                "the corpus is one document, but a random next sentence must come from another one: separate "
                "documents by blank lines (--document_separator), or give --nonext_sentence"
            )
        if counts["examples"] < self.num_shards:
            raise InputError(
                f"--num_shards must be at most {counts['examples']} for this text, got {self.num_shards}"
            )
        return counts

    def _check_unknown(self, counts: Counter[str], source: str) -> None:
        share = counts["unknown"] / counts["tokens"]
        check_unknown(share, source, self.tokenizer, self.settings.allow_unknown)

    # -- second pass: bins of all units -> a shard ----------------------------------------------------------------

    def shard_marker(self, number: int) -> Path:
        """The file that marks a shard as written; it holds the shard's entry for the manifest."""
        return self.folder / f"shard-{number:05d}.json"

    def make_shard(self, number: int) -> None:
        settings = self.settings.examples
        rows = max(1, BATCH_TOKENS // settings.max_seq_length)
        bins = map(self._bin, range(number * self.bins_per_shard, (number + 1) * self.bins_per_shard))
        batches = (examples.slice(start, rows) for examples in bins for start in range(0, len(examples), rows))
        path = self.output_dir / f"shard-{number:05d}-of-{self.num_shards:05d}.{settings.format}"
        write = shards.write_arrow if settings.format == "arrow" else write_records
        schema = schema_of(settings, self.tokenizer.vocab_size)
        facts = shards.write_shard(path, write, batches, schema, settings.recorded())
        if not facts["examples"]:
            raise InputError(f"--num_shards is {self.num_shards}: too many for this text, a shard would be empty")
        write_json(self.shard_marker(number), facts, indent=None)

    def _bin(self, number: int) -> pa.RecordBatch:
        """The examples of a bin, in the order of their keys."""
        num_bins, parts = self.num_shards * self.bins_per_shard, list[pa.RecordBatch]()
        for unit in range(len(self.units)):
            with pa.OSFile(str(self.unit_path(unit))) as source:
                reader = pa.ipc.open_file(source)
                parts += map(reader.get_batch, range(number, reader.num_record_batches, num_bins))
        examples = pa.concat_batches(parts)
        order = np.argsort(values_of(examples.column("key")), kind="stable")
        return examples.drop_columns(["key"]).take(array(order))
