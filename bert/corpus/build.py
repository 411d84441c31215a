"""Sharded pretraining corpora: build, verify, open.

`build` goes three times through the corpus, with files between the passes in `output_dir/.work`: text -> token ids
(corpus_tokens.py), token ids -> examples (corpus_examples.py), examples -> shards in one random order over the
whole corpus (corpus_shards.py). What each piece of work gives depends on the input and the settings alone, so the
bytes are the same on any number of workers and hosts, and a build that was killed goes on where it was.

An Arrow shard has the columns
  input_ids           large_list<uint16, or int32 above 65,536 entries>: [CLS] A [SEP] B [SEP], without padding
  sentence_a_tokens   int32: how many leading tokens are of type 0
  is_random_next      int8: 1 when B does not follow A; absent without next-sentence prediction
and with static masks (then input_ids are masked already)
  masked_lm_positions large_list<int32>, sorted;  masked_lm_ids, in the type of input_ids: what stood there
"""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bert.corpus.builder import Builder, Settings, shard_marker
from bert.corpus.documents import Source, documents, find_units
from bert.corpus.encoder import Words
from bert.corpus.shards import (
    MANIFEST,
    TOKENIZER,
    differences,
    find_shards,
    open_table,
    read_manifest,
    tokenizer_folder,
    total,
    verify,
)
from bert.corpus.tokens import batches, sync_folder, unit_path, write_json
from bert.corpus.workers import Workers
from bert.text.tokenizer import Tokenizer, check_unknown, unknown_share
from ringbert.errors import InputError

__all__ = ["Settings", "build", "find_shards", "open_table", "read_manifest", "tokenizer_folder", "verify"]

CHECKED_CHARACTERS = 1 << 17  # before the work begins
MOST_RANDOM_NEXT = 0.9


def build(
    source: Source,
    settings: Settings,
    tokenizer: Tokenizer,
    output_dir: Path,
    *,
    workers: Workers,
    share: tuple[int, int] = (0, 1),
    barrier: Callable[[], None] = lambda: None,
    allow_unknown: bool = False,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Makes the shards, the folder `tokenizer` and, last, the manifest, which it returns.

    Args:
      workers: the processes of this rank, or none.
      share: this rank's number and how many ranks build together, on a file system that all see.
      barrier: returns when every rank has called it.
    Raises InputError: unreadable input; more than 10 % of the tokens are [UNK] and not `allow_unknown`; an
      `output_dir` with the work or the corpus of other settings; too few documents or examples.
    """
    rank, num_ranks = share
    units, empty = find_units(source)
    words = Words.of(tokenizer, settings.masking == "static" and settings.do_whole_word_mask)
    builder = Builder(source, settings, words, output_dir, tuple(units))
    if (output_dir / MANIFEST).is_file():
        return _finished(builder, say)
    if empty:
        say(
            f"warning: {len(empty)} input file{'s are' if len(empty) > 1 else ' is'} empty: {', '.join(empty[:3])}"
        )
    if rank == 0:
        _prepare(builder)
        if not allow_unknown and not unit_path(builder.work, 0).is_file():
            _check_first(builder, tokenizer)
    barrier()
    _check_same_work(builder)

    workers.work_on(builder)
    workers.run("tokenize", _missing(builder.is_tokenized, range(rank, len(units), num_ranks)), "units of text")
    barrier()
    _check_counts(builder, tokenizer, allow_unknown)
    tasks = range(rank, len(builder.tasks), num_ranks)
    workers.run("sample", _missing(builder.is_sampled, tasks), "blocks of examples")
    barrier()
    num_shards, num_examples = builder.num_shards, total(builder.task_counts, "examples")
    if num_examples < num_shards:
        raise InputError(f"--num_shards {num_shards} is more than the corpus has examples ({num_examples})")
    shards = range(rank, num_shards, num_ranks)
    workers.run("write", _missing(builder.is_written, shards), "shards")
    barrier()
    if rank == 0:
        _finish(builder, tokenizer, say)
    barrier()
    return read_manifest(output_dir)


def _missing(is_done: Callable[[int], bool], numbers: Sequence[int]) -> list[int]:
    return [number for number in numbers if not is_done(number)]


# -- what is there already ----------------------------------------------------------------------------------------


def _finished(builder: Builder, say: Callable[[str], None]) -> dict[str, Any]:
    manifest = read_manifest(builder.output_dir, "--output_dir")
    _refuse_others({name: manifest[name] for name in builder.facts}, builder, "a finished corpus")
    shutil.rmtree(builder.work, ignore_errors=True)
    say(f"{builder.output_dir} is complete: nothing to do")
    return manifest


def _prepare(builder: Builder) -> None:
    path, mine = builder.work / "settings.json", builder.facts | {"changed": builder.changed}
    if path.is_file() and json.loads(path.read_text(encoding="utf-8")) != mine:
        if any(builder.work.glob("unit-*.json")):
            _refuse_others(json.loads(path.read_text(encoding="utf-8")), builder, "the unfinished work")
        shutil.rmtree(builder.work)
    builder.work.mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        write_json(path, mine, indent=1)


def _check_same_work(builder: Builder) -> None:
    stored = json.loads((builder.work / "settings.json").read_text(encoding="utf-8"))
    _refuse_others(stored, builder, "the work")


def _refuse_others(stored: dict[str, Any], builder: Builder, what: str) -> None:
    mine = builder.facts | ({"changed": builder.changed} if "changed" in stored else {})
    told = []
    for name in dict.fromkeys([*stored, *mine]):
        if different := differences(stored.get(name), mine.get(name)):
            told.append("an input file was changed" if name == "changed" else f"{name}: {different}")
    if told:
        raise InputError(
            f"--output_dir {builder.output_dir} holds {what} of other settings than now: {'; '.join(told)}: "
            "give another --output_dir, or remove this one"
        )


# -- checks -------------------------------------------------------------------------------------------------------


def _check_first(builder: Builder, tokenizer: Tokenizer) -> None:
    """Tokenizes the beginning of the corpus, so that a wrong vocabulary is noticed at once."""
    first = next(batches(documents(builder.units[0], builder.source), CHECKED_CHARACTERS), [])
    ids, _ = builder.encoder([sentence for document in first for sentence in document])
    where = f"{builder.source.input_file or builder.source.dataset_name} (the first {len(ids):,} tokens)"
    check_unknown(unknown_share([ids], tokenizer.unk_id), where, tokenizer, allow_unknown=False)


def _check_counts(builder: Builder, tokenizer: Tokenizer, allow_unknown: bool) -> None:
    counts = builder.unit_counts
    num_documents, where = total(counts, "documents"), builder.source.input_file or builder.source.dataset_name
    if not num_documents:
        raise InputError(f"{where}: there is no text in it")
    check_unknown(total(counts, "unknown") / total(counts, "tokens"), str(where), tokenizer, allow_unknown)
    if num_documents == 1 and builder.settings.next_sentence:
        raise InputError(
            "the corpus is one document, and a random next sentence comes from another one: separate documents by "
            "blank lines (--document_separator), or give --nonext_sentence"
        )


# -- the end ------------------------------------------------------------------------------------------------------


def _finish(builder: Builder, tokenizer: Tokenizer, say: Callable[[str], None]) -> None:
    units, tasks = builder.unit_counts, builder.task_counts
    shards = [json.loads(shard_marker(builder.work, n).read_text()) for n in range(builder.num_shards)]
    folder = builder.output_dir / TOKENIZER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    tokenizer.save(folder)
    counts = {
        "documents": total(units, "documents"),
        "sentences": total(units, "sentences"),
        "tokens": total(units, "tokens"),
        "unknown_share": total(units, "unknown") / total(units, "tokens"),
        "examples": total(tasks, "examples"),
        "examples_with_random_next": total(tasks, "random_next"),
        "masked_tokens": total(tasks, "masked"),
    }
    if counts["examples_with_random_next"] > MOST_RANDOM_NEXT * counts["examples"]:
        say(
            f"warning: the next sentence is random in {counts['examples_with_random_next']:,} of "
            f"{counts['examples']:,} examples, as documents of one sentence have no other: check "
            "--document_separator and --split_sentences, or give --nonext_sentence"
        )
    write_json(builder.work / MANIFEST, builder.facts | {"counts": counts, "shards": shards}, indent=1)
    (builder.work / MANIFEST).replace(builder.output_dir / MANIFEST)
    sync_folder(builder.output_dir)
    shutil.rmtree(builder.work)
