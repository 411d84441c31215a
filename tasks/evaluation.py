"""What is measured on held-out data while training, and how often."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from distributed.feed import Feed
    from distributed.plan import Plan
    from distributed.run import Run
    from distributed.train import Evaluation

PASSES = 3  # a step's forward pass, and twice its products for the gradient (Kaplan et al. 2020, section 2.1)
EVALUATION_SHARE = 0.02  # of the time, at most, with "auto"
ROWS_LOOKED_AT = 1000


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """What the flags ask to be measured while training.

    Attributes:
      measure, best, patience: as those of `distributed.train.Evaluation`.
      tokens: how many each measurement sees.
      every: steps between measurements; "epoch"; "auto": as few as leave them `EVALUATION_SHARE` of the time,
        and at least the last.
    """

    measure: Callable[[], Mapping[str, float]]
    tokens: int
    every: int | Literal["auto", "epoch"]
    best: str | None = None
    patience: int | None = None


def evaluation_of(held_out: HeldOut, plan: "Plan", feed: "Feed", run: "Run") -> "Evaluation":
    """The evaluations of a run by this plan; tells how often, and about what share of the time they take.

    The share is counted in tokens, those of a training step `PASSES` times, and not measured: so all runs of one
    plan evaluate at the same steps. Training has dropout and the update too, which take time; ranks that have
    fewer batches to measure than others wait for those.
    """
    from distributed.train import Evaluation

    training = PASSES * plan.steps * plan.global_batch_size * _tokens_per_row(feed)
    # The last step is measured, too: as many as fit in, at equal distances.
    fitting = int(training * EVALUATION_SHARE / (1 - EVALUATION_SHARE) / held_out.tokens)
    auto = math.ceil(plan.steps / max(1, fitting))
    intervals = {"auto": auto, "epoch": math.ceil(plan.rows / plan.global_batch_size)}
    every = held_out.every if isinstance(held_out.every, int) else intervals[held_out.every]
    count = math.ceil(plan.steps / every)
    measuring = count * held_out.tokens
    share = measuring / (measuring + training)
    times = f"every {every:,} steps" if count > 1 else "once, at the end"
    hint = f" (--eval_steps auto: {auto:,})" if share > EVALUATION_SHARE and every < auto else ""
    run.say(f"evaluation {times}, about {share:.1%} of the time{hint}")
    if held_out.patience is not None and count <= held_out.patience + 1:  # it would stop after the last at best
        run.say(f"warning: with {count} evaluations --early_stopping_patience {held_out.patience} stops nothing")
    elif held_out.best and count == 1:
        run.say("warning: with one evaluation the last model is the best one")
    return Evaluation(held_out.measure, every, held_out.best, held_out.patience)


def _tokens_per_row(feed: "Feed") -> float:
    """The mean of some rows all over the data."""
    import numpy as np

    sample = np.linspace(0, len(feed.rows), min(len(feed.rows), ROWS_LOOKED_AT), endpoint=False).astype(int)
    if feed.lengths:
        return float(feed.lengths(sample).mean())
    return float(np.diff(feed.rows.take(sample)["input_ids"][1]).mean())
