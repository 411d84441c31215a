"""Pairs as rows of tokens: `pairs` to train on, each with all of its texts, and `texts` to embed,
of which each stands there once."""

import hashlib
import io
import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from distributed.rows import ragged
from distributed.run import Run
from ringbase.files import digest
from tasks.embedder.reading import Pairs
from tasks.runs.cache import Tables, with_facts
from tasks.runs.texts import Preparation, rows_of_texts

VERSION = 1  # increase when reading or `tables` makes something else: old rows are not used


def tables(pairs: Pairs, preparation: Preparation, max_seq_length: int) -> Tables:
    """A row of `pairs` has `input_ids`, those of its texts one after another ([CLS] text [SEP]),
    `sizes` (the tokens of each text; both lists of int32), `digests` (of each text, a list of
    int64) and `score` (float32, NaN without one). A row of `texts` has the columns of
    `rows_of_texts`, for the texts of `places_of`."""
    place_of = places_of(pairs)
    none = [None] * len(place_of)
    columns, fit = rows_of_texts(preparation, [*place_of], none, max_seq_length)
    ids = [row.values.to_numpy() for row in columns["input_ids"]]
    sizes = np.array([*map(len, ids)])
    digests = np.array([*map(digest_of, place_of)])
    places = np.array([[place_of[text] for text in row] for row in pairs.rows])
    joined = {
        "input_ids": ragged((np.concatenate([ids[n] for n in row]) for row in places), pa.int32()),
        "sizes": ragged(sizes[places], pa.int32()),
        "digests": ragged(digests[places], pa.int64()),
        "score": pa.array(pairs.scores or [np.nan] * len(places), pa.float32()),
    }
    num_rows, num_texts = places.shape
    notes = [f"{num_rows:,} pairs, {len(place_of):,} texts"]
    if num_texts == 1:
        notes = [f"{num_rows:,} texts"]
    if fit["rows_cut"]:
        notes.append(f"{fit['rows_cut']:,} cut to --max_seq_length {max_seq_length}")
    content = digest("embedder", VERSION, preparation.tokenizer.digest, max_seq_length, pairs)
    facts = {"digest": content, "notes": notes, **fit}
    return with_facts({"texts": columns, "pairs": joined}, facts)


def places_of(pairs: Pairs) -> dict[str, int]:
    """Each text once, and its place in the order of the first ones."""
    texts = dict.fromkeys([*itertools.chain(*pairs.rows), *pairs.corpus])
    return {text: place for place, text in enumerate(texts)}


def write_vectors(run: Run, texts: Sequence[str], vectors: np.ndarray) -> None:
    """Writes vectors.npy, float32 [texts, W], and vectors.parquet with the texts."""
    file = io.BytesIO()
    np.save(file, vectors)
    run.write_bytes("vectors.npy", file.getvalue())
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    file = io.BytesIO()
    pq.write_table(pa.table({"text": texts, "vector": lists}), file)
    run.write_bytes("vectors.parquet", file.getvalue())


def digest_of(text: str) -> int:
    """An int64 that stands for a text on every rank."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), signed=True)
