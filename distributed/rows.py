"""Data as rows: an Arrow table in a memory-mapped file."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ringbase.ragged import Ragged, joined


class BatchRows:
    """The rows of one or more parts, whose record batches are opened when they are needed.

    A part has `num_rows`, `batch(number)` and `starts`: the first row of each batch, and last the number of rows.
    """

    def __init__(self, parts: Sequence[Any]):
        self._parts = parts
        self._first_rows = np.cumsum([0, *(part.num_rows for part in parts)])

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray | Ragged]:
        """The columns of some rows in the stored types: a column of numbers as an array [n], one of lists as a
        ragged array (`ringbase.ragged`)."""
        pieces, places = [], []
        for batch, within, of_batch in self._by_batch(indices):
            # A slice costs a tenth of a take.
            pieces.append(batch.slice(within[0], 1) if len(within) == 1 else batch.take(pa.array(within)))
            places.append(of_batch)
        chosen = pa.Table.from_batches(pieces or [self._parts[0].batch(0).slice(0, 0)])
        if len(pieces) > 1:
            # `pa.Table.take` would copy every chunk of a list column: 0.4 ms instead of 49 with 1,000 chunks.
            chosen = chosen.combine_chunks().take(pa.array(np.argsort(np.concatenate(places))))
        return {name: _to_numpy(chosen.column(name)) for name in chosen.column_names}

    def lengths_at(self, name: str, indices: np.ndarray) -> np.ndarray:
        """The number of values in a list column for some rows, int64 [n]; reads only their offsets."""
        lengths = np.empty(len(indices), np.int64)
        for batch, within, places in self._by_batch(indices):
            offsets = batch.column(name).offsets.to_numpy()
            lengths[places] = offsets[within + 1] - offsets[within]
        return lengths

    def _by_batch(self, indices: np.ndarray) -> Iterator[tuple[pa.RecordBatch, np.ndarray, np.ndarray]]:
        """The rows by batch: the batch, the rows within it, and their places in `indices`."""
        rows = np.asarray(indices, np.int64)
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {len(self)}")
        for number, places in _groups(np.searchsorted(self._first_rows, rows, side="right") - 1):
            part, within = self._parts[number], rows[places] - self._first_rows[number]
            for batch, here in _groups(np.searchsorted(part.starts, within, side="right") - 1):
                yield part.batch(batch), within[here] - part.starts[batch], places[here]


class Rows(BatchRows):
    """A memory-mapped Arrow table; itself its only part, whose batches are the chunks of the table."""

    def __init__(self, table: pa.Table):
        self.table, self.num_rows = table, table.num_rows
        self._batches = table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
        self.starts = np.cumsum([0, *(batch.num_rows for batch in self._batches)])
        super().__init__([self])

    @classmethod
    def open(cls, path: Path) -> "Rows":
        with pa.memory_map(str(path)) as source:
            return cls(pa.ipc.open_file(source).read_all())

    def batch(self, number: int) -> pa.RecordBatch:
        return self._batches[number]

    def lengths(self, name: str) -> np.ndarray:
        """The number of values in each row of a list column, int64 [n]."""
        return self.lengths_at(name, np.arange(len(self)))

    def column(self, name: str) -> np.ndarray | Ragged:
        """A whole column, in the same form as from `take`."""
        return _to_numpy(self.table.column(name))


def _groups(numbers: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each number that occurs, and its places."""
    return ((number, np.flatnonzero(numbers == number)) for number in np.unique(numbers).tolist())


def write_rows(path: Path, table: pa.Table) -> None:
    """Writes a table as an Arrow file."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1 << 14)


def ragged(arrays: Iterable[np.ndarray], kind: pa.DataType) -> pa.Array:
    """A list column of values of this type, from one array per row."""
    values, offsets = joined(arrays)
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(values, kind))


def _to_numpy(column: pa.ChunkedArray) -> np.ndarray | Ragged:
    if not isinstance(column.type, pa.LargeListType):
        return column.to_numpy()
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    offsets = array.offsets.to_numpy()
    return array.values.to_numpy(zero_copy_only=False)[offsets[0] : offsets[-1]], offsets - offsets[0]
