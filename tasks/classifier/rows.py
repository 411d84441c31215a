"""The classifier's texts as rows of tokens, cut by Google's rules (google-research/bert
`run_classifier.py`)."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distributed.rows import ragged
from ringbase.errors import InputError
from ringbase.files import STANDARD_INPUT, digest, sha256
from tasks.cache import Prepared, Recipe, Tables, with_facts
from tasks.classifier.named_tasks import Labels
from tasks.classifier.reading import Source, Texts, read
from tasks.classifier.settings import ExampleSettings
from tasks.texts import Preparation, rows_of_texts

# increase when reading or the code below writes something else: old folders are not used
VERSION = 6


def open_set(
    source: Source,
    labels: Labels,
    settings: ExampleSettings,
    preparation: Preparation,
) -> Prepared:
    """The tables of a set, as `tables` makes them, on every rank. Raises InputError as `read` and
    `Preparation.rows`."""
    # Open MPI 5's mpirun delivers standard input without an end.
    is_launched = preparation.world.size > 1 or "PRTE_LAUNCHED" in os.environ
    if source.settings.reads_lines and is_launched:
        raise InputError("--predict_file -: standard input needs one rank, started without mpirun")
    length, tokenizer = settings.max_seq_length, preparation.tokenizer

    def recipe() -> Recipe:
        load, task = cache(partial(read, source, labels)), source.task
        # Files with the same bytes are not parsed again.
        files = [path for path in source.files() if path.is_file() and str(path) != STANDARD_INPUT]
        content = [(path.suffixes[-2:], sha256(path)) for path in files] or load()
        facts = [task.name, task.has_several, asdict(task.columns), source.part.header]
        facts += [source.needs_labels, source.settings.language]
        key = digest(
            "classifier", VERSION, tokenizer.digest, length, labels, facts, source.limit, content
        )
        return key, lambda: tables(load(), labels, preparation, length, task.has_several)

    return preparation.rows(recipe, source)


def tables(
    texts: Texts,
    labels: Labels,
    preparation: Preparation,
    max_seq_length: int,
    has_several: bool = False,
) -> Tables:
    """Tokenizes texts.

    A row of `examples` has the columns of `rows_of_texts` and `label` (its index in `labels`,
    int32, -1 without a label; if `labels` is None, the number itself, float32, NaN without a label;
    with `has_several` a list of indices). A row of `ids` has the `id` of the example. The facts are
    those of `Preparation.rows`, the digest that checkpoints have of their data, and "is_labelled".
    """
    number = len(texts.first)
    second: Sequence[str | None] = texts.second or [None] * number
    columns, fit, cut = rows_of_texts(preparation, texts.first, second, max_seq_length)
    counts = {
        f"cut to --max_seq_length {max_seq_length}": int((cut > 0).sum()),
        "with an empty text": sum(
            not text.strip() for text in (*texts.first, *(texts.second or ()))
        ),
        **texts.counts,
    }
    if has_several:
        number_of = {label: place for place, label in enumerate(labels or ())}
        lists = ([number_of[label] for label in row] for row in texts.labels or [()] * number)
        numbers = ragged(map(np.array, lists), pa.int32())
    else:
        label = pa.array(
            texts.labels or [None] * number, pa.float32() if labels is None else pa.string()
        )
        numbers = (
            label.fill_null(np.nan)
            if labels is None
            else pc.index_in(label, pa.array(labels)).fill_null(-1)
        )
    content = [texts.first, texts.second, texts.labels]
    tokens = preparation.tokenizer.digest
    facts = {
        "digest": digest("classifier", VERSION, tokens, max_seq_length, labels, content),
        "notes": [
            f"{number:,} examples",
            *(f"{count:,} {text}" for text, count in counts.items() if count),
        ],
        "is_labelled": texts.labels is not None,
        **fit,
    }
    return with_facts(
        {"examples": columns | {"label": numbers}, "ids": {"id": pa.array(texts.ids)}}, facts
    )
