"""The only training and prediction loops."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from distributed.checkpoint import Checkpoints, State
from distributed.feed import Batch, Feed, prefetched
from distributed.optimizer import AllreduceOptimizer
from distributed.plan import Plan
from distributed.rows import RowSource
from distributed.run import Run
from distributed.world import World
from ringbert.errors import InputError, Preempted

MOST_SKIPPED_STEPS = 20
FIXED = {"on": (True,), "off": (False,), "auto": (False, True)}  # what `train` may do, by its `xla`
TRIALS = 3
TRAINING_MEMORY_FLAGS = (
    "--train_batch_size (or --global_batch_size) or --max_seq_length, or raise --gradient_accumulation_steps"
)


@dataclass(frozen=True)
class Evaluation:
    """What a run measures on held-out data while it trains, and what it decides by it.

    Attributes:
      measure: () -> scores; every rank calls it and gets the same values.
      every: steps between measurements; the last step is measured too.
      best: the score (larger is better) whose best checkpoint is kept whatever `keep` says; None for none.
      patience: training stops after so many measurements without a better score; None for never.
    """

    measure: Callable[[], Mapping[str, float]]
    every: int
    best: str | None = None
    patience: int | None = None

    def stops(self, state: State) -> bool:
        """Whether patience is at its end."""
        if self.patience is None or state.best is None:
            return False
        since_best = [position for position, _ in state.evaluations if position > state.best[0]]
        return len(since_best) >= self.patience


def train(
    world: World,
    optimizer: AllreduceOptimizer,
    plan: Plan,
    feed: Feed,
    run: Run,
    checkpoints: Checkpoints,
    *,
    loss: Callable[[dict[str, tf.Tensor], tf.Tensor], Mapping[str, tf.Tensor]],
    seed: int,
    settings: dict[str, object],
    start: State | None = None,
    save_every: int = 1000,
    log_every: int = 25,
    evaluation: Evaluation | None = None,
    xla: str = "off",
) -> State:
    """Trains for the steps of the plan, from `start` if given; returns the last state, which is saved.

    Args:
      loss: (batch, dropout key int32 [2]) -> the sum of each loss term over the batch, not its mean.
      settings: kept in each checkpoint; a later command must bring the same (see `check_settings`).
      xla: "on": XLA compiles the whole of the gradient for each shape of `feed.collate_fixed`; "auto": where that
        is faster for the rows of the first step; "off": never.
    Raises:
      Preempted: SIGUSR1 came; all ranks finished the same step and saved.
      InputError: the gradients stay non-finite, or the replicas are not equal.
    """
    state = start or State(0, 0, plan.steps, plan.global_batch_size, settings)
    first_step, first_position = state.step, state.position
    skipped, stops_early = 0, False
    saving_s, measuring_s, start_s = 0.0, 0.0, time.perf_counter()

    def micro_batches(step: int, is_fixed: bool) -> list[Batch]:
        position = first_position + (step - first_step) * plan.global_batch_size
        return feed.micro_batches(plan, world.rank, position, is_fixed)

    if evaluation and evaluation.stops(state):
        return state
    bar = run.progress(plan.steps, "training", initial=state.step)
    meter = Meter(plan.global_batch_size)
    gradients = {is_fixed: GradientSum(optimizer, loss, is_fixed) for is_fixed in FIXED[xla]}
    is_fixed = xla == "on"
    if xla == "auto" and first_step < plan.steps:
        without, whole = (
            _seconds(world, optimizer, feed.weights, gradients[tried], micro_batches(first_step, tried))
            for tried in (False, True)
        )
        is_fixed = whole < without
        told = f"{whole * 1e3:.3g} ms compiled by XLA as a whole, {without * 1e3:.3g} ms without"
        run.say(f"--xla auto: the gradient of the first step takes {told}: {'on' if is_fixed else 'off'}")
        meter.skip()
    gradient = gradients[is_fixed]
    batches_of_steps = prefetched(lambda step: micro_batches(step, is_fixed), range(first_step, plan.steps))
    for step in range(first_step, plan.steps):
        batches = next(batches_of_steps)
        meter.mark("data_s")
        local = [feed.weights(batch) for batch in batches]
        totals, stop = optimizer.reduce_weights(
            {term: sum(w[term] for w in local) for term in optimizer.loss_terms}, world.stop_wanted.is_set()
        )
        keys = [dropout_key(seed, step, number, world.rank) for number in range(len(batches))]
        flat = gradient(batches, optimizer.inverse_weights(totals), keys)
        meter.mark("compute_s")
        if not gradient.overlaps:
            flat = optimizer.all_reduce(flat)
        meter.mark("reduce_s")
        result = optimizer.update(flat, totals)
        meter.mark("apply_s")

        skipped = 0 if result.applied else skipped + 1
        if skipped:
            told = f"; the loss scale is {optimizer.loss_scale:g} now" if optimizer.scales_loss else ""
            run.say(f"step {step + 1}: the gradient is not finite; the step is skipped on every rank{told}")
        if skipped == MOST_SKIPPED_STEPS:
            raise InputError(
                f"no finite gradient in {skipped} steps: lower --learning_rate, or use --precision fp32 or bf16"
            )
        done = step + 1
        position = first_position + (done - first_step) * plan.global_batch_size
        losses = {"loss": sum(result.losses.values()), **result.losses}
        shown = {name: f"{value:.4f}" for name, value in losses.items()}
        bar.update(done, **shown, rate=f"{result.learning_rate:.2e}", examples_s=f"{meter.rows_per_s():.1f}")
        if done % log_every == 0 or done in (1, plan.steps):
            more = {"learning_rate": result.learning_rate, "gradient_norm": result.gradient_norm}
            if optimizer.scales_loss:
                more["loss_scale"] = optimizer.loss_scale
            run.metrics(done, {"rows": position, **losses, **more, **meter.read()})
        state = State(position, done, plan.steps, plan.global_batch_size, settings, state.evaluations)
        is_measured = evaluation is not None and (done % evaluation.every == 0 or done == plan.steps)
        if evaluation and is_measured:
            began = time.perf_counter()
            state = _measured(evaluation, state, run)
            measuring_s += time.perf_counter() - began
            stops_early = evaluation.stops(state)
        if stop or is_measured or done == plan.steps or done % save_every == 0:
            began = time.perf_counter()
            checkpoints.save(optimizer, state)
            saving_s += time.perf_counter() - began
            if stop or stops_early or done == plan.steps:
                checkpoints.finish()
            meter.skip()
        if stop:
            world.stop_wanted.clear()
            bar.close()
            run.say(f"stopped by SIGUSR1 after step {done} of {plan.steps}, saved; the same command goes on")
            run.close()
            raise Preempted
        if stops_early and evaluation:
            run.say(f"stopped after step {done}: no better {evaluation.best} in {evaluation.patience} evaluations")
            break
    bar.close()
    batches_of_steps.close()
    whole_s = time.perf_counter() - start_s
    told = f"trained: waited {saving_s:.1f} s for checkpoints, {saving_s / whole_s:.1%} of the time"
    if evaluation:
        told += f", {measuring_s:.1f} s for evaluations, {measuring_s / whole_s:.1%}"
    run.say(told)
    return state


def _measured(evaluation: Evaluation, state: State, run: Run) -> State:
    """Measures and logs; the state with the score that decides added."""
    scores = evaluation.measure()
    run.metrics(state.step, {"rows": state.position, **scores})
    run.say(f"step {state.step}: " + ", ".join(f"{name} {value:.4f}" for name, value in scores.items()))
    if evaluation.best is None:
        return state
    return replace(state, evaluations=[*state.evaluations, [state.position, float(scores[evaluation.best])]])


def predict(
    world: World,
    rows: RowSource,
    batches: list[np.ndarray],
    run: Run,
    *,
    collate: Callable[[dict], Batch],
    forward: Callable[[dict[str, tf.Tensor]], Any],
    label: str = "prediction",
    is_shown: bool = True,
    memory_flags: str = "--predict_batch_size or --max_seq_length",
) -> list[Any] | None:
    """`forward` of every batch, on rank 0 in the order of the batches; None elsewhere.

    A batch is computed whole by one rank, so that results do not depend on the number of ranks. `memory_flags`
    are those to lower when memory runs out.
    """
    mine = range(world.rank, len(batches), world.size)
    bar = run.progress(len(mine), label, "batch", is_shown=is_shown)
    outputs = []

    def make_batch(number: int) -> Batch:
        indices = batches[number]
        return collate(rows.take(indices) | {"row": indices, "epoch": np.zeros_like(indices)})

    for batch in prefetched(make_batch, mine):
        with _told_out_of_memory(batch, memory_flags):
            outputs.append(tf.nest.map_structure(lambda tensor: tensor.numpy(), forward(batch)))
        bar.update(len(outputs))
    bar.close()
    gathered = world.gather(outputs)
    if gathered is None:
        return None
    return [gathered[number % world.size][number // world.size] for number in range(len(batches))]


class GradientSum:
    """Micro-batches -> flat buffer [gradient | loss sums]: their sum, over all ranks if `overlaps`.

    `is_fixed`: XLA compiles the whole for each shape; sums beside it are then not possible.
    """

    def __init__(self, optimizer: AllreduceOptimizer, loss: Callable, is_fixed: bool = False):
        self.overlaps = optimizer.overlaps and not is_fixed
        self._make = partial(gradient_function, optimizer, loss)
        self.is_fixed = is_fixed
        self._functions: dict[tuple[bool, bool], Callable] = {}

    def __call__(self, batches: Sequence[Batch], inverse_weights: tf.Tensor, keys: Sequence) -> tf.Tensor:
        """`keys`: of dropout, one for each micro-batch. Raises InputError: out of memory."""
        total = None
        for number, (batch, key) in enumerate(zip(batches, keys, strict=True), 1):
            with _told_out_of_memory(batch, TRAINING_MEMORY_FLAGS + ", or give --xla off" * self.is_fixed):
                if number < len(batches) or not self.overlaps:
                    part = self._function(batch)(batch, inverse_weights, key)
                    total = part if total is None else total + part
                elif total is None:
                    total = self._function(batch, is_last=True)(batch, inverse_weights, key)
                else:
                    total = self._function(batch, is_last=True, follows=True)(batch, inverse_weights, key, total)
        return total

    def _function(self, example: Batch, is_last: bool = False, follows: bool = False) -> Callable:
        if (is_last, follows) not in self._functions:
            made = self._make(None if self.is_fixed else example, is_last, follows)
            self._functions[is_last, follows] = made
        return self._functions[is_last, follows]


def gradient_function(
    optimizer: AllreduceOptimizer,
    loss: Callable,
    example: Batch | None,
    is_last: bool = False,
    follows: bool = False,
) -> Callable:
    """A compiled function (batch, 1 / weights, dropout key) -> flat buffer [gradient | loss sums].

    Its trace has unknown dimensions, so that one serves every shape of batch.

    Args:
      example: a batch; None for a function that XLA compiles as a whole, anew for each shape.
      is_last: the buffer is that of all ranks, summed while the gradients of the first layers are computed.
      follows: with `is_last`: the function has a fourth argument, the buffer of the micro-batches before.
    """

    def gradient(batch, inverse_weights, key, before=None):
        with tf.GradientTape() as tape:
            sums = loss(batch, key)
            terms = [tf.cast(sums[term], optimizer.dtype) for term in optimizer.loss_terms]
            total = tf.reduce_sum(tf.stack(terms) * inverse_weights)
        gradients = tape.gradient(total, [variable.value for variable in optimizer.trainable])
        if is_last:
            return optimizer.sum_in_buckets(gradients, sums, before)
        return optimizer.flatten(gradients, sums)

    if example is None:
        return tf.function(gradient, jit_compile=True, autograph=False)
    signature = [
        batch_signature(example),
        tf.TensorSpec([len(optimizer.loss_terms)], optimizer.dtype),
        tf.TensorSpec([2], tf.int32),
    ]
    if follows:
        signature.append(tf.TensorSpec([None], optimizer.dtype))
    return tf.function(gradient, input_signature=signature, autograph=False)


def _seconds(
    world: World, optimizer: AllreduceOptimizer, weights: Callable, gradient: GradientSum, batches: list[Batch]
) -> float:
    """How long the gradient of these micro-batches and its sum take, on the slowest rank; the shortest of a few
    times. Infinitely long where XLA's takes more memory than there is."""
    local = [weights(batch) for batch in batches]
    totals, _ = optimizer.reduce_weights({term: sum(w[term] for w in local) for term in optimizer.loss_terms})
    keys = [dropout_key(0, 0, number, world.rank) for number in range(len(batches))]
    times = []
    for _ in range(1 + TRIALS):  # the first one compiles
        world.barrier()
        began, failed = time.perf_counter(), False
        try:
            flat = gradient(batches, optimizer.inverse_weights(totals), keys)
        except InputError:  # out of memory
            if not gradient.is_fixed:
                raise
            failed = True
        if any(world.all_gather(failed)):
            return math.inf
        if not gradient.overlaps:
            flat = optimizer.all_reduce(flat)
        flat[:1].numpy()  # a GPU still works on it
        times.append(max(world.all_gather(time.perf_counter() - began)))
    return min(times[1:])


def batch_signature(example: Batch) -> dict[str, Any]:
    """The types of a batch's arrays, every dimension unknown."""
    return tf.nest.map_structure(lambda array: tf.TensorSpec([None] * array.ndim, array.dtype), example)


def dropout_key(seed: int, step: int, micro_batch: int, rank: int) -> np.ndarray:
    """int32 [2], a hash of its arguments: the randomness of one forward pass."""
    return np.random.SeedSequence([seed, step, micro_batch, rank]).generate_state(2, np.uint32).view(np.int32)


class Meter:
    """Wall-clock seconds of the parts of a step, and rows per second over all ranks."""

    def __init__(self, rows_per_step: int):
        self.rows_per_step = rows_per_step
        self._parts: dict[str, float] = {}
        self._steps, self._last = 0, time.perf_counter()
        self._recent: list[float] = []
        self._rows_per_s = 0.0

    def mark(self, part: str) -> None:
        """Books the time since the last mark under `part`; "apply_s" ends a step."""
        now = time.perf_counter()
        self._parts[part] = self._parts.get(part, 0.0) + now - self._last
        self._last = now
        if part == "apply_s":
            self._steps += 1
            self._recent = [*self._recent[-20:], now]

    def skip(self) -> None:
        """Leaves the time since the last mark out (a checkpoint, an evaluation)."""
        self._last, self._recent = time.perf_counter(), []

    def rows_per_s(self) -> float:
        if len(self._recent) > 1:
            seconds = self._recent[-1] - self._recent[0]
            self._rows_per_s = (len(self._recent) - 1) * self.rows_per_step / seconds
        return self._rows_per_s

    def read(self) -> dict[str, float]:
        """Means per step since the last read."""
        total, steps = sum(self._parts.values()), max(self._steps, 1)
        values = {name: round(seconds / steps, 5) for name, seconds in self._parts.items()}
        values["examples_per_s"] = round(steps * self.rows_per_step / total, 2) if total else 0.0
        self._parts, self._steps = {}, 0
        return values


@contextlib.contextmanager
def _told_out_of_memory(batch: Batch, flags: str = TRAINING_MEMORY_FLAGS) -> Iterator[None]:
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        shape = next(iter(batch.values())).shape
        raise InputError(
            f"out of memory with a micro-batch of shape {shape}: lower {flags} ({str(error).splitlines()[0]})"
        ) from error
