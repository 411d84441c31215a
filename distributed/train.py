"""The training loop: evaluation, checkpoints and logging between the steps."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NoReturn

import keras

from distributed import elastic, phases, signals
from distributed.checkpoint import Checkpoints
from distributed.evaluation import HeldOut
from distributed.feed import Feed
from distributed.gradient import Gradient, Loss, seconds_of
from distributed.log import Log
from distributed.optimizer import AllreduceOptimizer
from distributed.plan import Plan
from distributed.run import Run
from distributed.settings import LoopSettings
from distributed.state import State
from distributed.steps import Step, steps
from distributed.world import World
from ringbase.errors import Preempted

OPTIMIZED_FROM = 1000  # steps after which, on CPUs, an optimized graph has earned back its slower start


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
      replan: number of ranks -> the plan for that many, after some have died; it gives the optimizer the plan's
        schedule. By default the steps stay the same.
      memory_advice, overflow_advice: what the user can do when memory runs out, or when gradients stay non-finite.
    """

    model: keras.Model
    feed: Feed
    loss: Loss
    loss_terms: Sequence[str] = ("loss",)
    data_key: str = ""
    settings: dict[str, object]
    held_out: HeldOut | None = None
    replan: Callable[[int], Plan] | None = None
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
    gradient: Gradient | None = None,
) -> State:
    """Trains to the end of the plan, from `start` if given; returns the last state, which is saved.

    `training.held_out.every` must be a number of steps here. `gradient` is what `choose_gradient` returned for
    this training, or for an earlier one with the same loss and optimizer.

    Raises:
      Preempted: after SIGUSR1, once all ranks have finished the same step and the checkpoint is saved.
      InputError: the gradients stay non-finite, no step could be applied, the replicas are not equal, or memory
        runs out.
    """
    state = start or State(0, 0, plan.steps, plan.global_batch_size, training.settings)
    optimizer.world.has_trained = True
    if training.held_out and training.held_out.stops(state):
        return state
    if gradient is None:
        gradient = choose_gradient(settings.xla, plan, training, optimizer, run, state)
    if gradient.is_fixed and state.step < plan.steps:
        compile_shapes(gradient, plan, training.feed, run)
    loop = Loop(settings, plan, training, optimizer, gradient, run, checkpoints, state)
    loss: Exception | None = None
    with signals.training(optimizer.world.is_training):
        while True:
            try:
                if loss is not None:
                    loop.recover(loss)
                return loop.run()
            except Exception as error:
                if not elastic.is_loss(optimizer.world, error):
                    raise
                loss = error


class Loop:
    """The steps of a training and what follows each of them. `run` can go on after `recover`."""

    def __init__(
        self,
        settings: LoopSettings,
        plan: Plan,
        training: Training,
        optimizer: AllreduceOptimizer,
        gradient: Gradient,
        run: Run,
        checkpoints: Checkpoints,
        state: State,
    ):
        self._settings, self._plan, self._training = settings, plan, training
        self._optimizer, self._gradient, self._run, self._checkpoints = optimizer, gradient, run, checkpoints
        self._first_plan, self._state = plan, state
        self._last: Step | None = None  # the last step that is applied, on all ranks
        self._is_followed = True  # by its evaluation and checkpoint
        self._stops_early, self._writer = False, optimizer.world.names[:1]
        self._log = Log(settings, plan, optimizer, run, state.step, training.overflow_advice)

    def run(self) -> State:
        """Takes the steps that are left. Returns the last state, which is saved."""
        optimizer, log = self._optimizer, self._log
        if self._last is not None and not self._is_followed:
            self._follow(self._last)
        if self._plan.size != optimizer.world.size:
            self._replan()
        if self._writer != optimizer.world.names[:1]:  # what rank 0 was writing is lost
            self._checkpoints.save(optimizer, self._state)
            self._writer = optimizer.world.names[:1]
        log.clock.skip()
        feed, seed, state = self._training.feed, self._settings.seed, self._state
        as_traced = not (self._gradient.is_fixed or optimizes_graphs(self._plan, optimizer.world))
        parts = optimizer, self._gradient, feed, self._plan, seed, log.clock, state.step, state.position
        with closing(steps(*parts, as_traced)) as steps_of_plan:
            while not self._stops_early and (step := next(steps_of_plan, None)):
                self._last, self._is_followed = step, False
                log.step(step)
                if step.number in phases.STEPS:
                    phases.ended(phases.STEPS[step.number], step.result.numbers)
                self._follow(step)
        log.close()
        self._run.say(log.summary())
        return self._state

    def _follow(self, step: Step) -> None:
        """Evaluates, saves and leaves if it is time to. After a loss it may happen twice for a step."""
        plan, held_out, log, settings = self._plan, self._training.held_out, self._log, self._settings
        earlier = [entry for entry in self._state.evaluations if entry[0] < step.position]
        facts = plan.steps, plan.global_batch_size, self._training.settings
        state = State(step.position, step.number, *facts, earlier)
        is_last = step.number == plan.steps
        is_measured = held_out is not None and (is_last or step.number % int(held_out.every) == 0)
        is_due = step.wants_save or step.number % settings.save_checkpoints_steps == 0
        saves = is_due or is_last or is_measured or step.wants_stop
        if saves:
            log.flush(is_last)
        if held_out and is_measured:
            with log.waiting_for("evaluations"):
                state = measured(held_out, state, self._run)
            self._stops_early = held_out.stops(state)
        if saves:
            with log.waiting_for("checkpoints"):
                self._checkpoints.save(self._optimizer, state)
                if is_last or self._stops_early or step.wants_stop:
                    self._checkpoints.finish()
        if self._checkpoints.is_overdue(settings.save_checkpoints_minutes):
            self._optimizer.world.save_wanted.set()  # the ranks' clocks differ: the next step tells all of them
        self._state, self._is_followed = state, True
        if step.wants_stop:
            self._leave(step)
        if held_out and self._stops_early:
            best, patience = held_out.best, held_out.patience
            self._run.say(f"stopped after step {step.number}: {best} did not improve {patience} times")

    def _leave(self, step: Step) -> NoReturn:
        """Ends a run that was asked to save and stop, and has saved. If a rank died, the others save once more."""
        elastic.commit(self._optimizer.world)
        self._optimizer.world.stop_wanted.clear()
        self._log.close()
        self._run.say(
            f"saved after step {step.number} of {self._plan.steps} on request; to continue, run the same command"
        )
        self._run.close()
        raise Preempted

    def recover(self, loss: Exception) -> None:
        """Joins the other survivors of a loss. Raises `elastic.Elsewhere` if some of them are not in this loop, or
        the next loss."""
        world, run = self._optimizer.world, self._run
        number = self._last.number if self._last else self._state.step
        here = "steps", str(run.folder), number, self._is_followed
        places = elastic.recover(world, loss, here)
        if any(place[:3] != here[:3] for place in places):
            raise elastic.Elsewhere
        self._is_followed = all(place[3] for place in places)
        with world.operation("the start of the backend on fewer ranks"):
            self._optimizer.collectives.reopen(world)
        if self._writer != world.names[:1]:
            position = self._last.position if self._last else self._state.position
            world.on_first(run.take_over, position)
            self._state = world.on_first(self._checkpoints.without_lost, self._state)
        self._log.restart(self._plan, number)
        run.say(elastic.message(world) + f" after step {number}")

    def _replan(self) -> None:
        """Deals the rows that are left to the survivors."""
        size = self._optimizer.world.size
        training, plan = self._training, self._first_plan.on_fewer_ranks(size)
        if training.replan is not None:
            plan = training.replan(size)
        self._state = replace(self._state, step=resumed_step(self._state, plan))
        if self._state.step != self._optimizer.steps_done:
            self._optimizer.optimizer.iterations.assign(self._state.step)
        self._plan = plan
        self._log.restart(plan, self._state.step)
        self._run.say(str(plan))


def optimizes_graphs(plan: Plan, world: World) -> bool:
    """Whether the training is long enough for TensorFlow to optimize its graphs: docs/measured.md."""
    return world.device == "gpu" or plan.steps >= OPTIMIZED_FROM


def choose_gradient(
    xla: str, plan: Plan, training: Training, optimizer: AllreduceOptimizer, run: Run, start: State | None
) -> Gradient:
    """The gradient function that `--xla` asks for; "auto" times both kinds on the rows of the first step."""
    step, position = (start.step, start.position) if start else (0, 0)
    if step < plan.steps:
        run.say("building the training step: the first step takes longer")

    def gradient(is_fixed: bool, applies: bool = False) -> Gradient:
        advice = training.memory_advice + ", or give --xla off" * is_fixed
        return Gradient(optimizer, training.loss, is_fixed, advice, applies)

    if xla != "auto" or step >= plan.steps:
        is_fixed = xla == "on"
        return gradient(is_fixed, is_fixed and optimizer.compiles_steps)
    gradients = {is_fixed: gradient(is_fixed) for is_fixed in (False, True)}
    seconds = {}
    for is_fixed in gradients:
        batches = training.feed.micro_batches(plan, optimizer.world.rank, position, is_fixed)
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
