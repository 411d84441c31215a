"""The training loop: evaluation, checkpoints and logging between the steps."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """A measurement on held-out data.

    Attributes:
      measure: () -> scores; every rank calls it and gets the same values.
      tokens: how many tokens a measurement reads, from which its cost is estimated.
      every: steps between measurements, "epoch", or "auto" for a small share of the training time; the last step
        is always measured.
      best: the name of the score (larger is better) that decides which checkpoint is kept as the best; None for
        none.
      patience: training stops after this many measurements without a better score; None for never.
    """

    measure: Callable[[], Mapping[str, float]]
    tokens: int
    every: int | Literal["auto", "epoch"]
    best: str | None = None
    patience: int | None = None

    def is_due(self, state: State) -> bool:
        """Whether to measure now: every so many steps and after the last one, once at each position."""
        is_place = state.step == state.steps or state.step % int(self.every) == 0
        return is_place and state.evaluated < state.position

    def stops(self, state: State) -> bool:
        """Whether patience has run out."""
        if self.patience is None or state.best is None:
            return False
        since_best = [position for position, _ in state.evaluations if position > state.best[0]]
        return len(since_best) >= self.patience


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

    `held_out.every` must be a number of steps here. All ranks begin with the variables and the state of the rank
    that is furthest. So after a death in an elastic world, the survivors go on when all of them call it again.

    Raises:
      Preempted: after SIGUSR1, once all ranks have finished the same step and the checkpoint is saved.
      NotFinite: too many gradients are not finite, or nothing was learned.
      OutOfMemory: the device has not enough memory for a micro-batch.
      InputError: the replicas are not equal, or a checkpoint cannot be written.
    """
    world = step.optimizer.world
    is_survivor = world.size < plan.size
    plan = plan.on_ranks(world.size)
    state = replace(step.synchronize(), steps=plan.steps, global_batch_size=plan.global_batch_size)
    if is_survivor:  # what a dead rank 0 was writing is lost
        world.on_first(run.take_over)
        state = world.on_first(checkpoints.on_disk, state)
    step.state = state
    run.rewind_metrics(state.position)
    log, stop, overdue = Log(log_steps, world, run, state), False, is_survivor
    end = state.position + (plan.steps - state.step) * plan.global_batch_size
    positions = range(state.position, end, plan.global_batch_size)
    with (
        world.stop_wanted.during_training(),
        closing(prefetched(partial(feed.micro_batches, plan, world.rank), positions)) as batches,
    ):
        while True:
            if held_out and held_out.is_due(state):
                with log.pausing():
                    state = step.state = measured(held_out, state, run)
            ends = stop or state.step == plan.steps or bool(held_out and held_out.stops(state))
            if ends or overdue or checkpoints.is_due(state):
                with log.pausing():
                    state = step.state = checkpoints.save(step.optimizer, state)
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


def resumed_step(state: State, plan: Plan) -> int:
    """The step of this plan that corresponds to a checkpoint, which may have been written with another number of
    ranks."""
    if state.step >= state.steps:
        return plan.steps
    if state.global_batch_size == plan.global_batch_size:
        return min(state.step, plan.steps)
    return min(-(-state.position // plan.global_batch_size), plan.steps)
