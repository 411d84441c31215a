"""From windows of tokens to the start and end scores of each token, for bert-squad and for `QuestionAnswering`."""

import itertools
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from bert.batch import Grouping, batch_of, with_checked_ids
from distributed.feed import Batch, batch_maker
from distributed.predict import predict
from distributed.rows import Rows
from ringbase.ragged import padded
from tasks.batches import prediction_batches
from tasks.job import Job


class ScoreWindows(Protocol):
    def __call__(
        self, windows: Rows, batch_size: int, digest: Callable[[int, np.ndarray], Any] | None = None
    ) -> list[Any] | None: ...


def collate(fields: dict, grouping: Grouping | None = None) -> Batch:
    """Windows -> the encoder's inputs and the answers' positions [B]."""
    fields, batch = batch_of(fields | {"sentence_a_tokens": fields["question_tokens"]}, grouping)
    answers = ("start_position", "end_position")
    lengths = np.diff(fields["input_ids"][1])
    assert all((fields[name] < lengths).all() for name in answers), "an answer outside its window"
    return batch | {name: padded(fields[name], len(batch["first_tokens"])) for name in answers}


def window_scorer(job: Job, max_seq_length: int) -> ScoreWindows:
    """A function of the job's model: (windows, batch size, digest) -> start and end scores of every window,
    float32 [tokens, 2], or what `digest(window number, scores)` returns, on rank 0; None elsewhere. A batch has at
    most as many tokens as this number of windows of `max_seq_length`."""

    def score_windows(
        windows: Rows, batch_size: int, digest: Callable[[int, np.ndarray], Any] | None = None
    ) -> list[Any] | None:
        lengths = np.diff(windows.column("input_ids")[1])
        batches = prediction_batches(lengths, batch_size, max_seq_length)
        make_batch = batch_maker(windows, with_checked_ids(collate, job.engine.config))

        def by_window(number: int, scores_R2: np.ndarray) -> list[Any]:
            ends = np.cumsum(lengths[batches[number]])
            own = zip(batches[number], np.split(scores_R2, ends), strict=False)
            return [scores if digest is None else digest(window, scores) for window, scores in own]

        outputs = predict(job.world, job.run, batches, make_batch, job.engine.scores, digest=by_window)
        if outputs is None:
            return None
        of_window = dict(zip(np.concatenate(batches).tolist(), itertools.chain(*outputs), strict=True))
        return [of_window[window] for window in range(len(windows))]

    return score_windows
