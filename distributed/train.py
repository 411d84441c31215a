"""The training loop: evaluation, checkpoints and logging between the steps."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import NoReturn

import keras

from distributed import signals
from distributed.checkpoint import Checkpoints, State
from distributed.evaluation import HeldOut
from distributed.feed import Feed
from distributed.gradient import Gradient, Loss, seconds_of
from distributed.optimizer import AllreduceOptimizer
from distributed.plan import Plan
from distributed.run import Run
from distributed.settings import LoopSettings
from distributed.steps import Step, StepClock, steps
from distributed.world import World
from ringbert.errors import InputError, Preempted

MOST_SKIPPED_STEPS = 20


@dataclass(frozen=True, kw_only=True)
class Training:
    """The model, data and loss of a run.

    Attributes:
      feed: the data, and its conversion to batches.
      loss: (batch, dropout key int32 [2]) -> the sum of each loss term over the batch, not its mean.
      loss_terms: their names; each is divided by its weight over all ranks, and their sum is minimized.
      data_key: a digest of the data, the same on all ranks.
      settings: flag -> value, for flags that must not change when a run is resumed; kept in each checkpoint.
      held_out: the evaluation during training.
      memory_advice, overflow_advice: what the user can do when memory runs out, or when gradients stay non-finite.
    """

    model: keras.Model
    feed: Feed
    loss: Loss
    loss_terms: Sequence[str] = ("loss",)
    data_key: str = ""
    settings: dict[str, object]
    held_out: HeldOut | None = None
    memory_advice: str = "use smaller micro-batches"
    overflow_advice: str = "lower --learning_rate"


def train(
    settings: LoopSettings,
    plan: Plan,
    training: Training,
    optimizer: AllreduceOptimizer,
    run: Run,
    checkpoints: Checkpoints,
    start: State | None = None,
) -> State:
    """Trains to the end of the plan, from `start` if given; returns the last state, which is saved.

    `training.held_out.every` must be a number of steps here.

    Raises:
      Preempted: after SIGUSR1, once all ranks have finished the same step and the checkpoint is saved.
      InputError: the gradients stay non-finite, no step could be applied, the replicas are not equal, or memory
        runs out.
    """
    state = start or State(0, 0, plan.steps, plan.global_batch_size, training.settings)
    held_out = training.held_out
    if held_out and held_out.stops(state):
        return state
    log = Log(settings, plan, training, optimizer, run, state.step)
    gradient = choose_gradient(settings.xla, plan, training, optimizer, run, state)
    if gradient.is_fixed and state.step < plan.steps:
        compile_shapes(gradient, plan, training.feed, run)
    log.clock.skip()
    stops_early = False
    with (
        signals.training(optimizer.world.is_training),
        closing(
            steps(optimizer, gradient, training.feed, plan, settings.seed, log.clock, state.step, state.position)
        ) as steps_of_plan,
    ):
        for step in steps_of_plan:
            log.step(step)
            facts = plan.steps, plan.global_batch_size, training.settings
            state = State(step.position, step.number, *facts, state.evaluations)
            is_last = step.number == plan.steps
            is_measured = held_out is not None and (is_last or step.number % int(held_out.every) == 0)
            is_due = step.wants_save or step.number % settings.save_checkpoints_steps == 0
            saves = is_due or is_last or is_measured or step.wants_stop
            if saves:
                log.flush(is_last)
            if held_out and is_measured:
                with log.waiting_for("evaluations"):
                    state = measured(held_out, state, run)
                stops_early = held_out.stops(state)
            if saves:
                with log.waiting_for("checkpoints"):
                    checkpoints.save(optimizer, state)
                    if is_last or stops_early or step.wants_stop:
                        checkpoints.finish()
            if checkpoints.is_overdue(settings.save_checkpoints_minutes):
                optimizer.world.save_wanted.set()  # the ranks' clocks differ: the next step tells all of them
            if step.wants_stop:
                leave(step, plan, log, run, optimizer.world)
            if held_out and stops_early:
                best, patience = held_out.best, held_out.patience
                run.say(f"stopped after step {step.number}: {best} did not improve {patience} times")
                break
    log.close()
    run.say(log.summary())
    return state


def leave(step: Step, plan: Plan, log: "Log", run: Run, world: World) -> NoReturn:
    """Ends a run that was asked to save and stop, and has saved."""
    world.stop_wanted.clear()
    log.close()
    run.say(f"saved after step {step.number} of {plan.steps} on request; to continue, run the same command")
    run.close()
    raise Preempted


def choose_gradient(
    xla: str, plan: Plan, training: Training, optimizer: AllreduceOptimizer, run: Run, state: State
) -> Gradient:
    """The gradient function that `--xla` asks for; "auto" times both kinds on the rows of the first step."""

    def gradient(is_fixed: bool, applies: bool = False) -> Gradient:
        advice = training.memory_advice + ", or give --xla off" * is_fixed
        return Gradient(optimizer, training.loss, is_fixed, advice, applies)

    if xla != "auto" or state.step >= plan.steps:
        is_fixed = xla == "on"
        return gradient(is_fixed, is_fixed and optimizer.compiles_steps)
    gradients = {is_fixed: gradient(is_fixed) for is_fixed in (False, True)}
    seconds = {}
    for is_fixed in gradients:
        batches = training.feed.micro_batches(plan, optimizer.world.rank, state.position, is_fixed)
        seconds[is_fixed] = seconds_of(gradients[is_fixed], optimizer, training.feed.weights, batches)
    is_fixed = seconds[True] < seconds[False]
    run.say(
        f"--xla auto: {'on' if is_fixed else 'off'}; the gradient of the first step takes "
        f"{seconds[True] * 1e3:.3g} ms compiled by XLA as a whole, {seconds[False] * 1e3:.3g} ms without"
    )
    return gradient(True, applies=True) if is_fixed and optimizer.compiles_steps else gradients[is_fixed]


def compile_shapes(gradient: Gradient, plan: Plan, feed: Feed, run: Run) -> None:
    """Compiles for every shape before the first step. In the middle of a run all ranks would wait for one."""
    began = time.perf_counter()
    gradient.compile(feed.batches_of_shapes(), plan.accumulation)
    seconds, num_shapes = time.perf_counter() - began, len(feed.collates_of_shapes)
    run.say(f"XLA compiled the step for {num_shapes} shape{'s' * (num_shapes != 1)} in {seconds:.1f} s")


def measured(held_out: HeldOut, state: State, run: Run) -> State:
    """Evaluates and logs; returns the state, with the score that selects the best checkpoint added."""
    scores = held_out.measure()
    run.metrics(state.step, {"rows": state.position, **scores})
    run.say(f"step {state.step}: " + ", ".join(f"{name} {value:.4f}" for name, value in scores.items()))
    if held_out.best is None:
        return state
    return replace(state, evaluations=[*state.evaluations, [state.position, float(scores[held_out.best])]])


def resumed_step(state: State, plan: Plan) -> int:
    """The step of this plan that corresponds to a checkpoint, which may have been written with another number of
    ranks."""
    if state.step >= state.steps:
        return plan.steps
    if state.global_batch_size == plan.global_batch_size:
        return min(state.step, plan.steps)
    return min(-(-state.position // plan.global_batch_size), plan.steps)


class Log:
    """Shows and logs the steps of a run, and measures how its time is spent."""

    def __init__(
        self,
        settings: LoopSettings,
        plan: Plan,
        training: Training,
        optimizer: AllreduceOptimizer,
        run: Run,
        first: int,
    ):
        self._is_async = optimizer.world.device == "gpu"
        self.clock = StepClock(plan.global_batch_size, self._is_async, settings.log_steps)
        self._every, self._last_step = settings.log_steps, plan.steps
        self._optimizer, self._run, self._overflow_advice = optimizer, run, training.overflow_advice
        self._bar = run.progress(plan.steps, "training", initial=first)
        self._skipped = self._applied = 0
        self._loss = math.nan
        self._unread: tuple[Step, dict[str, float]] | None = None
        self._waits: dict[str, float] = {"checkpoints": 0.0}
        self._began = time.perf_counter()

    def step(self, step: Step) -> None:
        """Shows a step, and logs it every `log_steps`. Raises InputError when too many in a row were skipped.

        On GPUs it shows the step before, because reading the newest result would wait until the GPU is idle.
        """
        unread = step, self.clock.read() if self._is_logged(step) else {}
        if self._is_async:
            self.flush()
            self._unread = unread
        else:
            self._show(*unread)

    def flush(self, is_last: bool = False) -> None:
        """Shows the step that `step` has not shown yet.

        Raises InputError if the run ends with it and learned nothing: no step was applied, or the last loss is not
        finite.
        """
        if self._unread is not None:
            unread, self._unread = self._unread, None
            self._show(*unread)
        if is_last and not self._applied:
            raise InputError(f"no step had a finite gradient, so nothing was learned: {self._overflow_advice}")
        if is_last and not math.isfinite(self._loss):
            raise InputError(f"the loss of the last step is {self._loss}: {self._overflow_advice}")

    def _is_logged(self, step: Step) -> bool:
        return step.number % self._every == 0 or step.number in (1, self._last_step)

    def _show(self, step: Step, times: dict[str, float]) -> None:
        result = step.result
        self._skipped = 0 if result.applied else self._skipped + 1
        if self._skipped:
            scale = f"; the loss scale is now {result.loss_scale:g}" if self._optimizer.scales_loss else ""
            self._run.say(
                f"step {step.number}: the gradient is not finite; the step is skipped on every rank{scale}"
            )
        if self._skipped == MOST_SKIPPED_STEPS:
            raise InputError(f"no finite gradient in {self._skipped} steps: {self._overflow_advice}")
        losses = {"loss": sum(result.losses.values()), **result.losses}
        self._applied, self._loss = self._applied + result.applied, losses["loss"]
        shown = {name: f"{value:.4f}" for name, value in losses.items()}
        speed = f"{self.clock.rows_per_s():.1f}"
        self._bar.update(step.number, **shown, rate=f"{result.learning_rate:.2e}", examples_s=speed)
        if self._is_logged(step):
            facts = {"learning_rate": result.learning_rate, "gradient_norm": result.gradient_norm}
            if self._optimizer.scales_loss:
                facts["loss_scale"] = result.loss_scale
            self._run.metrics(step.number, {"rows": step.position, **losses, **facts, **times})

    @contextmanager
    def waiting_for(self, what: str) -> Iterator[None]:
        """Counts the time of the `with` block as waiting for `what`, not as time of a step."""
        began = time.perf_counter()
        yield
        self._waits[what] = self._waits.get(what, 0.0) + time.perf_counter() - began
        self.clock.skip()

    def summary(self) -> str:
        whole_s = time.perf_counter() - self._began
        waits = ", ".join(
            f"{waited:.1f} s for {what} ({waited / whole_s:.1%})" for what, waited in self._waits.items()
        )
        return f"trained for {whole_s:.1f} s; of that waited {waits}"

    def close(self) -> None:
        self.flush()
        self._bar.close()
