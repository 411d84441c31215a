"""Prediction over all ranks; each batch is computed by one rank."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from distributed.feed import Batch, prefetched
from distributed.gradient import naming_memory
from distributed.run import Run
from distributed.world import World
from ringbase.errors import InputError


def predict(
    world: World,
    run: Run,
    batches: Sequence[np.ndarray],
    make_batch: Callable[[np.ndarray], Batch],
    forward: Callable[[dict[str, tf.Tensor]], Any],
    *,
    digest: Callable[[int, Any], Any] | None = None,
    label: str | None = "prediction",
) -> list[Any] | None:
    """Returns `forward` of every batch, or its digest, in order, on rank 0; None on other ranks.

    Each batch is computed by one rank, so that results do not depend on the number of ranks.

    Args:
      batches: the row numbers of each batch.
      make_batch: row numbers -> the model's input; called in a thread, ahead of the model.
      digest: (number of the batch, output as NumPy arrays) -> what is kept of it; called in a thread, while the
        model computes the next batch.
      label: the label of the progress bar; None for no bar.
    """
    mine = range(world.rank, len(batches), world.size)
    bar = run.progress(len(mine), label or "", "batch", is_shown=label is not None)
    numbers, kept, computed = iter(mine), list[Future](), None
    with ThreadPoolExecutor(1, "digest") as thread:

        def keep(output: Any) -> None:
            arrays, number = as_arrays(output), next(numbers)
            kept.append(thread.submit(digest, number, arrays) if digest else finished(arrays))
            bar.update(len(kept))

        for batch in prefetched(lambda number: make_batch(batches[number]), mine):
            if world.stop_wanted.is_set():
                raise InputError("stopped before the predictions were complete: run the same command again")
            # A slow rank may finish long after the others, which wait for its outputs below.
            with naming_memory(batch), world.watchdog.working():
                before, computed = computed, forward(batch)
                if before is not None:  # read late, so that a GPU always has work
                    keep(before)
        with world.watchdog.working():
            if computed is not None:
                keep(computed)
            outputs = [future.result() for future in kept]
    bar.close()
    gathered = world.gather(outputs)
    if gathered is None:
        return None
    return [gathered[number % world.size][number // world.size] for number in range(len(batches))]


def finished(value: Any) -> Future:
    """A future that has this result."""
    future: Future = Future()
    future.set_result(value)
    return future


def as_arrays(tensors: Any) -> Any:
    """The same structure with NumPy arrays. Waits for the device."""
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), tensors)
