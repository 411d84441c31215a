"""The training loop: evaluation and checkpoints between the steps."""

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Literal

from distributed.checkpoint import Checkpoints
from distributed.log import Log
from distributed.optimizer import check_replicas
from distributed.plan import LoopSettings, Plan, State
from distributed.rows import Feed
from distributed.run import Run
from distributed.step import TrainingStep
from ringbase.errors import Preempted, Stopped

# a training step costs as much as three forward passes (Kaplan et al. 2020, section 2.1)
PASSES = 3
EVALUATION_SHARE = 0.02  # the largest share of the time that evaluations take with "auto"


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """A measurement on held-out data."""

    # the scores; every rank calls it and gets the same values
    measure: Callable[[], Mapping[str, float]]
    num_rows: int  # how many rows a measurement reads, from which its cost is estimated
    # steps between measurements; "auto": a small share of the time
    every: int | Literal["auto", "epoch"]
    # the score (larger is better) that decides which checkpoint is kept as the best
    best: str | None = None
    # training stops after this many measurements without a better score
    patience: int | None = None
    key: str = ""  # a digest of the data and of `best`: scores are compared with those of the same

    def interval(self, plan: Plan) -> int:
        """Steps between measurements. The share of "auto" is not measured but estimated from
        numbers of rows, so that all runs of one plan measure at the same steps."""
        if self.every == "epoch":
            return math.ceil(plan.rows / plan.global_batch_size)
        if self.every == "auto":
            cost = PASSES * plan.steps * plan.global_batch_size / self.num_rows  # in measurements
            number = int(cost * EVALUATION_SHARE / (1 - EVALUATION_SHARE))
            return math.ceil(plan.steps / max(1, number))
        return self.every

    def is_due(self, state: State, plan: Plan) -> bool:
        """Whether to measure now: every so many steps and after the last one, once at each
        position."""
        is_place = state.step == plan.steps or state.step % self.interval(plan) == 0
        return is_place and state.evaluated < state.position

    def measured(self, state: State, run: Run) -> State:
        """Measures and logs; returns the state with the score that selects the best checkpoint."""
        scores = self.measure()
        run.metrics(state.step, {"rows": state.position, **scores})
        shown = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        run.say(f"step {state.step}: {shown}")
        return state.with_score(None if self.best is None else scores[self.best])


def train(
    step: TrainingStep,
    feed: Feed,
    plan: Plan,
    checkpoints: Checkpoints,
    run: Run,
    loop: LoopSettings,
    held_out: HeldOut | None = None,
) -> State:
    """Trains from `step.state` to the end of the plan. Returns the last state, which is saved.

    All ranks begin with the variables and the state of the rank that is furthest: after a death in
    an elastic world, the survivors go on when all of them call it again. Raises, besides what the
    step, the log and the checkpoints raise, Preempted after SIGUSR1, once all ranks have finished
    the same step and it is saved.
    """
    world = step.optimizer.world
    state = step.synchronize()
    is_survivor = world.size < plan.size
    plan = plan.on_ranks(world.size)
    if is_survivor:  # what a dead rank 0 was writing is lost
        world.on_first(run.lock_again)
        state = step.state = world.on_first(checkpoints.without_lost, state)
    run.rewind_metrics(state.position)
    log, stop, overdue = Log(loop, world, run, state), False, is_survivor
    feeding = closing(feed.batches(plan, world, state))
    stopping = world.stops.within("finishing this step, then saving")
    with stopping, closing(log.display), feeding as batches:
        while True:
            if held_out and held_out.is_due(state, plan) and not stop:
                step.write_back()
                with log.pausing("evaluation"):
                    try:
                        state = step.state = held_out.measured(state, run)
                    except Stopped:  # it is measured when the training goes on
                        stop = True
            ends = stop or is_finished(state, held_out)
            if ends or overdue or checkpoints.is_due(state):
                step.write_back()
                with log.pausing("checkpoint"):
                    check_replicas(step.optimizer)
                    checkpoints.save(state, log.clock.step_s)
            if ends:
                break
            if loop.check_steps and state.step % loop.check_steps == 0:
                with log.pausing("check"):
                    step.compare_ranks(partial(feed.micro_batches, plan, position=state.position))
            checkpoints.check()
            with log.clock.step():
                with log.clock.part("data_s"):
                    mine = next(batches)
                requests = world.stops.wanted.is_set(), checkpoints.is_overdue()
                result, (stop, overdue) = step.take(mine, state.step, requests, log.clock)
            state = step.state = state.after_step()
            log.step(state, result)
        checkpoints.finish()
    log.close()
    if stop:
        run.say(
            f"saved after step {state.step} of {plan.steps} on request; to continue, run the same"
            " command"
        )
        raise Preempted(Preempted.STATUS)
    if held_out and state.step < plan.steps:
        run.say(
            f"stopped after step {state.step}: {held_out.best} did not improve {held_out.patience}"
            " times"
        )
    return state


def is_finished(state: State, held_out: HeldOut | None) -> bool:
    """Whether a training is at the end of its plan, or has not become better for too many
    evaluations."""
    if state.step == state.steps:
        return True
    if not held_out or held_out.patience is None or not state.best:
        return False
    best, _ = state.best
    later = [position for position, _ in state.evaluations if position > best]
    return len(later) >= held_out.patience
