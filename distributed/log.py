"""What a training shows and logs of its steps."""

import statistics
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from distributed.clock import StepClock
from distributed.optimizer import PART, StepResult, terms_without_targets
from distributed.plan import LoopSettings, State
from distributed.run import Run
from distributed.timeline import Profile, Timeline
from distributed.world import World
from ringbase.errors import InputError

MOST_SKIPPED_STEPS = 20
LOG_STEPS, LOGGED_STEPS = 25, 50  # a log line every 25 steps; in short runs at least 50 of them


class NotFinite(InputError):
    """The gradients of a training are not finite numbers."""


class NoTargets(InputError):
    """The rows of a training have no targets."""


class Step(NamedTuple):
    """A step whose result may not have been read yet."""

    state: State  # that it led to
    result: StepResult
    times: Mapping[str, float]  # since the last logged step, and its rate
    is_logged: bool


class SkippedSteps:
    """Counts skipped steps, and ends a training that learns nothing."""

    def __init__(self, begin: int, say):
        """`begin`: the steps before this start, in which not all can have been skipped."""
        self.number = 0  # of the whole training
        self._begin = begin
        self._in_a_row = 0
        self._say = say

    def check(self, step: Step, values: Mapping[str, float]) -> None:
        """Says that a step was skipped, if it was. Raises NotFinite or NoTargets when too many in a
        row were, or all of them."""
        state = step.state
        if values["applied"]:
            self._in_a_row = 0
            return
        self.number += 1
        self._in_a_row += 1
        missing = ", ".join(terms_without_targets(step.result.weights))
        reason, now = f"no row has a target for {missing}", ""
        if not missing:
            reason = "the gradient is not finite"
            scale = values.get("loss_scale")
            now = f"; the loss scale is now {scale:g}" if scale else ""
        self._say(f"step {state.step}: {reason}; all ranks skip the step{now}")
        is_all = self._begin == 0 and state.step == state.steps == self._in_a_row
        if self._in_a_row < MOST_SKIPPED_STEPS and not is_all:
            return
        if missing:
            raise NoTargets(f"no row has a target for {missing} in {self._in_a_row} steps")
        raise NotFinite(f"no finite gradient in {self._in_a_row} steps")


class Display:
    """The progress bar, and the lines of metrics.jsonl."""

    def __init__(self, state: State, run: Run, num_ranks: int):
        self._run = run
        self._num_ranks = num_ranks
        self._bar = run.progress(state.steps, "training", initial=state.step)
        self._is_first = True  # the step that comes next
        self._unlogged: tuple | None = None  # the newest step
        self.times: list[Mapping[str, float]] = []  # of the logged steps

    def show(self, step: Step, values: dict[str, float]) -> None:
        of_terms = [term for term in step.result.weights if PART not in term]
        shown = {name: f"{values[name]:.4f}" for name in ("loss", *of_terms)}
        shown["rate"] = f"{values['learning_rate']:.2e}"
        shown["examples_s"] = f"{step.times['examples_per_s']:.1f}"
        self._bar.set_postfix(shown, refresh=False)
        # most of the first step's time was the compilation, which predicts nothing; a bar that is
        # not shown, as on other ranks, has no `initial`
        if self._is_first and not self._bar.disable:
            self._bar.unpause()
            self._bar.initial += 1
        self._is_first = False
        self._bar.update()
        self._unlogged = step.state, values, step.times
        if step.is_logged:
            self.log()

    def log(self) -> None:
        """Logs the newest step, unless it is."""
        if self._unlogged is None:
            return
        state, values, times = self._unlogged
        place = {"rows": state.position, "ranks": self._num_ranks}
        self._run.metrics(state.step, {**place, **values, **times})
        self.times.append(times)
        self._unlogged = None

    def close(self) -> None:
        self._bar.close()


class Log:
    """Reads the result of each step; shows it, and logs every `log_steps`-th, the first two and the
    last. On GPUs it reads the step before, because the newest result would have to be waited
    for until the GPU is idle."""

    def __init__(self, loop: LoopSettings, world: World, run: Run, state: State):
        """`state`: where the training begins; it has the number of steps and of rows per step."""
        self._world = world
        self._run = run
        self._num_unread = 1 if world.device.is_gpu else 0
        self._unread: deque[Step] = deque()
        self._timeline = Timeline(loop.timeline, world)
        self._profile = Profile(loop.profile_steps, run, state.step)
        default = min(LOG_STEPS, max(1, state.steps // LOGGED_STEPS))
        self._every = loop.log_steps or default
        waits = world.device.is_gpu
        timed = self._every if waits and not loop.timeline else 1
        self.clock = StepClock(state.global_batch_size, waits, timed, self._timeline.add)
        self.display = Display(state, run, world.size)
        self._skipped = SkippedSteps(state.step, run.say)
        self._began_s = time.perf_counter()

    def step(self, state: State, result: StepResult) -> None:
        """Takes the result of the step that led to `state`. Raises as `SkippedSteps`."""
        is_logged = state.step % self._every == 0 or state.step in (1, 2, state.steps)
        times = self.clock.read(resets=is_logged)
        self._unread.append(Step(state, result, times, is_logged))
        self._read_all_but(self._num_unread)
        self._profile.after(state.step)

    def _read_all_but(self, num_unread: int) -> None:
        while len(self._unread) > num_unread:
            step = self._unread.popleft()
            # on GPUs the sum is waited for here
            with self._world.operation(step.result.awaited):
                values = step.result.read()
            self._skipped.check(step, values)
            del values["applied"]
            self.display.show(step, values)

    @contextmanager
    def pausing(self, name: str) -> Iterator[None]:
        """The time of the `with` block, a checkpoint or an evaluation, is not that of a step."""
        self._read_all_but(0)
        with self.clock.pause(name):
            yield

    def close(self) -> None:
        """Says how long the training took. Logs the last step, and of all ranks the median time of
        each part of a step."""
        self._profile.close()
        self._timeline.write(self._run)
        self.display.log()
        logged = self.display.times
        times = logged[1:] or logged  # the first holds the compilation
        medians = {}
        for name in times[0] if times else ():
            medians[name] = statistics.median(each.get(name, 0.0) for each in times)
        of_ranks = self._world.all_gather(medians)
        if any(of_ranks):
            self._run.write_json("step_times.json", of_ranks)
        number = self._skipped.number
        skipped = f", skipped steps: {number:,}" if number else ""
        self._run.say(f"trained for {time.perf_counter() - self._began_s:.1f} s{skipped}")
