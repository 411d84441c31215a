"""The batches of a run: each rank's share of a step's rows, as the model's input, prepared ahead of time."""

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from distributed.order import RowOrder, divided
from distributed.plan import Plan
from distributed.rows import RowSource

T = TypeVar("T")
Batch = dict[str, Any]  # arrays, or tuples of them


class BatchSource(Protocol):
    """The source of a training step's batches."""

    @property
    def weights(self) -> Callable[[Batch], Mapping[str, float]]:
        """Batch -> the weight of each loss term (rows, masked tokens, …)."""
        ...

    def micro_batches(self, plan: Plan, rank: int, position: int) -> list[Batch]:
        """A rank's share of the step whose rows start at `position`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Feed:
    """What a run trains on, and how rows become batches.

    Attributes:
      order: which row stands at each position of the stream.
      collate: the rows of one micro-batch -> the model's input, each array with a batch axis first. Besides the
        columns it gets "row", the row numbers, and "epoch", both int64 [n].
      weights: that batch -> the weight of each loss term (rows, masked tokens, …).
      lengths: row numbers -> tokens of each row. A step's rows are then divided so that ranks and micro-batches
        have nearly equal numbers of tokens; without it each takes neighbouring positions. The sum over the step
        is the same.
      is_fixed: `collate` makes few different shapes, because XLA compiles for each; with `lengths` all shares then
        have equally many rows.
      collates_of_shapes: for each of these shapes: rows -> a batch of that shape.
      longest: tokens of the longest row.
    """

    rows: RowSource
    order: RowOrder
    collate: Callable[..., Batch]
    weights: Callable[[Batch], Mapping[str, float]]
    lengths: Callable[[np.ndarray], np.ndarray] | None = None
    is_fixed: bool = False
    collates_of_shapes: Sequence[Callable[..., Batch]] = ()
    longest: int = 0

    def micro_batches(self, plan: Plan, rank: int, position: int) -> list[Batch]:
        """A rank's share of the step whose rows start at `position`."""
        numbers = self.order.rows_at(position, position + plan.global_batch_size)
        if self.lengths is None:
            places = [np.arange(piece.start, piece.stop) for piece in plan.micro_batches(rank)]
        else:
            sizes = plan.size, plan.accumulation, self.order.block
            places = divided(self.lengths(numbers), numbers, *sizes, self.is_fixed)[rank]
        return [self.collate(self._fields(numbers[p], position + p)) for p in places if len(p)]

    def batches_of_shapes(self) -> Iterator[Batch]:
        """A batch without rows, padding only, of each shape that `collate` makes if it `is_fixed`."""
        none = np.zeros(0, np.int64)
        return (collate(self._fields(none, none)) for collate in self.collates_of_shapes)

    def _fields(self, numbers: np.ndarray, positions: np.ndarray) -> dict:
        return self.rows.take(numbers) | {"row": numbers, "epoch": positions // len(self.rows)}


def batch_maker(rows: RowSource, collate: Callable[[dict], Batch]) -> Callable[[np.ndarray], Batch]:
    """Returns a function: row numbers -> the batch of these rows, with epoch 0."""
    return lambda numbers: collate(rows.take(numbers) | {"row": numbers, "epoch": np.zeros_like(numbers)})


def prefetched(make: Callable[[int], T], items: Iterable[int], ahead: int = 2) -> Generator[T, None, None]:
    """Yields `make(item)` for each item, computed in a thread up to `ahead` + 1 items in advance.

    An exception in the thread is raised here, where it can end the job.
    """
    ready: queue.Queue = queue.Queue(maxsize=ahead)
    stopped = threading.Event()

    def put(entry) -> bool:
        while not stopped.is_set():
            try:
                ready.put(entry, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            for item in items:
                if not put(([make(item)], None)):
                    return
            put((None, None))
        except BaseException as error:
            put((None, error))

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            result, error = ready.get()
            if error is not None:
                raise error
            if result is None:
                return
            yield result[0]
    finally:
        stopped.set()
