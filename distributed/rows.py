"""Data as rows: an Arrow table in a memory-mapped file."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringbase.ragged import Ragged, joined


class RecordBatches(Protocol):
    """A part of the rows, in record batches that are opened when they are needed.

    `starts` holds the first row of each batch, and last the number of rows.
    """

    num_rows: int

    @property
    def starts(self) -> np.ndarray: ...
    def batch(self, number: int) -> pa.RecordBatch: ...


class BatchRows:
    """The rows of one or more parts. `rows.take(indices)` gives the columns as NumPy arrays of the stored types.

    A column of numbers becomes an array [n], a column of lists a ragged array (`ringbase.ragged`). Only batches
    with the rows asked for are opened.
    """

    def __init__(self, parts: Sequence[RecordBatches]):
        self._parts = parts
        self._first_rows = np.cumsum([0, *(part.num_rows for part in parts)])

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray | Ragged]:
        pieces, order = [], np.argsort(indices, kind="stable")
        for batch, within, _ in self._by_batch(np.asarray(indices, np.int64)[order]):
            # A slice costs a tenth of a take.
            pieces.append(batch.slice(within[0], 1) if len(within) == 1 else batch.take(pa.array(within)))
        # `pa.Table.take` would copy every chunk of a list column: 0.4 ms instead of 49 with 1,000 chunks.
        chosen = pa.Table.from_batches(pieces or [self._parts[0].batch(0).slice(0, 0)]).combine_chunks()
        chosen = chosen.take(pa.array(np.argsort(order)))
        return {name: _to_numpy(chosen.column(name)) for name in chosen.column_names}

    def lengths_at(self, name: str, indices: np.ndarray) -> np.ndarray:
        """The number of values in a list column for some rows, int64 [n]; reads only their offsets."""
        order = np.argsort(indices, kind="stable")
        lengths = np.empty(len(order), np.int64)
        for batch, within, places in self._by_batch(np.asarray(indices, np.int64)[order]):
            offsets = batch.column(name).offsets.to_numpy()
            lengths[order[places]] = offsets[within + 1] - offsets[within]
        return lengths

    def _by_batch(self, rows: np.ndarray) -> Iterator[tuple[pa.RecordBatch, np.ndarray, slice]]:
        """Ascending rows by batch: the batch, the rows within it, and their places in `rows`."""
        if len(rows) and not 0 <= rows[0] <= rows[-1] < len(self):
            raise IndexError(f"rows {rows[0]} to {rows[-1]} of {len(self)}")
        for number, first, last in _runs(np.searchsorted(self._first_rows, rows, side="right") - 1):
            part, within_part = self._parts[number], rows[first:last] - self._first_rows[number]
            for batch, start, stop in _runs(np.searchsorted(part.starts, within_part, side="right") - 1):
                within = within_part[start:stop] - part.starts[batch]
                yield part.batch(batch), within, slice(first + start, first + stop)


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
        return pc.list_value_length(self.table.column(name)).to_numpy().astype(np.int64)

    def column(self, name: str) -> np.ndarray | Ragged:
        """A whole column, in the same form as from `take`."""
        return _to_numpy(self.table.column(name))


def _runs(numbers: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """The runs of equal numbers: the number, the run's start and its end."""
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for start, stop in itertools.pairwise(edges):
        if start < stop:
            yield int(numbers[start]), start, stop


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
    array = column.combine_chunks()
    offsets = array.offsets.to_numpy()
    return array.values.to_numpy(zero_copy_only=False)[offsets[0] : offsets[-1]], offsets - offsets[0]
