"""The batches of a run: each rank's share of a step's rows, as the model's input, prepared ahead of time."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from distributed.order import Order, divided
from distributed.plan import Plan, State
from distributed.rows import BatchRows

T = TypeVar("T")
Batch = dict[str, Any]  # arrays, or tuples of them


@dataclass(frozen=True, kw_only=True)
class Feed:
    """What a run trains on, and how rows become batches.

    Attributes:
      collate: the fields of a micro-batch's rows -> the model's input, each array with a batch axis first.
      lengths: row numbers -> tokens of each row, of which ranks and micro-batches get nearly equal numbers.
      collates_of_shapes: fields -> a batch of one shape, for each of the few shapes that XLA compiles for.
    """

    rows: BatchRows
    order: Order
    collate: Callable[..., Batch]
    lengths: Callable[[np.ndarray], np.ndarray] = np.ones_like
    collates_of_shapes: Sequence[Callable[..., Batch]] = ()

    def batches(self, plan: Plan, rank: int, state: State) -> Generator[list[Batch], None, None]:
        """A rank's micro-batches of each step from this state to the end of the plan, made ahead in a thread."""
        end = state.position + (plan.steps - state.step) * plan.global_batch_size
        positions = range(state.position, end, plan.global_batch_size)
        return prefetched(partial(self.micro_batches, plan, rank), positions)

    def micro_batches(self, plan: Plan, rank: int, position: int) -> list[Batch]:
        """A rank's share of the step whose rows start at `position`."""
        numbers = self.order.rows_at(position, position + plan.global_batch_size)
        places = divided(self.lengths(numbers), plan.size, plan.accumulation)[rank]
        return [self.collate(fields_of(self.rows, numbers[p], position + p)) for p in places]

    def batches_of_shapes(self) -> Iterator[Batch]:
        """A batch without rows, padding only, of each shape that XLA compiles for."""
        none = np.zeros(0, np.int64)
        return (collate(fields_of(self.rows, none, none)) for collate in self.collates_of_shapes)


def fields_of(rows: BatchRows, numbers: np.ndarray, positions: np.ndarray) -> dict[str, Any]:
    """The columns of these rows, their numbers as "row" and, of their positions in the stream, their "epoch"."""
    return rows.take(numbers) | {"row": numbers, "epoch": positions // len(rows)}


def prefetched(make: Callable[[int], T], items: Iterable[int], ahead: int = 3) -> Generator[T, None, None]:
    """Yields `make(item)` for each item, computed in a thread up to `ahead` items in advance.

    An exception in the thread is raised here, where it can end the job.
    """
    thread, made = ThreadPoolExecutor(1, "prefetch"), deque[Future[T]]()
    try:
        for item in items:
            made.append(thread.submit(make, item))
            if len(made) > ahead:
                yield made.popleft().result()
        while made:
            yield made.popleft().result()
    finally:
        thread.shutdown(wait=False, cancel_futures=True)
