"""Data as rows, an Arrow table in a memory-mapped file, and the batches that ranks make of them
ahead of time."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy import ndarray

from distributed.order import Order, balanced, micro_batches_of
from distributed.plan import Plan, State
from distributed.world import World
from ringbase.ragged import Ragged, joined

T = TypeVar("T")
Batch = dict[str, Any]  # arrays, or tuples of them


class BatchRows:
    """The rows of one or more parts, whose record batches are opened when they are needed. A part
    has `num_rows`, `batch(number)` and `starts`: the first row of each batch, and last the number
    of rows."""

    def __init__(self, parts: Sequence):
        self._parts = parts
        self._first_rows = np.cumsum([0, *(part.num_rows for part in parts)])

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    def take(self, indices: ndarray) -> dict[str, ndarray | Ragged]:
        """The columns of some rows in the stored types: a column of numbers as an array [n], one of
        lists as a ragged array (`ringbase.ragged`)."""
        pieces, places = [], []
        for batch, within, of_batch in self._by_batch(indices):
            is_one = len(within) == 1  # a slice costs a tenth of a take
            piece = batch.slice(within[0], 1) if is_one else batch.take(_indices(within))
            pieces.append(piece)
            places.append(of_batch)
        if not pieces:
            pieces = [self._parts[0].batch(0).slice(0, 0)]
        chosen = pa.Table.from_batches(pieces)
        if len(pieces) > 1:
            # `pa.Table.take` would copy every chunk of a list column: 0.4 ms instead of 49 with
            # 1,000 chunks.
            order = np.argsort(np.concatenate(places))
            chosen = chosen.combine_chunks().take(_indices(order))
        return {name: _to_numpy(chosen.column(name)) for name in chosen.column_names}

    def lengths_at(self, name: str, indices: ndarray) -> ndarray:
        """The number of values in a list column for some rows, int64 [n]; reads only their
        offsets."""
        lengths = np.empty(len(indices), np.int64)
        for batch, within, places in self._by_batch(indices):
            offsets = np.from_dlpack(batch.column(name).offsets)
            lengths[places] = offsets[within + 1] - offsets[within]
        return lengths

    def _by_batch(self, indices: ndarray) -> Iterator[tuple]:
        """The rows by batch: the batch, the rows within it, and their places in `indices`."""
        rows = np.asarray(indices, np.int64)
        for number, places in _groups(rows, self._first_rows):
            part = self._parts[number]
            in_part = rows[places] - self._first_rows[number]
            for batch, here in _groups(in_part, part.starts):
                in_batch = in_part[here] - part.starts[batch]
                yield part.batch(batch), in_batch, places[here]


class Rows(BatchRows):
    """A memory-mapped Arrow table; itself its only part, whose batches are the chunks of the
    table."""

    def __init__(self, table: pa.Table):
        self.table = table
        self.num_rows = table.num_rows
        self._batches = table.to_batches()
        if not self._batches:
            self._batches = [pa.RecordBatch.from_pylist([], table.schema)]
        sizes = [batch.num_rows for batch in self._batches]
        self.starts = np.cumsum([0, *sizes])
        super().__init__([self])

    @classmethod
    def open(cls, path: Path) -> "Rows":
        with pa.memory_map(str(path)) as source:
            return cls(pa.ipc.open_file(source).read_all())

    def batch(self, number: int) -> pa.RecordBatch:
        return self._batches[number]

    def column(self, name: str) -> ndarray | Ragged:
        """A whole column, in the same form as from `take`."""
        return _to_numpy(self.table.column(name))


def _groups(rows: ndarray, starts: ndarray) -> Iterator[tuple[int, ndarray]]:
    """The number of each interval with some of the rows, and their places."""
    numbers = np.searchsorted(starts, rows, side="right") - 1
    for number in np.unique(numbers).tolist():
        yield number, np.flatnonzero(numbers == number)


def write_rows(path: Path, table: pa.Table) -> None:
    """Writes a table as an Arrow file."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1 << 14)


def ragged(arrays: Iterable[ndarray], kind: pa.DataType) -> pa.Array:
    """A list column of values of this type, from one array per row."""
    values, offsets = joined(arrays)
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(values, kind))


# pyarrow's own conversions import pandas, which takes 0.3 s.


def _indices(rows):
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)])


def _to_numpy(column: pa.ChunkedArray) -> ndarray | Ragged:
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(column.type, pa.LargeListType):
        offsets = np.from_dlpack(array.offsets)
        first, end = offsets[0], offsets[-1]
        values = np.from_dlpack(array.values)[first:end]
        return values, offsets - first
    are_numbers = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if are_numbers and not array.null_count:
        return np.from_dlpack(array)
    return array.to_numpy(zero_copy_only=False)


@dataclass(frozen=True, kw_only=True)
class Feed:
    """What a run trains on, and how rows become batches."""

    rows: BatchRows
    order: Order
    # the fields of a micro-batch's rows -> the model's input, a batch axis first
    collate: Callable[..., Batch]
    # Row numbers -> tokens of each row, of which ranks and micro-batches get nearly equal numbers.
    lengths: Callable[[ndarray], ndarray] = np.ones_like
    # Fields -> a batch of one shape, for each of the few shapes that XLA compiles for.
    collates_of_shapes: Sequence[Callable[..., Batch]] = ()

    def batches(self, plan: Plan, world: World, state: State) -> Generator[list[Batch], None, None]:
        """This rank's micro-batches of each step from this state to the end of the plan, made ahead
        in a thread."""
        num_steps = plan.steps - state.step
        end = state.position + num_steps * plan.global_batch_size
        positions = range(state.position, end, plan.global_batch_size)
        make = partial(self.micro_batches, plan, world.rank)
        return prefetched(make, positions)

    def micro_batches(self, plan: Plan, rank: int, position: int) -> list[Batch]:
        """A rank's share of the step whose rows start at `position`."""
        of_stream = self.order.fields_at(position, position + plan.global_batch_size)
        numbers = of_stream["row"]
        lengths = self.lengths(numbers)
        own = balanced(lengths, plan.size)[rank]
        micro_batches = []
        for places in micro_batches_of(own, lengths, plan.accumulation):
            chosen = {name: values[places] for name, values in of_stream.items()}
            fields = fields_of(self.rows, numbers[places], chosen)
            micro_batches.append(self.collate(fields))
        return micro_batches

    def batches_of_shapes(self) -> Iterator[Batch]:
        """A batch without rows, padding only, of each shape that XLA compiles for."""
        fields = fields_of(self.rows, np.zeros(0, np.int64), self.order.fields_at(0, 0))
        return (collate(fields) for collate in self.collates_of_shapes)


def fields_of(
    rows: BatchRows, numbers: ndarray, of_stream: Mapping[str, ndarray] | None = None
) -> dict[str, Any]:
    """The columns of these rows, their numbers as "row", and what `Order.fields_at` says of their
    places in the stream; without a stream their "epoch" is the first."""
    places = {"epoch": np.zeros(len(numbers), np.int64)} if of_stream is None else of_stream
    return rows.take(numbers) | {"row": numbers, **places}


def prefetched(
    make: Callable[[int], T], items: Iterable[int], ahead: int = 3
) -> Generator[T, None, None]:
    """Yields `make(item)` for each item, computed in a thread up to `ahead` items in advance. Its
    exceptions are raised here, where they can end the job."""
    thread = ThreadPoolExecutor(1, "prefetch")
    made = deque[Future[T]]()
    try:
        for item in items:
            made.append(thread.submit(make, item))
            if len(made) > ahead:
                yield made.popleft().result()
        while made:
            yield made.popleft().result()
    finally:
        thread.shutdown(wait=False, cancel_futures=True)
