"""A run's batches: a rank's share of each step's rows, as the model's input, made ahead of the steps."""

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from distributed.order import RowOrder, divided
from distributed.plan import Plan
from distributed.rows import RowSource

T = TypeVar("T")
Batch = dict[str, Any]  # arrays, or tuples of them


@dataclass(frozen=True, kw_only=True)
class Feed:
    """What a run trains on, and how rows become batches.

    Attributes:
      order: which row stands at a position of the stream.
      collate: the rows of one micro-batch -> the model's input, each array with a batch axis first. Beside their
        columns it gets "row", their numbers, and "epoch", both int64 [n].
      weights: that batch -> the weight of each loss term (rows, masked tokens, …), as numbers.
      lengths: row numbers -> how many tokens each has; a step's rows are then shared out so that ranks and
        micro-batches have nearly equal numbers of them. Without, each takes neighbouring positions. The
        step's sum is the same.
      collate_fixed: as `collate`, but with few shapes, for XLA. A number of Python in it makes another one, too.
    """

    rows: RowSource
    order: RowOrder
    collate: Callable[..., Batch]
    weights: Callable[[Batch], Mapping[str, float]]
    lengths: Callable[[np.ndarray], np.ndarray] | None = None
    collate_fixed: Callable[..., Batch] | None = None

    def micro_batches(self, plan: Plan, rank: int, position: int, is_fixed: bool = False) -> list[Batch]:
        """A rank's share of the step whose rows stand at `position` and behind.

        `is_fixed`: by `collate_fixed`, and with lengths in equal numbers of rows, whatever their blocks.
        """
        numbers = self.order.rows_at(position, position + plan.global_batch_size)
        if self.lengths is None:
            places = [np.arange(piece.start, piece.stop) for piece in plan.micro_batches(rank)]
        else:
            sizes = plan.size, plan.accumulation, self.order.block
            places = divided(self.lengths(numbers), numbers, *sizes, is_fixed)[rank]

        def fields(piece: np.ndarray) -> dict:
            more = {"row": numbers[piece], "epoch": (position + piece) // len(self.rows)}
            return self.rows.take(numbers[piece]) | more

        collate = self.collate_fixed if is_fixed and self.collate_fixed else self.collate
        return [collate(fields(piece)) for piece in places if len(piece)]


def prefetched(make: Callable[[int], T], items: Iterable[int], ahead: int = 2) -> Generator[T, None, None]:
    """`make(item)` for each item, computed in a thread; up to `ahead` of them wait, and one more is computed.

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
            made, error = ready.get()
            if error is not None:
                raise error
            if made is None:
                return
            yield made[0]
    finally:
        stopped.set()
