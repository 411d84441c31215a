"""Prediction over all ranks; each batch is computed by one rank."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from distributed.feed import Batch, prefetched
from distributed.gradient import batch_signature, naming_memory
from distributed.run import Run
from distributed.world import World
from ringbase.errors import InputError

Forward = Callable[[Batch], Any]  # the model's input -> its outputs


def traced_once(function: Forward) -> Forward:
    """`function` as a graph for batches of any size with the arrays of the first one."""
    traced: Forward | None = None

    def call(batch: Batch) -> Any:
        nonlocal traced
        if traced is None:
            traced = tf.function(function, input_signature=[batch_signature(batch)], autograph=False)
        return traced(batch)

    return call


def predict(
    world: World,
    run: Run,
    batches: Sequence[np.ndarray],
    make_batch: Callable[[np.ndarray], Batch],
    forward: Forward,
    *,
    digest: Callable[[int, Any], Any] = lambda number, output: output,
    label: str | None = "prediction",
) -> list[Any] | None:
    """Returns the digest of `forward` of every batch, in order, on rank 0; None on other ranks.

    Each batch is computed by one rank, so that results do not depend on the number of ranks.

    Args:
      batches: the row numbers of each batch.
      make_batch: row numbers -> the model's input; called in a thread, ahead of the model.
      digest: (number of the batch, output as NumPy arrays) -> what is kept of it, by default all; called in a
        thread, while the model computes the next batch.
      label: the label of the progress bar; None for no bar.
    """
    mine = range(world.rank, len(batches), world.size)
    bar = run.progress(len(mine), label, "batch")
    numbers, kept, computed = iter(mine), list[Future](), None
    with ThreadPoolExecutor(1, "digest") as thread:

        def keep(output: Any) -> None:
            arrays = tf.nest.map_structure(lambda tensor: tensor.numpy(), output)  # waits for the device
            kept.append(thread.submit(digest, next(numbers), arrays))
            bar.update()

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
