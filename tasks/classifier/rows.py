"""The classifier's texts as rows of tokens, cut by Google's rules (google-research/bert `run_classifier.py`)."""

import os
from dataclasses import asdict
from functools import cache, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bert.text.tokenizer import Tokenizer, check_unknown, unknown_share
from distributed.run import Run
from distributed.world import World
from ringbase.errors import InputError
from ringbase.files import digest, sha256
from ringbase.ragged import Ragged, joined, offsets_of
from tasks.cache import Prepared, Recipe, Tables, prepared, with_facts
from tasks.classifier.named_tasks import Labels
from tasks.classifier.reading import Source, Texts, read
from tasks.classifier.settings import STANDARD_INPUT, ExampleSettings
from tasks.texts import joined_pairs, parts

VERSION = 3  # increase when reading or the code below writes something else: old folders are not used


def open_set(
    source: Source, labels: Labels, settings: ExampleSettings, tokenizer: Tokenizer, world: World, run: Run
) -> Prepared:
    """The tables of a set, as `tables` makes them, on every rank. Raises InputError as `read` does, and for texts
    with many unknown words."""
    # Open MPI 5's mpirun delivers standard input without an end.
    if source.settings.reads_lines and (world.size > 1 or "PRTE_LAUNCHED" in os.environ):
        raise InputError("--predict_file -: standard input needs one rank, started without mpirun")
    length = settings.max_seq_length
    data = prepared(partial(recipe, source, labels, length, tokenizer, run), str(source), world, run)
    counts = [f"{len(data.tables['examples']):,} examples", f"{data.facts['unknown_share']:.2%} [UNK]"]
    counts += [f"{number:,} {text}" for text, number in data.facts["counts"].items() if number]
    run.say(f"{source}: {', '.join(counts)}" + ("" if data.is_new else " (cached)"))
    check_unknown(data.facts["unknown_share"], str(source), tokenizer, settings.allow_unknown)
    return data


def recipe(source: Source, labels: Labels, max_seq_length: int, tokenizer: Tokenizer, run: Run) -> Recipe:
    """The key in the cache of a set's tables, and what makes them. Files with the same bytes are parsed once."""
    load, part = cache(partial(read, source, labels)), source.part
    files = [path for path in source.files() if path.is_file() and str(path) != STANDARD_INPUT]
    content = [(path.suffixes[-2:], sha256(path)) for path in files] or load()
    facts = [source.task.name, asdict(part.columns), source.needs_labels, source.settings.language, source.limit]
    key = digest("classifier", VERSION, tokenizer.digest, max_seq_length, labels, facts, content)
    return key, lambda: tables(load(), labels, tokenizer, max_seq_length, run)


def tables(texts: Texts, labels: Labels, tokenizer: Tokenizer, max_seq_length: int, run: Run) -> Tables:
    """Tokenizes texts.

    A row of `examples` has `input_ids` ([CLS] first [SEP], plus second [SEP] for a pair; int32),
    `sentence_a_tokens` (how many of them are of type 0; int32) and `label` (its index in `labels`, int32, -1
    without a label; if `labels` is None, the number itself, float32, NaN without a label). A row of `ids` has the
    `id` of the example. The facts are what `open_set` prints, and the digest that checkpoints have of their data.
    """

    def encoded(texts: list[str]) -> Ragged:
        slices = parts(len(texts), "tokenizing", "text", run)
        ids, offsets = zip(*(joined(tokenizer.encode_ids(texts[part])) for part in slices), strict=True)
        return np.concatenate(ids), offsets_of(np.concatenate([*map(np.diff, offsets)]))

    first = encoded(texts.first)
    second = (first[0][:0], np.zeros_like(first[1])) if texts.second is None else encoded(texts.second)
    is_pair = np.full(len(texts.first), texts.second is not None)
    (ids, offsets), sentence_a_tokens = joined_pairs(first, second, is_pair, max_seq_length, tokenizer)
    whole = np.diff(first[1]) + np.diff(second[1]) + 2 + is_pair
    counts = {
        f"cut to --max_seq_length {max_seq_length}": int((np.diff(offsets) < whole).sum()),
        "with an empty text": sum(not text.strip() for text in (*texts.first, *(texts.second or ()))),
        "rows with too few columns left out": texts.num_short_rows,
    }
    label = pa.array(texts.labels or [None] * len(is_pair), pa.float32() if labels is None else pa.string())
    examples = {
        "input_ids": pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(ids)),
        "sentence_a_tokens": pa.array(sentence_a_tokens, pa.int32()),
        "label": label.fill_null(np.nan) if labels is None else pc.index_in(label, pa.array(labels)).fill_null(-1),
    }
    content = [texts.first, texts.second, texts.labels]
    facts = {
        # As version 0.1 made it: a run of its goes on.
        "digest": digest("classifier examples", 1, tokenizer.digest, max_seq_length, labels, content),
        "unknown_share": unknown_share([first[0], second[0]], tokenizer.unk_id),
        "counts": counts,
        "is_labelled": texts.labels is not None,
    }
    return with_facts({"examples": examples, "ids": {"id": pa.array(texts.ids)}}, facts)
