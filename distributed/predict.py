"""Prediction over all ranks; each batch is computed by one rank."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from distributed.rows import Batch, BatchRows, fields_of, prefetched
from distributed.run import Run
from distributed.world import World
from ringbase.errors import Stopped

Forward = Callable[[Batch], Any]  # the model's input -> its outputs


def predict(
    world: World,
    run: Run,
    rows: BatchRows,
    batches: Sequence[np.ndarray],
    collate: Callable[[dict[str, Any]], Batch],
    forward: Forward,
    *,
    digest: Callable[[int, Any], Any] = lambda number, output: output,
    label: str | None = "prediction",
) -> list | None:
    """Returns the digest of `forward` of every batch, in order, on rank 0; None on other ranks.
    Each batch is computed by one rank, so that results do not depend on the number of ranks.

    Raises Stopped on all ranks if a stop was wanted on some of them meanwhile.

    `batches` are the row numbers of each batch. Threads call `collate`, as that of a `Feed`, ahead
    of the model, and `digest(number of the batch, output as NumPy arrays)`, which returns what is
    kept of it, behind the model.
    """
    with world.stops.within("finishing this batch of predictions"):
        return _predicted(world, run, rows, batches, collate, forward, digest, label)


def _predicted(
    world: World,
    run: Run,
    rows: BatchRows,
    batches: Sequence[np.ndarray],
    collate: Callable[[dict[str, Any]], Batch],
    forward: Forward,
    digest: Callable[[int, Any], Any],
    label: str | None,
) -> list | None:
    mine = range(world.rank, len(batches), world.size)
    kept: list = []

    def batch_of(number):
        return collate(fields_of(rows, batches[number]))

    def digest_of(number, output):
        # waits for the device
        arrays = tf.nest.map_structure(lambda tensor: tensor.numpy(), output)
        return digest(number, arrays)

    progress = run.progress(len(mine), label, "batch")
    # closed also after a death: tqdm ends a job that prints while an open bar is collected
    with progress as bar, ThreadPoolExecutor(1, "digest") as thread:
        for number, batch in zip(mine, prefetched(batch_of, mine), strict=True):
            if world.stops.wanted.is_set():
                break
            # A slow rank may finish long after the others, which wait for its outputs below.
            with world.watchdog.working():
                kept.append(thread.submit(digest_of, number, forward(batch)))
                for earlier in kept[-2:-1]:  # two batches at most, so that a GPU always has work
                    earlier.result()
            bar.update()
        with world.watchdog.working():
            outputs = [future.result() for future in kept]
    is_whole = len(outputs) == len(mine)
    if not all(world.all_gather(is_whole)):
        raise Stopped("the predictions are not complete")
    gathered = world.gather(outputs)
    if gathered is None:
        return None
    in_order: list = [None] * len(batches)
    for rank, of_rank in enumerate(gathered):
        in_order[rank :: world.size] = of_rank
    return in_order
