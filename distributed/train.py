"""The training loop: evaluation and checkpoints between the steps, and what it shows and logs."""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

from distributed.checkpoint import Checkpoints
from distributed.gradient import StepClock, TrainingStep
from distributed.optimizer import StepResult, terms_without_targets
from distributed.plan import LoopSettings, Plan, State
from distributed.rows import Feed
from distributed.run import Run
from distributed.timeline import Profile, Timeline
from distributed.world import World
from ringbase.errors import InputError, Preempted, Stopped

# a training step costs as much as three forward passes (Kaplan et al. 2020, section 2.1)
PASSES = 3
EVALUATION_SHARE = 0.02  # the largest share of the time that evaluations take with "auto"
MOST_SKIPPED_STEPS = 20
LOG_STEPS, LOGGED_STEPS = 25, 50  # a log line every 25 steps; in short runs at least 50 of them


class NotFinite(InputError):
    """The gradients of a training are not finite numbers."""


class NoTargets(InputError):
    """The rows of a training have no targets."""


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
    stopping = world.stopping("finishing this step, then saving")
    with stopping, closing(log.bar), feeding as batches:
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
                    checkpoints.save(step.optimizer, state)
            if ends:
                break
            if loop.check_steps and state.step % loop.check_steps == 0:
                with log.pausing("check"):
                    step.compare_ranks(partial(feed.micro_batches, plan, position=state.position))
            checkpoints.check()
            mine = next(batches)
            log.clock.mark("data_s")
            requests = world.stop_wanted.is_set(), checkpoints.is_overdue()
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


class Log:
    """Shows each step; logs every `log_steps`-th, the first two and the last. On GPUs it shows the
    step before, because reading the newest result would wait until the GPU is idle."""

    def __init__(self, loop: LoopSettings, world: World, run: Run, state: State):
        """`state`: where the training begins; it has the number of steps and of rows per step."""
        self._is_async = world.device.is_gpu
        self._begin = state.step
        self._timeline = Timeline(loop.timeline, world)
        self._profile = Profile(loop.profile_steps, run, state.step)
        default = min(LOG_STEPS, max(1, state.steps // LOGGED_STEPS))
        self._every = loop.log_steps or default
        timed = self._every if self._is_async and not loop.timeline else 1
        self.clock = StepClock(state.global_batch_size, self._is_async, timed, self._timeline.add)
        self._world = world
        self._run = run
        self.bar = run.progress(state.steps, "training", initial=state.step)
        self._skipped, self._all_skipped = 0, 0  # in a row, and of the whole training
        self._began_s = time.perf_counter()
        self._unread: deque = deque()
        self._unlogged: tuple | None = None  # the newest step
        self._times: list = []  # of the logged steps

    def step(self, state: State, result: StepResult) -> None:
        """Shows the result of the step that led to `state`. Raises NotFinite or NoTargets when too
        many in a row were skipped, or all of them."""
        is_logged = state.step % self._every == 0 or state.step in (1, 2, state.steps)
        times = self.clock.read(resets=is_logged)
        self._unread.append((state, result, times, is_logged))
        self._show_all_but(self._is_async)
        self._profile.after(state.step)

    def _show_all_but(self, num_unread: int) -> None:
        while len(self._unread) > num_unread:
            state, result, times, is_logged = self._unread.popleft()
            # on GPUs the sum is waited for here
            with self._world.operation("the result of a step"):
                values = result.read()
            is_applied, scale = values.pop("applied"), values.get("loss_scale")
            missing = ", ".join(terms_without_targets(result.weights))
            self._skipped = 0 if is_applied else self._skipped + 1
            self._all_skipped += not is_applied
            if not is_applied:
                reason, now = f"no row has a target for {missing}", ""
                if not missing:
                    reason = "the gradient is not finite"
                    now = f"; the loss scale is now {scale:g}" if scale else ""
                self._run.say(f"step {state.step}: {reason}; all ranks skip the step{now}")
            # also in the steps before this start, in which not all can have been skipped
            num_steps = state.step - self._begin
            has_learned = state.step < state.steps or self._begin > 0 or self._skipped < num_steps
            if self._skipped == MOST_SKIPPED_STEPS or not has_learned:
                if missing:
                    raise NoTargets(f"no row has a target for {missing} in {self._skipped} steps")
                raise NotFinite(f"no finite gradient in {self._skipped} steps")
            shown = {name: f"{values[name]:.4f}" for name in ("loss", *result.weights)}
            shown["rate"] = f"{values['learning_rate']:.2e}"
            shown["examples_s"] = f"{times['examples_per_s']:.1f}"
            self.bar.set_postfix(shown, refresh=False)
            self.bar.update()
            self._unlogged = state, values, times
            if is_logged:
                self._write()

    def _write(self) -> None:
        if self._unlogged:
            state, values, times = self._unlogged
            place = {"rows": state.position, "ranks": self._world.size}
            self._run.metrics(state.step, {**place, **values, **times})
            self._times.append(times)
            self._unlogged = None

    @contextmanager
    def pausing(self, name: str) -> Iterator[None]:
        """The time of the `with` block, a checkpoint or an evaluation, is not that of a step."""
        self._show_all_but(0)
        yield
        self.clock.skip(name)

    def close(self) -> None:
        """Says how long the training took. Logs the last step, and of all ranks the median time of
        each part of a step."""
        self._profile.close()
        self._timeline.write(self._run)
        self._write()
        times = self._times[1:] or self._times  # the first holds the compilation
        medians = {}
        for name in times[0] if times else ():
            medians[name] = statistics.median(each.get(name, 0.0) for each in times)
        of_ranks = self._world.all_gather(medians)
        if any(of_ranks):
            self._run.write_json("step_times.json", of_ranks)
        skipped = f", skipped steps: {self._all_skipped:,}" if self._all_skipped else ""
        self._run.say(f"trained for {time.perf_counter() - self._began_s:.1f} s{skipped}")
