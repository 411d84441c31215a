"""The training step, part by part: batch, weights, gradient, sum over ranks, update."""

import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass

import tensorflow as tf

from distributed import elastic
from distributed.feed import Batch, BatchSource, prefetched, total_weights
from distributed.gradient import Gradient, dropout_key
from distributed.optimizer import AllreduceOptimizer, StepResult
from distributed.plan import Plan


@dataclass(frozen=True)
class Step:
    """An optimizer step.

    Attributes:
      number: optimizer steps done, including this one.
      position: rows of the stream consumed, over all ranks.
      batches: this rank's micro-batches.
      result: mean losses over all ranks, gradient norm, rate, whether the update was applied. On GPUs the step
        may not be finished yet, and reading the result waits for it.
      wants_stop: a rank was asked to save and stop.
      wants_save: a rank asked for a checkpoint.
    """

    number: int
    position: int
    batches: list[Batch]
    result: StepResult
    wants_stop: bool
    wants_save: bool


def steps(
    optimizer: AllreduceOptimizer,
    gradient: Gradient,
    feed: BatchSource,
    plan: Plan,
    seed: int,
    clock: "StepClock",
    first: int = 0,
    position: int = 0,
    as_traced: bool = False,
) -> Generator[Step]:
    """Yields the steps of a plan after the first `first` ones, which consumed `position` rows of the stream.

    `as_traced`: as in `graphs_as_traced`.
    All ranks take each step together and end it with bit-identical weights. If a rank of an elastic world dies in
    it, the step leaves all weights as they were and raises an error that `elastic.is_loss` knows.
    """
    world = optimizer.world

    def micro_batches(number: int) -> list[Batch]:
        row = position + (number - first) * plan.global_batch_size
        return feed.micro_batches(plan, world.rank, row, gradient.is_fixed)

    def computed(number: int, batches: list[Batch]) -> Step:
        local = total_weights(feed.weights, batches, optimizer.loss_terms)
        requests = world.stop_wanted.is_set(), world.save_wanted.is_set()
        weights, wanted = optimizer.reduce_weights(local, requests)
        keys = [dropout_key(seed, number, piece, world.rank) for piece in range(len(batches))]
        output = gradient(batches, optimizer.inverse_weights(weights), keys)
        clock.mark("compute_s", output)
        if gradient.applies:  # the sum and the update were part of the compiled function
            result = optimizer.result(output, weights)
            clock.mark("reduce_s")
        else:
            flat = output if gradient.overlaps else optimizer.all_reduce(output)
            elastic.commit(world)
            clock.mark("reduce_s", flat)
            result = optimizer.update(flat, weights)
        clock.mark("apply_s", result.numbers)
        consumed = position + (number + 1 - first) * plan.global_batch_size
        return Step(number + 1, consumed, batches, result, *wanted)

    with closing(prefetched(micro_batches, range(first, plan.steps))) as batches_of_steps:
        for number, batches in enumerate(batches_of_steps, first):
            clock.mark("data_s")
            with graphs_as_traced() if as_traced else nullcontext():
                step = computed(number, batches)
            yield step


@contextmanager
def graphs_as_traced() -> Iterator[None]:
    """TensorFlow's graph optimizer (Grappler) does not change the functions that are called within the block.

    It takes seconds when a function is first called with it: docs/measured.md.
    """
    before = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": before})


class StepClock:
    """Measures the wall-clock seconds of each part of a step, and rows per second over all ranks.

    On a GPU operations return before they are done, and waiting for each would leave the GPU idle in between. So
    only every `sample_every`-th step is timed part by part, with waits; all steps count for the rows per second.

    Args:
      waits: operations return before they are done.
    """

    def __init__(self, rows_per_step: int, waits: bool = False, sample_every: int = 1):
        self.rows_per_step = rows_per_step
        self._waits, self._sample_every = waits, sample_every if waits else 1
        self._parts: dict[str, float] = {}
        self._seconds = 0.0
        self._number, self._steps, self._samples = 0, 0, 0
        self._last = time.perf_counter()
        self._recent: list[float] = []
        self._rows_per_s = 0.0

    def mark(self, part: str, result: tf.Tensor | None = None) -> None:
        """Adds the time since the last mark to `part`, which computed `result`; "apply_s" ends a step."""
        is_sample, ends = self._is_sample(self._number), part == "apply_s"
        # The step before a sample is awaited too: its work must not count as the sample's.
        if self._waits and result is not None and (is_sample or (ends and self._is_sample(self._number + 1))):
            result[:1].numpy()
        now = time.perf_counter()
        self._seconds += now - self._last
        if is_sample:
            self._parts[part] = self._parts.get(part, 0.0) + now - self._last
        self._last = now
        if ends:
            self._number, self._steps, self._samples = self._number + 1, self._steps + 1, self._samples + is_sample
            self._recent = [*self._recent[-20:], now]

    def _is_sample(self, number: int) -> bool:
        return (number + 1) % self._sample_every == 0

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
        """Mean seconds of each part per timed step since the last read, and rows per second over all steps."""
        values = {name: round(seconds / max(self._samples, 1), 5) for name, seconds in self._parts.items()}
        rows = self._steps * self.rows_per_step
        values["examples_per_s"] = round(rows / self._seconds, 2) if self._seconds else 0.0
        self._parts, self._seconds, self._steps, self._samples = {}, 0.0, 0, 0
        return values
