"""Ragged arrays: `values` are the concatenated rows; `offsets`, int64 [n + 1], say where rows start
and end.

Row i is values[offsets[i] : offsets[i + 1]].
"""

from collections.abc import Iterable

import numpy as np

Ragged = tuple[np.ndarray, np.ndarray]


def offsets_of(lengths: np.ndarray | Iterable[int]) -> np.ndarray:
    """The offsets of rows of these lengths, int64 [n + 1]."""
    lengths = np.asarray(lengths if isinstance(lengths, np.ndarray) else list(lengths), np.int64)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def joined(rows: Iterable[np.ndarray]) -> Ragged:
    """The ragged array of these rows."""
    rows = list(rows)
    return np.concatenate(rows or [np.empty(0, np.int32)]), offsets_of(map(len, rows))


def gather(values: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The slices values[start : start + length], concatenated."""
    if not len(starts):
        return values[:0]
    ends = np.cumsum(lengths)
    places = np.repeat(starts - (ends - lengths), lengths)
    places += np.arange(len(places))
    return values[places]


def reordered(rows: np.ndarray | Ragged, order: np.ndarray) -> np.ndarray | Ragged:
    """An array [n] or a ragged array of n rows, with row `order[i]` moved to place i."""
    if isinstance(rows, np.ndarray):
        return rows[order]
    values, offsets = rows
    lengths = np.diff(offsets)[order]
    return gather(values, offsets[:-1][order], lengths), offsets_of(lengths)


def padded(array: np.ndarray, size: int, value: int = 0) -> np.ndarray:
    """An array [n, …] extended to [size, …] with `value`."""
    widths = [(0, size - len(array)), *[(0, 0)] * (array.ndim - 1)]
    return np.pad(array, widths, constant_values=value)


def mixed(words: np.ndarray) -> np.ndarray:
    """Applies the finaliser of splitmix64 (Steele, Lea and Flood 2014) to each uint64: a bijection
    in which a flip of one input bit flips half of the output bits on average."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
