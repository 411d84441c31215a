"""Builds a corpus of sharded pretraining examples, in two passes over numbered pieces of work (work.py).

The result of each piece depends only on the input and the settings. So any number of workers and hosts write the
same bytes, and a build that was killed continues with the files that it finds.
"""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from bert.corpus.manifest import MANIFEST, TOKENIZER, Manifest, differences, read_manifest, write_manifest
from bert.corpus.settings import BuildSettings
from bert.corpus.units import find_units
from bert.corpus.work import CorpusWork
from bert.corpus.workers import call_all
from bert.text.tokenizer import Tokenizer
from ringbase.errors import InputError
from ringbase.files import write_json
from ringbase.hashing import sha256
from ringbase.json_files import read_json

MOST_RANDOM_NEXT = 0.9


def build(
    settings: BuildSettings,
    tokenizer: Tokenizer,
    *,
    num_workers: int,
    share: tuple[int, int] = (0, 1),
    barrier: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = print,
) -> Manifest:
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
    if (work.output_dir / MANIFEST).is_file():
        manifest = read_manifest(work.output_dir, "--output_dir")
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
    counts = work.counts()
    _check_counts(counts, work)
    make("shards", work.make_shard, work.shard_marker, work.num_shards)
    if rank == 0:
        _finish(work, facts, counts, say)
    barrier()
    return read_manifest(work.output_dir)


def _refuse_others(stored: Manifest, facts: Manifest, work: CorpusWork, what: str) -> None:
    if different := differences(stored, facts):
        raise InputError(
            f"--output_dir {work.output_dir} holds {what} with other settings: {different}: give another "
            "--output_dir, or remove this one"
        )


def _check_counts(counts: Counter[str], work: CorpusWork) -> None:
    source = work.settings.text.source
    if not counts["examples"]:
        raise InputError(f"{source} contains no text")
    work.check_unknown(counts, source)
    if counts["documents"] == 1 and work.settings.examples.next_sentence:
        raise InputError(
            "the corpus is one document, but a random next sentence must come from another one: separate "
            "documents by blank lines (--document_separator), or give --nonext_sentence"
        )


def _finish(work: CorpusWork, facts: Manifest, counts: Counter[str], say: Callable[[str], None]) -> None:
    """Writes the tokenizer and the manifest, and removes the unfinished work."""
    if counts["random_next"] > MOST_RANDOM_NEXT * counts["examples"]:
        say(
            f"warning: the next sentence is random in {counts['random_next']:,} of {counts['examples']:,} "
            "examples, because documents of one sentence have no other: check --document_separator and "
            "--split_sentences, or give --nonext_sentence"
        )
    folder = work.output_dir / TOKENIZER
    shutil.rmtree(folder, ignore_errors=True)
    work.tokenizer.save(folder)
    unknown_share = counts.pop("unknown") / counts["tokens"]
    manifest = facts | {
        "counts": counts | {"unknown_share": unknown_share},
        "tokenizer_files": {path.name: sha256(path) for path in sorted(folder.iterdir())},
        "shards": [read_json(work.shard_marker(number)) for number in range(work.num_shards)],
    }
    write_manifest(work.output_dir, manifest)
    shutil.rmtree(work.folder)
