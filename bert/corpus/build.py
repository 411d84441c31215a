"""Builds a corpus of sharded pretraining examples, in passes over numbered pieces of work.

`make_unit` turns a unit of text into an Arrow file in `output_dir/.work`, whose record batches deal
its examples to the shards. `make_shard` reads its record batches from all units, and sorts them by
random keys. `make_slice` finds the documents that repeat an earlier one by digests of all: behind
the units, which write them, to count such documents; or, to leave them out, before the units and
behind `make_digest`. The result of each piece depends only on the input and the settings. So any
number of workers and hosts write the same bytes, and a build that was killed continues with the
files that it finds.
"""

import functools
import itertools
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from bert.corpus import duplicates, shards
from bert.corpus.duplicates import Digests
from bert.corpus.examples import Part, make_examples, parts_of, room_for_pairs
from bert.corpus.read import documents
from bert.corpus.report import Tally, report_of
from bert.corpus.settings import BuildSettings
from bert.corpus.units import find_units, input_sizes
from bert.corpus.words import Encoder
from bert.text.tokenizer import Tokenizer, check_unknown
from ringbase.errors import InputError
from ringbase.files import digest, read_json, replacing, sha256, write_json
from ringbase.settings import flat

# Bytes of text per shard unless --num_shards is given. A small corpus gets smaller shards, so that
# several workers can write it.
SHARD_BYTES, SMALLEST_SHARD_BYTES, MOST_SMALL_SHARDS = 256 << 20, 8 << 20, 16
# of a record batch of about 256 KiB, the piece of a shard that training reads and checks
BATCH_TOKENS = 1 << 17
TAKEN_ROWS = 1024
MOST_RANDOM_NEXT = 0.9
MOST_CUT = 0.01  # of the tokens, beyond the length of a row
LONG_DOCUMENT = 2000  # sentences
PROGRESS_EVERY_S = 30.0
REPORT = "report.json"
T = TypeVar("T")


class Alone:
    """One process that builds alone; `World` is several ranks."""

    share = 0, 1  # its number, and how many there are

    def on_first(self, function: Callable[..., T], *args) -> T:
        return function(*args)

    def barrier(self) -> None:
        pass

    def say(self, text: str) -> None:
        print(text)


class Builders(Protocol):
    """Those that build together, on a file system that they share."""

    @property
    def share(self) -> tuple[int, int]:
        """This rank's number, and how many there are."""

    def on_first(self, function: Callable[..., T], *args) -> T:
        """The result of a call on the first rank; all wait for it."""

    def barrier(self) -> None:
        """Returns when every rank has called it."""

    def say(self, text: str) -> None:
        """Prints a line once."""


def build(
    settings: BuildSettings,
    tokenizer: Tokenizer,
    *,
    num_workers: int,
    ranks: Builders | None = None,
) -> shards.Manifest:
    """Writes the shards, the folder `tokenizer`, report.json and, last, the manifest, which it
    returns.

    The `ranks` build together, each with `num_workers` processes; by default one does.

    Raises InputError: the input cannot be read; more than 10 % of its tokens are [UNK]; the folder
    holds a corpus,
      or unfinished work, with other settings; there are too few documents or examples.
    """
    ranks = ranks or Alone()
    rank, num_ranks = ranks.share
    say = ranks.say
    work = CorpusWork(settings, tokenizer)
    facts = work.facts()
    if (work.output_dir / shards.MANIFEST).is_file():
        manifest = shards.read_manifest(work.output_dir, "--output_dir")
        work.refuse_others(manifest, facts)
        say(f"{work.output_dir} is complete: nothing to do")
        return manifest
    ranks.on_first(work.begin, facts)

    def made(what, number):
        """The JSON files that mark pieces of work as done; all ranks together do those that are
        missing."""
        paths = [work.result_path(what, n) for n in range(number)]
        missing = [n for n in range(rank, number, num_ranks) if not paths[n].is_file()]
        began_s = reported_s = time.monotonic()
        for done, _ in enumerate(_calls(work, what, missing, num_workers), 1):
            if time.monotonic() - reported_s > PROGRESS_EVERY_S:
                reported_s = time.monotonic()
                say(f"{what}s: {done:,} of {len(missing):,}, {reported_s - began_s:.0f} s")
        ranks.barrier()
        return paths

    def repeated(units):
        """How many documents repeat an earlier one; `units`: the JSON files of their digests."""
        slices = made("slice", work.num_slices)
        return sum(read_json(path)["repeated"] for path in (*units, *slices))

    try:
        num_units = len(work.units)
        if settings.deduplicate:
            num_repeated = repeated(made("digest", num_units))
        counts, tally = Counter[str](), Tally()
        units = made("unit", num_units)
        for path in units:
            result = read_json(path)
            counts.update(result["counts"])
            tally.add(result["report"])
        facts["counts"] = work.checked(counts, say)
        if not settings.deduplicate:
            num_repeated = repeated(units)
        report = report_of(tally, facts["counts"], num_repeated, settings.deduplicate)
        results = made("shard", work.num_shards)
        ranks.on_first(work.finish, facts, results, report)
    except InputError:
        work.refused.touch()
        raise
    return shards.read_manifest(work.output_dir)


class CorpusWork:
    """A build, as its workers see it."""

    def __init__(self, settings: BuildSettings, tokenizer: Tokenizer):
        self.settings = settings
        self.tokenizer = tokenizer
        self.units = find_units(settings.text)
        self.output_dir = Path(settings.output_dir).expanduser()
        self.folder = self.output_dir / ".work"
        self.stated = self.folder / "settings.json"
        self.refused = self.folder / "refused"  # marks work that ended with an InputError
        text_size = sum(piece.size for unit in self.units for piece in unit)
        size = text_size * settings.examples.num_duplicates
        small = min(MOST_SMALL_SHARDS, size // SMALLEST_SHARD_BYTES)
        self.num_shards = settings.num_shards or max(-(-size // SHARD_BYTES), small, 1)
        self.schema = shards.schema_of(settings.examples, tokenizer.vocab_size)
        self.encoder = Encoder(tokenizer)

    def facts(self) -> shards.Manifest:
        """Everything that decides the result, as stored in the manifest."""
        text = self.settings.text
        # only where it is given, so that corpora of earlier versions stay what they are
        drops = {"deduplicate": True} if self.settings.deduplicate else {}
        return {
            "format_version": shards.FORMAT_VERSION,
            "settings": self.settings.examples.recorded(),
            "num_shards": self.settings.num_shards or "by size",
            "tokenizer_digest": self.tokenizer.digest,
            "vocab_size": self.tokenizer.vocab_size,
            "do_lower_case": self.tokenizer.lower_case,
            "input": {
                **flat(text),
                **drops,
                "digest of the input files' names and sizes": digest(input_sizes(text)),
            },
        }

    def begin(self, facts: shards.Manifest) -> None:
        """Makes the folder for unfinished work, or keeps that of a killed build with these
        settings. What a refused build has left gives way to the corrected command. Raises as
        `refuse_others`."""
        if any(self.folder.glob("unit-*")) or any(self.folder.glob("digest-*")):
            stored = read_json(self.stated)
            if self.refused.is_file() and shards.differences(stored, facts, facts):
                shutil.rmtree(self.folder)
                for path in self.output_dir.glob("shard-*-of-*.arrow"):
                    path.unlink()
            else:
                self.refuse_others(stored, facts)
        self.refused.unlink(missing_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.stated, facts, indent=1)

    def finish(
        self, facts: shards.Manifest, results: Sequence[Path], report: Mapping[str, Any]
    ) -> None:
        """Writes the tokenizer, the report and the manifest. `results`: the JSON file of each
        shard."""
        folder = self.output_dir / shards.TOKENIZER
        shutil.rmtree(folder, ignore_errors=True)
        self.tokenizer.save(folder)
        facts["tokenizer_files"] = {path.name: sha256(path) for path in sorted(folder.iterdir())}
        facts["shards"] = [read_json(path) for path in results]
        write_json(self.output_dir / REPORT, report, indent=1)
        shards.write_manifest(self.output_dir, facts)
        shutil.rmtree(self.folder)

    def refuse_others(self, stored: shards.Manifest, facts: shards.Manifest) -> None:
        """Raises InputError if what the folder holds was made with other settings."""
        if different := shards.differences(stored, facts, facts):
            raise InputError(
                f"--output_dir {self.output_dir} holds a corpus, or a part of one, with other"
                f" settings: {different}: give another --output_dir, or remove this one"
            )

    def checked(self, counts: Counter[str], say: Callable[[str], None]) -> dict[str, float]:
        """The counts of all units, for the manifest. Raises InputError if they hold no corpus."""
        settings, examples = self.settings.examples, counts["examples"]
        if not examples:
            raise InputError(f"{self.settings.text.source} contains no text")
        if counts["documents"] == 1 and settings.next_sentence:
            raise InputError(
                "the corpus is one document, but a random next sentence must come from another one:"
                " separate documents by blank lines, or give --document_separator line if each line"
                " is a document, or --nonext_sentence"
            )
        if counts["random_next"] > MOST_RANDOM_NEXT * examples:
            say(
                f"warning: the next sentence is random in {counts['random_next']:,} of {examples:,}"
                " examples, because documents of one sentence have no other: check"
                " --document_separator and --split_sentences, or give --nonext_sentence"
            )
        if counts["cut_tokens"] > MOST_CUT * counts["tokens"]:
            say(self.warning_of_cuts(counts))
        if counts["long_documents"]:
            say(
                f"warning: {counts['long_documents']:,} of {counts['documents']:,} documents have"
                f" more than {LONG_DOCUMENT:,} sentences: if their lines have nothing to do with"
                " each other, as in a file of reviews, give --document_separator line, else file"
            )
        return {**counts, "unknown_share": self.unknown_share(counts)}

    def unknown_share(self, counts: Counter[str], where: str = "") -> float:
        """The share of [UNK] in these counts. Raises InputError if it is too large."""
        share = counts["unknown"] / counts["tokens"]
        source = f"{where}{self.settings.text.source}"
        check_unknown(share, source, self.tokenizer, self.settings.allow_unknown)
        return share

    def warning_of_cuts(self, counts: Counter[str]) -> str:
        """That sentences are longer than a row."""
        unit, advice = "lines", "give --split_sentences if lines are paragraphs"
        if self.settings.text.split_sentences:
            unit, advice = "sentences", "raise --max_seq_length"
        share = counts["cut_tokens"] / counts["tokens"]
        return (
            f"warning: {counts['cut_tokens']:,} of {counts['tokens']:,} tokens ({share:.0%}) are"
            f" cut off, because {counts['cut_sentences']:,} of {counts['sentences']:,} {unit} are"
            f" longer than a row: {advice}, or --nonext_sentence, which cuts nothing"
        )

    def result_path(self, what: str, number: int) -> Path:
        """The JSON file that marks a piece of work as done, and holds what is known of it."""
        return self.folder / f"{what}-{number:06d}.json"

    def make(self, what: str, number: int) -> None:
        makers = {
            "digest": self.make_digest,
            "slice": self.make_slice,
            "unit": self.make_unit,
            "shard": self.make_shard,
        }
        write_json(self.result_path(what, number), makers[what](number), indent=None)

    def make_digest(self, number: int) -> dict[str, int]:
        """Writes the digests of a unit's documents."""
        digests = Digests(self.folder, number)
        for _ in digests.of(documents(self.units[number], self.settings.text)):
            pass
        return {"runs": digests.num_runs, "repeated": digests.num_repeated}

    @functools.cached_property
    def runs(self) -> Sequence[duplicates.Run]:
        """Those of all units, in their order, when all are written."""
        what = "digest" if self.settings.deduplicate else "unit"
        return [run for unit in range(len(self.units)) for run in self.runs_of(what, unit)]

    @functools.cached_property
    def num_slices(self) -> int:
        return duplicates.num_slices(self.runs)

    def runs_of(self, what: str, unit: int) -> Sequence[duplicates.Run]:
        """Those that a piece of work has written."""
        number = read_json(self.result_path(what, unit))["runs"]
        return [duplicates.Run(self.folder, unit, place) for place in range(number)]

    def make_slice(self, number: int) -> dict[str, int]:
        """Writes which documents repeat an earlier one, of a slice of all digests."""
        repeated = duplicates.repeated_in(self.runs, number, self.num_slices)
        duplicates.write_array(self.result_path("slice", number).with_suffix(".npy"), repeated)
        return {"repeated": len(repeated)}

    def make_unit(self, number: int) -> dict[str, Any]:
        """Writes the examples of a unit: a record batch for each shard, again for each part and
        duplicate."""
        counts, tally, digests = Counter[str](), Tally(), Digests(self.folder, number)
        read = documents(self.units[number], self.settings.text)
        if self.settings.deduplicate:
            files = [run.repeated for run in self.runs_of("digest", number)]
            for of_slice in range(self.num_slices):
                files.append(self.result_path("slice", of_slice).with_suffix(".npy"))
            used = duplicates.without(read, duplicates.numbers_of(number, files))
        else:
            used = digests.of(read)
        settings = self.settings.examples
        schema = self.schema.append(pa.field("key", pa.uint64()))
        parts = parts_of(tally.of(used), self.encoder)
        path = self.result_path("unit", number).with_suffix(".arrow")
        with replacing(path) as file, pa.ipc.new_file(file, schema) as writer:
            for index, part in enumerate(parts):
                counts.update(
                    documents=len(part.documents) - 1,
                    sentences=len(part.sentences) - 1,
                    tokens=len(part.tokens),
                    unknown=int((part.tokens == self.tokenizer.unk_id).sum()),
                    **self.counts_of_lengths(part, number),
                )
                tally.add_lengths(np.diff(part.sentences[part.documents]))
                if number == index == 0:  # a wrong vocabulary is noticed early
                    self.unknown_share(counts, "the beginning of ")
                for duplicate in range(settings.num_duplicates):
                    place = number, index, duplicate
                    batch = make_examples(part, settings, self.tokenizer, place, schema)
                    # in turn: the units begin with different shards
                    dealt = counts["examples"] + number
                    for shard in range(self.num_shards):
                        first = (shard - dealt) % self.num_shards
                        rows = np.arange(first, len(batch), self.num_shards)
                        writer.write_batch(shards.taken(batch, rows))
                    counts["examples"] += len(batch)
                    if settings.next_sentence:
                        is_random = np.from_dlpack(batch.column("is_random_next"))
                        counts["random_next"] += int(is_random.sum())
        return {
            "counts": counts,
            "report": tally.as_json(),
            "runs": digests.num_runs,
            "repeated": digests.num_repeated,
        }

    def counts_of_lengths(self, part: Part, unit: int) -> dict[str, int]:
        """How many sentences do not fit a row with a next sentence, and their tokens beyond it;
        and, where blank lines end documents, how many are so long that these lines may be
        missing."""
        settings = self.settings
        counts = dict[str, int]()
        if settings.examples.next_sentence:
            excess = np.diff(part.sentences) - room_for_pairs(settings.examples)
            excess = excess[excess > 0]
            counts = {"cut_sentences": len(excess), "cut_tokens": int(excess.sum())}
        is_text = any(piece.kind == "text" for piece in self.units[unit])
        if is_text and settings.text.document_separator == "blank":
            counts["long_documents"] = int((np.diff(part.documents) > LONG_DOCUMENT).sum())
        return counts

    def make_shard(self, number: int) -> dict[str, Any]:
        """Writes a shard: its examples from all units, in the order of their keys. Its entry for
        the manifest."""
        examples = pa.concat_batches(self.dealt_to(number))
        if not len(examples):
            raise InputError(
                f"--num_shards is {self.num_shards}: too many for this text, a shard would be empty"
            )
        keys = np.from_dlpack(examples.column("key"))
        examples = examples.drop_columns(["key"])
        order = np.argsort(keys, kind="stable")
        # A part at a time, as `take` makes an index of 8 bytes for each value.
        parts = []
        for start in range(0, len(order), TAKEN_ROWS):
            part = order[start : start + TAKEN_ROWS]
            parts.append(shards.taken(examples, part))
        examples = pa.concat_batches(parts)
        settings = self.settings.examples
        rows = max(1, BATCH_TOKENS // settings.max_seq_length)
        batches = (examples.slice(start, rows) for start in range(0, len(examples), rows))
        path = self.output_dir / f"shard-{number:05d}-of-{self.num_shards:05d}.arrow"
        return shards.write_shard(path, batches, self.schema, settings.recorded())

    def dealt_to(self, shard: int) -> Iterator[pa.RecordBatch]:
        for unit in range(len(self.units)):
            path = self.result_path("unit", unit).with_suffix(".arrow")
            with pa.OSFile(str(path)) as source:
                reader = pa.ipc.open_file(source)
                for number in range(shard, reader.num_record_batches, self.num_shards):
                    yield reader.get_batch(number)


# -- worker processes ------------------------------------------------------------------------------

_work: CorpusWork  # of a worker process


def _calls(work: CorpusWork, what: str, numbers: Sequence[int], num_workers: int) -> Iterator[None]:
    """Makes these pieces of work, with several workers in new processes, which end when their
    parent ends."""
    num_workers = min(num_workers, len(numbers))
    if num_workers <= 1:
        yield from map(work.make, itertools.repeat(what), numbers)
        return
    context = multiprocessing.get_context("spawn")  # a fork after MPI has started is unsafe
    try:
        with ProcessPoolExecutor(num_workers, context, _start, (work,)) as pool:
            yield from pool.map(_call, itertools.repeat(what), numbers)
    except BrokenProcessPool as error:
        raise RuntimeError(
            "a worker process was killed (out of memory?): run the same command again to continue;"
            " fewer --num_workers need less memory"
        ) from error


def _start(work: CorpusWork) -> None:
    def end_with_parent():
        if parent := multiprocessing.parent_process():
            parent.join()
        os._exit(1)

    global _work
    _work = work
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a worker per core
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    threading.Thread(target=end_with_parent, daemon=True).start()


def _call(what: str, number: int) -> None:
    _work.make(what, number)
