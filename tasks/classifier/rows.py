"""The classifier's texts as rows of tokens, cut by Google's rules (google-research/bert
`run_classifier.py`)."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np
import pyarrow as pa

from distributed.rows import ragged
from ringbase.files import STANDARD_INPUT, digest, sha256
from tasks.classifier.reading import Source, Texts
from tasks.runs.cache import Tables, with_facts
from tasks.runs.labels import Labels
from tasks.runs.texts import Preparation, rows_of_texts

# increase when reading or the code below writes something else: old folders are not used
VERSION = 6


def key(source: Source, texts: Callable[[], Texts]) -> object:
    """All that the texts of a source depend on."""
    task = source.task
    # Files with the same bytes are not parsed again.
    files = [path for path in source.files() if path.is_file() and str(path) != STANDARD_INPUT]
    content = [(path.suffixes[-2:], sha256(path)) for path in files] or texts()
    facts = [task.name, task.has_several, asdict(task.columns), source.part.header]
    facts += [source.needs_labels, source.settings.language]
    return facts, source.limit, content


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
    first = texts.first
    second: Sequence[str | None] = texts.second or [None] * len(first)
    examples, fit = rows_of_texts(preparation, first, second, max_seq_length)
    number_of = {label: number for number, label in enumerate(labels or ())}
    if has_several:
        lists = ([number_of[label] for label in row] for row in texts.labels or [()] * len(first))
        examples["label"] = ragged(map(np.array, lists), pa.int32())
    elif labels is None:
        examples["label"] = pa.array(texts.labels or [np.nan] * len(first), pa.float32())
    else:
        numbers = [number_of.get(label, -1) for label in texts.labels or [None] * len(first)]
        examples["label"] = pa.array(numbers, pa.int32())
    num_empty = sum(text is not None and not text.strip() for text in (*first, *second))
    counts = {
        f"cut to --max_seq_length {max_seq_length}": fit["rows_cut"],
        "with an empty text": num_empty,
        **texts.counts,
    }
    notes = [f"{count:,} {text}" for text, count in counts.items() if count]
    content = first, texts.second, texts.labels
    tokens = preparation.tokenizer.digest
    facts = {
        "digest": digest("classifier", VERSION, tokens, max_seq_length, labels, content),
        "notes": [f"{len(first):,} examples", *notes],
        "is_labelled": texts.labels is not None,
        **fit,
    }
    return with_facts({"examples": examples, "ids": {"id": pa.array(texts.ids)}}, facts)
