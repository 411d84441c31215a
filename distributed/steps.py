"""The training step, part by part: batch, weights, gradient, sum over ranks, update."""

import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

from distributed.feed import Batch, BatchSource, prefetched, total_weights
from distributed.gradient import Gradient, dropout_key
from distributed.optimizer import AllreduceOptimizer, StepResult
from distributed.plan import Plan


@dataclass(frozen=True)
class Step:
    """A finished optimizer step.

    Attributes:
      number: optimizer steps done, including this one.
      position: rows of the stream consumed, over all ranks.
      batches: this rank's micro-batches.
      result: mean losses over all ranks, gradient norm, rate, whether the update was applied.
      wants_stop: a rank was asked to save and stop.
    """

    number: int
    position: int
    batches: list[Batch]
    result: StepResult
    wants_stop: bool


def steps(
    optimizer: AllreduceOptimizer,
    gradient: Gradient,
    feed: BatchSource,
    plan: Plan,
    seed: int,
    clock: "StepClock",
    first: int = 0,
    position: int = 0,
) -> Generator[Step]:
    """Yields the steps of a plan after the first `first` ones, which consumed `position` rows of the stream.

    All ranks take each step together and end it with bit-identical weights.
    """
    world = optimizer.world

    def micro_batches(number: int) -> list[Batch]:
        row = position + (number - first) * plan.global_batch_size
        return feed.micro_batches(plan, world.rank, row, gradient.is_fixed)

    with closing(prefetched(micro_batches, range(first, plan.steps))) as batches_of_steps:
        for number, batches in enumerate(batches_of_steps, first):
            clock.mark("data_s")
            local = total_weights(feed.weights, batches, optimizer.loss_terms)
            weights, wants_stop = optimizer.reduce_weights(local, world.stop_wanted.is_set())
            keys = [dropout_key(seed, number, piece, world.rank) for piece in range(len(batches))]
            flat = gradient(batches, optimizer.inverse_weights(weights), keys)
            clock.mark("compute_s")
            if not gradient.overlaps:
                flat = optimizer.all_reduce(flat)
            clock.mark("reduce_s")
            result = optimizer.update(flat, weights)
            clock.mark("apply_s")
            consumed = position + (number + 1 - first) * plan.global_batch_size
            yield Step(number + 1, consumed, batches, result, wants_stop)


class StepClock:
    """Measures the wall-clock seconds of each part of a step, and rows per second over all ranks."""

    def __init__(self, rows_per_step: int):
        self.rows_per_step = rows_per_step
        self._parts: dict[str, float] = {}
        self._steps, self._last = 0, time.perf_counter()
        self._recent: list[float] = []
        self._rows_per_s = 0.0

    def mark(self, part: str) -> None:
        """Adds the time since the last mark to `part`; "apply_s" ends a step."""
        now = time.perf_counter()
        self._parts[part] = self._parts.get(part, 0.0) + now - self._last
        self._last = now
        if part == "apply_s":
            self._steps += 1
            self._recent = [*self._recent[-20:], now]

    def skip(self) -> None:
        """Ignores the time since the last mark (a checkpoint, an evaluation)."""
        self._last, self._recent = time.perf_counter(), []

    def rows_per_s(self) -> float:
        """Rows per second over the last 20 steps."""
        if len(self._recent) > 1:
            seconds = self._recent[-1] - self._recent[0]
            self._rows_per_s = (len(self._recent) - 1) * self.rows_per_step / seconds
        return self._rows_per_s

    def read(self) -> dict[str, float]:
        """Mean seconds of each part per step since the last read, and rows per second."""
        total, steps = sum(self._parts.values()), max(self._steps, 1)
        values = {name: round(seconds / steps, 5) for name, seconds in self._parts.items()}
        values["examples_per_s"] = round(steps * self.rows_per_step / total, 2) if total else 0.0
        self._parts, self._steps = {}, 0
        return values
