"""Builds a corpus of sharded pretraining examples.

A build makes three passes, with intermediate files in `output_dir/.work`: text to token ids (tokens.py), token ids
to examples (examples.py), examples to shards in one random order over the whole corpus (shard_writer.py). The
result of each piece of work depends only on the input and the settings. So any number of workers and hosts write
the same bytes, and a build that was killed continues where it stopped.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bert.corpus.documents import documents
from bert.corpus.encoder import Words
from bert.corpus.inputs import find_units
from bert.corpus.manifest import MANIFEST, read_manifest
from bert.corpus.passes import CorpusWork, total
from bert.corpus.settings import BuildSettings
from bert.corpus.shard_reader import differences
from bert.corpus.shards import TOKENIZER
from bert.corpus.tokens import batches, unit_path
from bert.corpus.workers import Workers
from bert.text.tokenizer import Tokenizer, check_unknown, unknown_share
from ringbase.errors import InputError, shortened
from ringbase.files import write_json
from ringbase.json_files import read_json

CHECKED_CHARACTERS = 1 << 17  # of the text, checked before the work begins
MOST_RANDOM_NEXT = 0.9


def build(
    settings: BuildSettings,
    tokenizer: Tokenizer,
    *,
    workers: Workers,
    share: tuple[int, int] = (0, 1),
    barrier: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Writes the shards, the folder `tokenizer` and, last, the manifest, which it returns.

    Args:
      workers: the worker processes of this rank.
      share: this rank's number and the number of ranks that build together, on a file system that they share.
      barrier: returns when every rank has called it.
    Raises InputError: the input cannot be read; more than 10 % of its tokens are [UNK]; the folder holds a corpus,
      or unfinished work, with other settings; there are too few documents or examples.
    """
    rank, num_ranks = share
    units, empty = find_units(settings)
    words = Words.of(tokenizer, settings.has_static_masks and settings.do_whole_word_mask)
    work = CorpusWork(settings, words, tuple(units))
    if (work.output_dir / MANIFEST).is_file():
        return _finished(work, say)
    if empty:
        say(f"warning: {len(empty)} input file{'s are' if len(empty) > 1 else ' is'} empty: {shortened(empty, 3)}")
    if rank == 0:
        _prepare_folder(work)
        if not settings.allow_unknown and not unit_path(work.folder, 0).is_file():
            _check_beginning(work, tokenizer)
    barrier()
    _refuse_others(read_json(_settings_file(work)), work, "work")

    def run(method: str, is_done: Callable[[int], bool], numbers: range, what: str) -> None:
        workers.run(method, [number for number in numbers[rank::num_ranks] if not is_done(number)], what)
        barrier()

    workers.work_on(work)
    run("tokenize", work.is_tokenized, range(len(units)), "units of text")
    _check_counts(work, tokenizer)
    run("sample", work.is_sampled, range(len(work.tasks)), "blocks of examples")
    num_examples = total(work.task_counts, "examples")
    if num_examples < work.num_shards:
        raise InputError(
            f"--num_shards must be at most the number of examples, {num_examples}, got {work.num_shards}"
        )
    run("write", work.is_written, range(work.num_shards), "shards")
    if rank == 0:
        _finish(work, tokenizer, say)
    barrier()
    return read_manifest(work.output_dir)


# -- existing work in the folder ----------------------------------------------------------------------------------


def _finished(work: CorpusWork, say: Callable[[str], None]) -> dict[str, Any]:
    manifest = read_manifest(work.output_dir, "--output_dir")
    _refuse_others({name: manifest.get(name) for name in work.facts}, work, "a finished corpus")
    shutil.rmtree(work.folder, ignore_errors=True)
    say(f"{work.output_dir} is complete: nothing to do")
    return manifest


def _settings_file(work: CorpusWork) -> Path:
    return work.folder / "settings.json"


def _prepare_folder(work: CorpusWork) -> None:
    path, facts = _settings_file(work), work.facts | {"changed": work.changed}
    if path.is_file() and (stored := read_json(path)) != facts:
        if any(work.folder.glob("unit-*.json")):
            _refuse_others(stored, work, "unfinished work")
        shutil.rmtree(work.folder)
    work.folder.mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        write_json(path, facts, indent=1)


def _refuse_others(stored: dict[str, Any], work: CorpusWork, what: str) -> None:
    facts = work.facts | ({"changed": work.changed} if "changed" in stored else {})
    problems = []
    for name in dict.fromkeys([*stored, *facts]):
        if different := differences(stored.get(name), facts.get(name)):
            problems.append("an input file has changed" if name == "changed" else f"{name}: {different}")
    if problems:
        raise InputError(
            f"--output_dir {work.output_dir} holds {what} with other settings: {'; '.join(problems)}: give "
            "another --output_dir, or remove this one"
        )


# -- checks -------------------------------------------------------------------------------------------------------


def _check_beginning(work: CorpusWork, tokenizer: Tokenizer) -> None:
    """Tokenizes the beginning of the corpus, so that a wrong vocabulary is noticed at once."""
    beginning = next(batches(documents(work.units[0], work.settings), CHECKED_CHARACTERS), [])
    ids, _ = work.encoder([sentence for document in beginning for sentence in document])
    where = f"{_input_name(work)} (the first {len(ids):,} tokens)"
    check_unknown(unknown_share([ids], tokenizer.unk_id), where, tokenizer, allow_unknown=False)


def _check_counts(work: CorpusWork, tokenizer: Tokenizer) -> None:
    counts, settings = work.unit_counts, work.settings
    num_documents = total(counts, "documents")
    if not num_documents:
        raise InputError(f"{_input_name(work)} contains no text")
    share = total(counts, "unknown") / total(counts, "tokens")
    check_unknown(share, _input_name(work), tokenizer, settings.allow_unknown)
    if num_documents == 1 and settings.next_sentence:
        raise InputError(
            "the corpus is one document, but a random next sentence must come from another one: separate "
            "documents by blank lines (--document_separator), or give --nonext_sentence"
        )


def _input_name(work: CorpusWork) -> str:
    return str(work.settings.input_file or work.settings.dataset_name)


# -- the end ------------------------------------------------------------------------------------------------------


def _finish(work: CorpusWork, tokenizer: Tokenizer, say: Callable[[str], None]) -> None:
    units, tasks = work.unit_counts, work.task_counts
    shards = [read_json(work.shard_marker(number)) for number in range(work.num_shards)]
    folder = work.output_dir / TOKENIZER
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
            f"{counts['examples']:,} examples, because documents of one sentence have no other: check "
            "--document_separator and --split_sentences, or give --nonext_sentence"
        )
    write_json(work.output_dir / MANIFEST, work.facts | {"counts": counts, "shards": shards}, indent=1)
    shutil.rmtree(work.folder)
