"""Pairs as rows of tokens: `pairs` to train on, each with all of its texts, and `texts` to embed,
of which each stands there once."""

import hashlib
import io
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
    `rows_of_texts`, for the texts of `texts_of`."""
    texts = texts_of(pairs)
    columns, fit = rows_of_texts(preparation, texts, [None] * len(texts), max_seq_length)
    place_of = {text: place for place, text in enumerate(texts)}
    ids = [row.values.to_numpy() for row in columns["input_ids"]]
    digests = [digest_of(text) for text in texts]
    rows = [[place_of[text] for text in row] for row in pairs.rows]
    tokens = (np.concatenate([ids[place] for place in row]) for row in rows)
    sizes = (np.array([len(ids[place]) for place in row]) for row in rows)
    digests_of_rows = (np.array([digests[place] for place in row]) for row in rows)
    joined = {
        "input_ids": ragged(tokens, pa.int32()),
        "sizes": ragged(sizes, pa.int32()),
        "digests": ragged(digests_of_rows, pa.int64()),
        "score": pa.array(pairs.scores or [np.nan] * len(rows), pa.float32()),
    }
    has_pairs = len(pairs.rows[0]) > 1
    notes = [f"{len(rows):,} pairs, {len(texts):,} texts" if has_pairs else f"{len(rows):,} texts"]
    if fit["rows_cut"]:
        notes.append(f"{fit['rows_cut']:,} cut to --max_seq_length {max_seq_length}")
    content = digest("embedder", VERSION, preparation.tokenizer.digest, max_seq_length, pairs)
    return with_facts(
        {"texts": columns, "pairs": joined}, {"digest": content, "notes": notes, **fit}
    )


def texts_of(pairs: Pairs) -> list[str]:
    """Each text once, in the order of its first place."""
    return list(dict.fromkeys([*(text for row in pairs.rows for text in row), *pairs.corpus]))


def write_vectors(run: Run, texts: Sequence[str], vectors: np.ndarray) -> None:
    """Writes vectors.npy, float32 [texts, W], and vectors.parquet with the texts."""
    file = io.BytesIO()
    np.save(file, vectors)
    run.write_bytes("vectors.npy", file.getvalue())
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    file = io.BytesIO()
    pq.write_table(pa.table({"text": list(texts), "vector": lists}), file)
    run.write_bytes("vectors.parquet", file.getvalue())


def digest_of(text: str) -> int:
    """An int64 that stands for a text on every rank."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), signed=True)


def places_of(pairs: Pairs, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The places of the anchors and of the positives among the texts, int [n]."""
    place_of = {text: place for place, text in enumerate(texts)}
    columns = [[place_of[row[slot]] for row in pairs.rows] for slot in (0, 1)]
    return np.array(columns[0]), np.array(columns[1])
