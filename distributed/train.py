"""The training loop: evaluation, checkpoints and logging between the steps."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import keras

from distributed.checkpoint import Checkpoints, State
from distributed.evaluation import HeldOut
from distributed.feed import Feed
from distributed.gradient import Gradient, Loss, seconds_of
from distributed.optimizer import AllreduceOptimizer
from distributed.plan import Plan
from distributed.run import Run
from distributed.settings import LoopSettings
from distributed.steps import Step, StepClock, steps
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
      InputError: the gradients stay non-finite, the replicas are not equal, or memory runs out.
    """
    state = start or State(0, 0, plan.steps, plan.global_batch_size, training.settings)
    held_out = training.held_out
    if held_out and held_out.stops(state):
        return state
    log = Log(settings, plan, training, optimizer, run, state.step)
    gradient = choose_gradient(settings.xla, plan, training, optimizer, run, state)
    log.clock.skip()
    stops_early = False
    with closing(
        steps(optimizer, gradient, training.feed, plan, settings.seed, log.clock, state.step, state.position)
    ) as steps_of_plan:
        for step in steps_of_plan:
            log.step(step)
            facts = plan.steps, plan.global_batch_size, training.settings
            state = State(step.position, step.number, *facts, state.evaluations)
            is_last = step.number == plan.steps
            is_measured = held_out is not None and (is_last or step.number % int(held_out.every) == 0)
            if held_out and is_measured:
                with log.waiting_for("evaluations"):
                    state = measured(held_out, state, run)
                stops_early = held_out.stops(state)
            if is_last or is_measured or step.wants_stop or step.number % settings.save_checkpoints_steps == 0:
                with log.waiting_for("checkpoints"):
                    checkpoints.save(optimizer, state)
                    if is_last or stops_early or step.wants_stop:
                        checkpoints.finish()
            if step.wants_stop:
                optimizer.world.stop_wanted.clear()
                log.close()
                run.say(
                    f"SIGUSR1: saved after step {step.number} of {plan.steps}; to continue, run the same command"
                )
                run.close()
                raise Preempted
            if held_out and stops_early:
                run.say(
                    f"stopped after step {step.number}: {held_out.best} did not improve {held_out.patience} times"
                )
                break
    log.close()
    run.say(log.summary())
    return state


def choose_gradient(
    xla: str, plan: Plan, training: Training, optimizer: AllreduceOptimizer, run: Run, state: State
) -> Gradient:
    """The gradient function that `--xla` asks for; "auto" times both kinds on the rows of the first step."""

    def gradient(is_fixed: bool) -> Gradient:
        advice = training.memory_advice + ", or give --xla off" * is_fixed
        return Gradient(optimizer, training.loss, is_fixed, advice)

    if xla != "auto" or state.step >= plan.steps:
        return gradient(xla == "on")
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
    return gradients[is_fixed]


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
        self.clock = StepClock(plan.global_batch_size)
        self._every, self._last_step = settings.log_steps, plan.steps
        self._optimizer, self._run, self._overflow_advice = optimizer, run, training.overflow_advice
        self._bar = run.progress(plan.steps, "training", initial=first)
        self._skipped = 0
        self._waits: dict[str, float] = {"checkpoints": 0.0}
        self._began = time.perf_counter()

    def step(self, step: Step) -> None:
        """Shows a step, and logs it every `log_steps`. Raises InputError when too many in a row were skipped."""
        result = step.result
        self._skipped = 0 if result.applied else self._skipped + 1
        if self._skipped:
            scale = (
                f"; the loss scale is now {self._optimizer.loss_scale:g}" if self._optimizer.scales_loss else ""
            )
            self._run.say(
                f"step {step.number}: the gradient is not finite; the step is skipped on every rank{scale}"
            )
        if self._skipped == MOST_SKIPPED_STEPS:
            raise InputError(f"no finite gradient in {self._skipped} steps: {self._overflow_advice}")
        losses = {"loss": sum(result.losses.values()), **result.losses}
        shown = {name: f"{value:.4f}" for name, value in losses.items()}
        speed = f"{self.clock.rows_per_s():.1f}"
        self._bar.update(step.number, **shown, rate=f"{result.learning_rate:.2e}", examples_s=speed)
        if step.number % self._every == 0 or step.number in (1, self._last_step):
            facts = {"learning_rate": result.learning_rate, "gradient_norm": result.gradient_norm}
            if self._optimizer.scales_loss:
                facts["loss_scale"] = self._optimizer.loss_scale
            self._run.metrics(step.number, {"rows": step.position, **losses, **facts, **self.clock.read()})

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
        self._bar.close()
