"""How often a model is evaluated on held-out data during training."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed.feed import Feed
    from distributed.plan import Plan
    from distributed.run import Run
    from distributed.train import HeldOut

PASSES = 3  # a training step costs as much as three forward passes (Kaplan et al. 2020, section 2.1)
EVALUATION_SHARE = 0.02  # the largest share of the time that evaluations take with "auto"
NUM_SAMPLED_ROWS = 1000


def evaluation_interval(held_out: "HeldOut", plan: "Plan", feed: "Feed", run: "Run") -> int:
    """The number of steps between evaluations. Prints it, with the share of the time that evaluations will take.

    The share is estimated from token counts, where a training step counts `PASSES` times. It is not measured, so
    that all runs of one plan evaluate at the same steps. The estimate ignores dropout, the optimizer's update, and
    the time that ranks with fewer evaluation batches wait for the others.
    """
    training = PASSES * plan.steps * plan.global_batch_size * _mean_length(feed)
    affordable = int(training * EVALUATION_SHARE / (1 - EVALUATION_SHARE) / held_out.tokens)
    auto = math.ceil(plan.steps / max(1, affordable))
    intervals = {"auto": auto, "epoch": math.ceil(plan.rows / plan.global_batch_size)}
    every = held_out.every if isinstance(held_out.every, int) else intervals[held_out.every]
    count = math.ceil(plan.steps / every)
    share = count * held_out.tokens / (count * held_out.tokens + training)
    times = f"every {every:,} steps" if count > 1 else "once, at the end"
    hint = f" (--eval_steps auto: {auto:,})" if share > EVALUATION_SHARE and every < auto else ""
    run.say(f"evaluation {times}, about {share:.1%} of the time{hint}")
    if held_out.patience is not None and count <= held_out.patience + 1:  # it could stop only after the last one
        run.say(
            f"warning: with {count} evaluations --early_stopping_patience {held_out.patience} never stops early"
        )
    elif held_out.best and count == 1:
        run.say("warning: with one evaluation the last model is the best")
    return every


def _mean_length(feed: "Feed") -> float:
    """The mean number of tokens of a sample of rows spread over the data."""
    import numpy as np

    sample = np.linspace(0, len(feed.rows), min(len(feed.rows), NUM_SAMPLED_ROWS), endpoint=False).astype(int)
    if feed.lengths:
        return float(feed.lengths(sample).mean())
    return float(np.diff(feed.rows.take(sample)["input_ids"][1]).mean())
