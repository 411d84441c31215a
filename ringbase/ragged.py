"""Ragged arrays: `values` are the concatenated rows; `offsets`, int64 [n + 1], say where rows start
and end.

Row i is values[offsets[i] : offsets[i + 1]].
"""

from collections.abc import Iterable, Sequence

import numpy as np

Array = np.ndarray
Ragged = tuple[Array, Array]


def offsets_of(lengths: Array | Sequence[int]) -> Array:
    """The offsets of rows of these lengths, int64 [n + 1]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, dtype=np.int64, out=offsets[1:])
    return offsets


def joined(rows: Iterable[Array]) -> Ragged:
    """The ragged array of these rows."""
    rows = list(rows)
    values = np.concatenate(rows or [np.empty(0, np.int32)])
    return values, offsets_of([len(row) for row in rows])


def gather(values: Array, starts: Array, lengths: Array) -> Array:
    """The slices values[start : start + length], concatenated."""
    if not len(starts):
        return values[:0]
    ends = np.cumsum(lengths)
    places = np.repeat(starts - (ends - lengths), lengths)
    places += np.arange(len(places))
    return values[places]


def reordered(rows: Array | Ragged, order: Array) -> Array | Ragged:
    """An array [n] or a ragged array of n rows, with row `order[i]` moved to place i."""
    if isinstance(rows, Array):
        return rows[order]
    values, offsets = rows
    lengths = np.diff(offsets)[order]
    return gather(values, offsets[:-1][order], lengths), offsets_of(lengths)


def padded(array: Array, size: int, value: int = 0) -> Array:
    """An array [n, …] extended to [size, …] with `value`."""
    result = np.full((size, *array.shape[1:]), value, array.dtype)
    result[: len(array)] = array
    return result


def mixed(words: Array) -> Array:
    """Applies the finaliser of splitmix64 (Steele, Lea and Flood 2014) to each uint64: a bijection
    in which a flip of one input bit flips half of the output bits on average."""
    words = (words ^ (words >> 30)) * 0xBF58476D1CE4E5B9
    words = (words ^ (words >> 27)) * 0x94D049BB133111EB
    return words ^ (words >> 31)
