"""Prediction: what a model says about each row, computed over all ranks."""

import itertools
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from bert.batch import rounded_up, with_checked_ids
from bert.model import Bert, Tracing
from distributed.gradient import traced_once
from distributed.predict import predict
from distributed.rows import Rows
from tasks.runs.execute.job import Job
from tasks.runs.rows.sets import DataSet
from tasks.runs.task import Decoder, Task, Trainable

# tokens; XLA takes a second for a prediction's parts, which saves about a tenth
WORTH_COMPILING = 100_000


def batches_of(lengths: np.ndarray, batch_size: int, max_seq_length: int) -> list[np.ndarray]:
    """Row numbers in batches of rows of similar length, the longest first; the same for any number
    of ranks.

    With its padding a batch has at most as many tokens as `batch_size` rows of `max_seq_length`, or
    one row.
    """
    lengths = rounded_up(lengths)
    most_tokens = batch_size * rounded_up(max_seq_length)
    by_length = np.argsort(-lengths, kind="stable")
    batches = []
    start = 0
    while start < len(by_length):
        longest = int(lengths[by_length[start]])
        num_rows = max(1, most_tokens // max(1, longest))
        batches.append(by_length[start : start + num_rows])
        start += num_rows
    return batches


keep_all = Decoder().keep


class Predictor:
    """What a model says about rows. Threads wait for each other."""

    def __init__(
        self,
        model: Bert,
        task: Trainable,
        job: Job,
        forward: Callable | None = None,
        compiles: bool = True,
    ):
        """`forward(batch, tracing=…)` makes the outputs of a batch, by default the scores of the
        model's head. `compiles`: XLA may compile parts of it for long sets, whose last digits then
        differ in bf16."""
        self.model, self._job, self._compiles = model, job, compiles
        self._max_seq_length = task.max_seq_length
        self._lock = threading.Lock()
        self._make_batch = with_checked_ids(task.batch, model.config)

        def traced(by_xla):
            """The forward pass as a graph, traced once. XLA may compile parts."""
            function = forward or model
            return traced_once(partial(function, tracing=Tracing(compiles=by_xla)))

        self._traced = cache(traced)
        self.timing = dict[str, float]()  # of the last set

    def results(self, task: Task, data: DataSet, batch_size: int) -> Any:
        """The task's results for the examples of a set, on rank 0; None elsewhere."""
        began_s = time.perf_counter()
        decoder = task.decoder(data)
        kept = self(data.rows, batch_size, decoder.keep)
        seconds = time.perf_counter() - began_s
        self.timing = {"rows": len(data.rows), "seconds": seconds}
        return None if kept is None else decoder.results(kept)

    def __call__(
        self,
        rows: Rows,
        batch_size: int,
        keep: Callable[[int, np.ndarray], Any] = keep_all,
        label: str | None = "prediction",
    ) -> list | None:
        """What `keep` makes of each row's number and output, in the order of the rows, on rank 0;
        None elsewhere.

        The output is float32 [tokens, …] for a head per token, else what the head says of the
        row. `keep` is called where it was computed, while the model computes the next batch. A
        batch has at most as many tokens as `batch_size` rows of `max_seq_length`.
        """
        lengths = rows.lengths_at("input_ids", np.arange(len(rows)))
        batches = batches_of(lengths, batch_size, self._max_seq_length)
        # without a label it may be a part of more
        is_long = label is None or lengths.sum() >= WORTH_COMPILING
        is_per_token = self.model.head.per == "token"

        def keep_rows(number, outputs):
            rows_of_batch = batches[number]
            if is_per_token:
                ends = np.cumsum(lengths[rows_of_batch])
                outputs = np.split(outputs, ends)
            # what follows is padding
            pairs = zip(rows_of_batch.tolist(), outputs, strict=False)
            return [keep(row, output) for row, output in pairs]

        with self._lock:
            forward = self._traced(self._compiles and bool(is_long))
            source = self._job.world, self._job.run, rows, batches
            kept = predict(*source, self._make_batch, forward, digest=keep_rows, label=label)
        if kept is None:
            return None
        order = np.concatenate(batches).tolist()
        kept_in_order = itertools.chain(*kept)
        by_row = dict(zip(order, kept_in_order, strict=True))
        return [by_row[row] for row in range(len(rows))]
