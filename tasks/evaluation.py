"""How often a model is evaluated on held-out data during training."""

import math

import numpy as np

from distributed.plan import Plan
from distributed.rows import BatchRows
from distributed.run import Run
from distributed.train import HeldOut

PASSES = 3  # a training step costs as much as three forward passes (Kaplan et al. 2020, section 2.1)
EVALUATION_SHARE = 0.02  # the largest share of the time that evaluations take with "auto"
NUM_SAMPLED_ROWS = 1000


def evaluation_interval(held_out: HeldOut, plan: Plan, rows: BatchRows, run: Run) -> int:
    """The number of steps between evaluations. Prints it, with the share of the time that evaluations will take.

    The share is estimated from token counts, where a training step counts `PASSES` times. It is not measured, so
    that all runs of one plan evaluate at the same steps. The estimate ignores dropout, the optimizer's update, and
    the time that ranks with fewer evaluation batches wait for the others.
    """
    sample = np.linspace(0, len(rows), min(len(rows), NUM_SAMPLED_ROWS), endpoint=False).astype(int)
    mean_length = float(rows.lengths_at("input_ids", sample).mean())
    training = PASSES * plan.steps * plan.global_batch_size * mean_length
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
