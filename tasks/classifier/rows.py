"""The classifier's texts as rows of tokens, cut by Google's rules (google-research/bert `run_classifier.py`)."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import pyarrow as pa

from bert.text.tokenizer import Tokenizer, check_unknown
from distributed.rows import Rows
from distributed.run import Run
from distributed.world import World
from ringbase.errors import InputError
from ringbase.hashing import digest, sha256
from ringbase.ragged import Ragged, joined, offsets_of
from tasks.cache import Recipe, Tables, prepared, with_facts
from tasks.classifier.named_tasks import Labels
from tasks.classifier.reading import Source, Texts
from tasks.classifier.settings import ExampleSettings
from tasks.classifier.table import file_kind
from tasks.texts import joined_pairs, parts

VERSION = 2  # increase when reading or the code below writes something else: old folders are not used


@dataclass(frozen=True)
class DataSet:
    """A split as rows: `input_ids`, `sentence_a_tokens` and `label` (-1 or NaN for an example without a label).

    `key` is the digest of the content that checkpoints hold.
    """

    source: Source
    rows: Rows
    id_rows: Rows
    key: str

    @property
    def ids(self) -> list[str]:
        """The ids of the examples, for a submission."""
        return np.asarray(self.id_rows.column("id")).tolist()

    @property
    def is_labelled(self) -> bool:
        label = np.asarray(self.rows.column("label"))
        return not bool(np.any(np.isnan(label) if label.dtype.kind == "f" else label < 0))


def open_set(
    source: Source, labels: Labels, settings: ExampleSettings, tokenizer: Tokenizer, world: World, run: Run
) -> DataSet:
    """The tables of a set, as `tables` makes them, on every rank.

    Raises InputError: the set cannot be read; a label is not in `labels`, or is missing; more than 10 % of the
      tokens are [UNK] without `allow_unknown`.
    """
    # Open MPI 5's mpirun delivers standard input without an end.
    if source.is_standard_input and (world.size > 1 or "PRTE_LAUNCHED" in os.environ):
        raise InputError("--predict_file -: standard input needs one rank, started without mpirun")
    data = prepared(partial(recipe, source, labels, settings, tokenizer, run), str(source), world, run)
    facts, rows = data.facts, data.tables["examples"]
    counts = [f"{source}: {len(rows):,} examples, {facts['unknown_share']:.2%} [UNK]"]
    for name, text in (
        ("num_cut", f"cut to --max_seq_length {settings.max_seq_length}"),
        ("num_empty", "with an empty text"),
        ("num_short_rows", "rows with too few columns left out"),
    ):
        if facts[name]:
            counts.append(f"{facts[name]:,} {text}")
    run.say(", ".join(counts) + ("" if data.is_new else " (cached)"))
    check_unknown(facts["unknown_share"], str(source), tokenizer, settings.allow_unknown)
    return DataSet(source, rows, data.tables["ids"], facts["digest"])


def recipe(source: Source, labels: Labels, settings: ExampleSettings, tokenizer: Tokenizer, run: Run) -> Recipe:
    """The key in the cache of a set's tables, and what makes them. Files with the same bytes are not parsed
    again."""
    load, content = cache(source.read), list[object]()
    for file in source.files():
        if file.is_file():
            content += [file_kind(file, str(source)), sha256(file)]
    if not content:
        texts = load()
        content = [texts.first, texts.second, texts.labels, texts.ids]
    length = settings.max_seq_length
    key = digest("classifier", VERSION, tokenizer.digest, length, labels, source.key(), *content)
    return key, lambda: tables(load(), labels, tokenizer, length, run)


def tables(texts: Texts, labels: Labels, tokenizer: Tokenizer, max_seq_length: int, run: Run) -> Tables:
    """Tokenizes texts.

    A row of `examples` has `input_ids` ([CLS] first [SEP], plus second [SEP] for a pair; int32),
    `sentence_a_tokens` (how many of them are of type 0; int32) and `label` (its index in `labels`, int32, -1
    without a label; if `labels` is None, the number itself, float32, NaN without a label). A row of `ids` has the
    `id` of the example. The facts are what `open_set` prints, and the digest that checkpoints have of their data.

    Raises InputError: a label is not in `labels`.
    """
    label = _label_column(texts, labels)
    rows, sentence_a_tokens = [], []
    num_unknown = num_tokens = num_cut = 0
    for first, second in _tokenized(texts, tokenizer, run):
        is_pair = np.full(len(first[1]) - 1, texts.second is not None)
        (ids, offsets), first_tokens = joined_pairs(first, second, is_pair, max_seq_length, tokenizer)
        rows.append((ids, np.diff(offsets)))
        sentence_a_tokens.append(first_tokens)
        whole = np.diff(first[1]) + np.diff(second[1]) + 2 + is_pair
        num_cut += int((np.diff(offsets) < whole).sum())
        for tokens, _ in (first, second):
            num_unknown += int((tokens == tokenizer.unk_id).sum())
            num_tokens += len(tokens)
    values, lengths = (np.concatenate(column) for column in zip(*rows, strict=True))
    examples = {
        "input_ids": pa.LargeListArray.from_arrays(pa.array(offsets_of(lengths)), pa.array(values)),
        "sentence_a_tokens": pa.array(np.concatenate(sentence_a_tokens), pa.int32()),
        "label": label,
    }
    content = [texts.first, texts.second, texts.labels]
    facts = {
        # As version 0.1 made it: a run of its goes on.
        "digest": digest("classifier examples", 1, tokenizer.digest, max_seq_length, labels, content),
        "unknown_share": num_unknown / max(num_tokens, 1),
        "num_cut": num_cut,
        "num_empty": sum(not text.strip() for text in (*texts.first, *(texts.second or ()))),
        "num_short_rows": sum(table.num_short_rows for table in texts.tables),
    }
    return with_facts({"examples": examples, "ids": {"id": pa.array(texts.ids)}}, facts)


def _tokenized(texts: Texts, tokenizer: Tokenizer, run: Run) -> Iterator[tuple[Ragged, Ragged]]:
    """The tokens of some first texts at a time, and of their second ones, which have none without pairs."""
    for part in parts(len(texts), "tokenizing", "example", run):
        first = joined(tokenizer.encode_ids(texts.first[part]))
        if texts.second is None:
            yield first, (first[0][:0], np.zeros_like(first[1]))
        else:
            yield first, joined(tokenizer.encode_ids(texts.second[part]))


def _label_column(texts: Texts, labels: Labels) -> pa.Array:
    if labels is None:
        numbers = np.full(len(texts), np.nan) if texts.labels is None else np.asarray(texts.labels, np.float64)
        return pa.array(numbers, pa.float32())
    if texts.labels is None:
        return pa.array(np.full(len(texts), -1, np.int32))
    index = {label: number for number, label in enumerate(labels)}
    for row, label in enumerate(texts.labels):
        if label not in index:
            raise InputError(f"{texts.place(row)}: label {label!r} is not one of {', '.join(labels)}")
    return pa.array([index[str(label)] for label in texts.labels], pa.int32())
