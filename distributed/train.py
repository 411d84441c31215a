"""The only training and prediction loops."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from distributed import InputError, Preempted
from distributed.checkpoint import Checkpoints, State
from distributed.optimizer import AllreduceOptimizer
from distributed.plan import Plan
from distributed.rows import Order, Rows, prefetched
from distributed.run import Run
from distributed.world import World

Batch = dict[str, np.ndarray]
MOST_SKIPPED_STEPS = 20
TRAINING_MEMORY_FLAGS = (
    "--train_batch_size (or --global_batch_size) or --max_seq_length, or raise --gradient_accumulation_steps"
)


def train(
    world: World,
    optimizer: AllreduceOptimizer,
    plan: Plan,
    rows: Rows,
    run: Run,
    checkpoints: Checkpoints,
    *,
    collate: Callable[[dict], Batch],
    weights: Callable[[Batch], Mapping[str, float]],
    loss: Callable[[dict[str, tf.Tensor], tf.Tensor], Mapping[str, tf.Tensor]],
    seed: int,
    settings: dict[str, object],
    start: State | None = None,
    save_every: int = 1000,
    log_every: int = 25,
) -> State:
    """Trains for the steps of the plan, from `start` if given; returns the last state, which is saved.

    Args:
      collate: a rank's rows of one micro-batch -> the model's input, each array with a batch axis first.
      weights: that batch -> the weight of each loss term (rows, masked tokens, …), as numbers.
      loss: (batch, dropout key int32 [2]) -> the sum of each loss term over the batch, not its mean.
      settings: kept in each checkpoint; a later command must bring the same (see `check_settings`).
    Raises:
      Preempted: SIGUSR1 came; all ranks finished the same step and saved.
      InputError: the gradients stay non-finite, or the replicas are not equal.
    """
    state = start or State(0, 0, plan.steps, plan.global_batch_size, settings)
    first_step, first_position = state.step, state.position
    order, pieces = Order(len(rows), seed), plan.micro_batches(world.rank)
    gradient = None
    skipped = 0

    def micro_batches(step: int) -> list[Batch]:
        position = first_position + (step - first_step) * plan.global_batch_size
        indices = order.rows_at(position, position + plan.global_batch_size)
        return [collate(rows.take(indices[piece])) for piece in pieces if piece.stop > piece.start]

    bar = run.progress(plan.steps, "training", initial=state.step)
    meter = Meter(plan.global_batch_size)
    batches_of_steps = prefetched(micro_batches, range(first_step, plan.steps))
    for step in range(first_step, plan.steps):
        batches = next(batches_of_steps)
        meter.mark("data_s")
        local = [weights(batch) for batch in batches]
        totals, stop = optimizer.reduce_weights(
            {term: sum(w[term] for w in local) for term in optimizer.loss_terms}, world.stop_wanted.is_set()
        )
        gradient = gradient or gradient_function(optimizer, loss, batches[0])
        inverse = tf.constant([1 / totals[term] for term in optimizer.loss_terms], optimizer.dtype)
        flat = None
        for number, batch in enumerate(batches):
            with _told_out_of_memory(batch):
                part = gradient(batch, inverse, dropout_key(seed, step, number, world.rank))
                flat = part if flat is None else flat + part
        meter.mark("compute_s")
        flat = optimizer.all_reduce(flat)
        meter.mark("reduce_s")
        result = optimizer.update(flat, totals)
        meter.mark("apply_s")

        skipped = 0 if result.applied else skipped + 1
        if skipped:
            run.say(f"step {step + 1}: the gradient is not finite; the step is skipped on every rank")
        if skipped == MOST_SKIPPED_STEPS:
            raise InputError(
                f"no finite gradient in {skipped} steps: lower --learning_rate, or use --precision fp32"
            )
        done = step + 1
        position = first_position + (done - first_step) * plan.global_batch_size
        shown = {name: f"{value:.4f}" for name, value in result.losses.items()}
        bar.update(done, **shown, rate=f"{result.learning_rate:.2e}", examples_s=f"{meter.rows_per_s():.1f}")
        if done % log_every == 0 or done in (1, plan.steps):
            told = {"learning_rate": result.learning_rate, "gradient_norm": result.gradient_norm}
            run.metrics(done, {"rows": position, **result.losses, **told, **meter.read()})
        if stop or done == plan.steps or done % save_every == 0:
            state = State(position, done, plan.steps, plan.global_batch_size, settings)
            checkpoints.save(optimizer, state)
            meter.skip()
        if stop:
            world.stop_wanted.clear()
            bar.close()
            run.say(f"stopped by SIGUSR1 after step {done} of {plan.steps}, saved; the same command goes on")
            run.close()
            raise Preempted
    bar.close()
    return state


def predict(
    world: World,
    rows: Rows,
    batches: list[np.ndarray],
    run: Run,
    *,
    collate: Callable[[dict], Batch],
    forward: Callable[[dict[str, tf.Tensor]], Any],
    label: str = "prediction",
) -> list[Any] | None:
    """`forward` of every batch, on rank 0 in the order of the batches; None elsewhere.

    A batch is computed whole by one rank, so that results do not depend on the number of ranks.
    """
    mine = range(world.rank, len(batches), world.size)
    bar = run.progress(len(mine), label, "batch")
    outputs = []
    for batch in prefetched(lambda number: collate(rows.take(batches[number])), mine):
        with _told_out_of_memory(batch, "--predict_batch_size or --max_seq_length"):
            outputs.append(tf.nest.map_structure(lambda tensor: tensor.numpy(), forward(batch)))
        bar.update(len(outputs))
    bar.close()
    gathered = world.gather(outputs)
    if gathered is None:
        return None
    return [gathered[number % world.size][number // world.size] for number in range(len(batches))]


def gradient_function(optimizer: AllreduceOptimizer, loss: Callable, example: Batch) -> Callable:
    """A compiled function (batch, 1 / weights, dropout key) -> flat buffer [gradient | loss sums].

    Its trace has unknown dimensions, so that one serves every shape of batch.
    """

    def gradient(batch, inverse_weights, key):
        with tf.GradientTape() as tape:
            sums = loss(batch, key)
            terms = [tf.cast(sums[term], optimizer.dtype) for term in optimizer.loss_terms]
            total = tf.reduce_sum(tf.stack(terms) * inverse_weights)
        gradients = tape.gradient(total, [variable.value for variable in optimizer.trainable])
        return optimizer.flatten(gradients, sums)

    signature = [
        {name: tf.TensorSpec([None] * array.ndim, array.dtype) for name, array in example.items()},
        tf.TensorSpec([len(optimizer.loss_terms)], optimizer.dtype),
        tf.TensorSpec([2], tf.int32),
    ]
    return tf.function(gradient, input_signature=signature, autograph=False)


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
