"""The training loop: evaluation, checkpoints and logging between the steps."""

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Literal

from distributed import phases
from distributed.checkpoint import Checkpoints
from distributed.feed import Feed, prefetched
from distributed.gradient import TrainingStep
from distributed.log import Log
from distributed.plan import Plan
from distributed.run import Run
from distributed.state import State
from ringbase.errors import Preempted

PASSES = 3  # a training step costs as much as three forward passes (Kaplan et al. 2020, section 2.1)
EVALUATION_SHARE = 0.02  # the largest share of the time that evaluations take with "auto"


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """A measurement on held-out data.

    Attributes:
      measure: () -> scores; every rank calls it and gets the same values.
      num_rows: how many rows a measurement reads, from which its cost is estimated.
      every: steps between measurements, "epoch", or "auto" for a small share of the training time; the last step
        is always measured.
      best: the name of the score (larger is better) that decides which checkpoint is kept as the best; None for
        none.
      patience: training stops after this many measurements without a better score; None for never.
    """

    measure: Callable[[], Mapping[str, float]]
    num_rows: int
    every: int | Literal["auto", "epoch"]
    best: str | None = None
    patience: int | None = None

    def interval(self, plan: Plan) -> int:
        """Steps between measurements. The share of "auto" is not measured but estimated from numbers of rows, so
        that all runs of one plan measure at the same steps."""
        if self.every == "epoch":
            return math.ceil(plan.rows / plan.global_batch_size)
        if self.every == "auto":
            cost = PASSES * plan.steps * plan.global_batch_size / self.num_rows  # in measurements
            return math.ceil(plan.steps / max(1, int(cost * EVALUATION_SHARE / (1 - EVALUATION_SHARE))))
        return self.every

    def is_due(self, state: State, plan: Plan) -> bool:
        """Whether to measure now: every so many steps and after the last one, once at each position."""
        is_place = state.step == plan.steps or state.step % self.interval(plan) == 0
        return is_place and state.evaluated < state.position

    def is_patient(self, state: State) -> bool:
        """Whether the last measurements give hope for a better score."""
        if self.patience is None or state.best is None:
            return True
        return sum(position > state.best[0] for position, _ in state.evaluations) < self.patience


def train(
    step: TrainingStep,
    feed: Feed,
    plan: Plan,
    checkpoints: Checkpoints,
    run: Run,
    log_steps: int,
    held_out: HeldOut | None = None,
) -> State:
    """Trains from `step.state` to the end of the plan. Returns the last state, which is saved.

    All ranks begin with the variables and the state of the rank that is furthest: after a death in an elastic
    world, the survivors go on when all of them call it again.

    Raises:
      Preempted: after SIGUSR1, once all ranks have finished the same step and the checkpoint is saved.
      NotFinite: too many gradients are not finite, or nothing was learned.
      OutOfMemory: the device has not enough memory for a micro-batch.
      InputError: the replicas are not equal, or a checkpoint cannot be written.
    """
    world = step.optimizer.world
    is_survivor = world.size < plan.size
    plan = plan.on_ranks(world.size)
    state = step.synchronize()
    if is_survivor:  # what a dead rank 0 was writing is lost
        world.on_first(run.take_over)
        state = step.state = world.on_first(checkpoints.without_lost, state)
    run.rewind_metrics(state.position)
    log, stop, overdue = Log(log_steps, world, run, state), False, is_survivor
    end = state.position + (plan.steps - state.step) * plan.global_batch_size
    positions = range(state.position, end, plan.global_batch_size)
    with (
        world.training(),
        closing(prefetched(partial(feed.micro_batches, plan, world.rank), positions)) as batches,
    ):
        while True:
            if held_out and held_out.is_due(state, plan):
                with log.pausing():
                    state = step.state = measured(held_out, state, run)
            ends = stop or is_finished(state, held_out)
            if ends or overdue or checkpoints.is_due(state):
                with log.pausing():
                    checkpoints.save(step.optimizer, state)
            if ends:
                break
            mine = next(batches)
            log.clock.mark("data_s")
            requests = world.stop_wanted.is_set(), checkpoints.is_overdue()
            result, (stop, overdue) = step.take(mine, state.step, requests, log.clock)
            state = step.state = state.after_step()
            log.step(state, result)
            if state.step in phases.STEPS:
                phases.ended(phases.STEPS[state.step], result.numbers)
        with log.pausing():
            checkpoints.finish()
    log.close()
    if stop:
        world.stop_wanted.clear()
        run.say(f"saved after step {state.step} of {plan.steps} on request; to continue, run the same command")
        run.close()
        raise Preempted
    if held_out and state.step < plan.steps:
        best, patience = held_out.best, held_out.patience
        run.say(f"stopped after step {state.step}: {best} did not improve {patience} times")
    return state


def measured(held_out: HeldOut, state: State, run: Run) -> State:
    """Evaluates and logs; returns the state with the score that selects the best checkpoint."""
    scores = held_out.measure()
    run.metrics(state.step, {"rows": state.position, **scores})
    run.say(f"step {state.step}: " + ", ".join(f"{name} {value:.4f}" for name, value in scores.items()))
    return state.with_score(None if held_out.best is None else scores[held_out.best])


def is_finished(state: State, held_out: HeldOut | None) -> bool:
    """Whether a training is at the end of its plan, or out of patience."""
    return state.step == state.steps or (held_out is not None and not held_out.is_patient(state))
