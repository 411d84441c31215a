"""A training of `distributed` in a simulation: the real loop, step, checkpoints and regrouping, on
a model that counts its rows.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
from harness.simulation.options import Options
from harness.simulation.watch import NUM_ROWS, PRIMES, SEED, Watch, hash_after
from safetensors.numpy import load_file, save_file

from distributed import checkpoint, elastic
from distributed.checkpoint import Checkpoints
from distributed.collectives import Collectives
from distributed.found import newest_intact
from distributed.gradient import TrainingStep
from distributed.joining import started
from distributed.optimizer import AllreduceOptimizer
from distributed.order import Order
from distributed.plan import LoopSettings, PlanSettings, State, first_state, make_plan
from distributed.rows import Feed, Rows
from distributed.run import Run
from distributed.train import HeldOut, train
from distributed.world import World


class Number:
    """A variable as `distributed` uses Keras' ones."""

    dtype = "float64"

    def __init__(self, value: np.ndarray):
        self.value = value
        self.shape = value.shape

    def numpy(self) -> np.ndarray:
        return self.value

    def assign(self, value) -> None:
        self.value = np.array(value, np.float64)


@dataclass(eq=False)
class Counting:
    """An optimizer's own variables."""

    iterations: Number = field(default_factory=lambda: Number(np.zeros([])))
    hashed: Number = field(default_factory=lambda: Number(np.zeros([])))
    learning_rate = 0.0
    _learning_rate = None

    @property
    def variables(self) -> list[Number]:
        return [self.iterations, self.hashed]


class RowSums(AllreduceOptimizer):
    """Adds the sum over ranks of a step's rows to the counts."""

    def __post_init__(self) -> None:
        self.dtype, self._loss_scale = "float64", None

    def update(self, total: list) -> tf.Tensor:
        counts, inner = self.trainable[0], self.optimizer
        rows, sums = total
        counts.assign(counts.value + rows)
        inner.hashed.assign(hash_after(inner.hashed.value, rows))
        inner.iterations.assign(inner.iterations.value + 1)
        return tf.constant([1.0, 0.0, 1.0, 0.0, *sums])


class Sums(Collectives):
    """Within each machine, then between machines, as the backend mpi does."""

    def __init__(self, world: World):
        self._world, self._comm = world, None

    def all_reduce_sum(self, tensors, compresses=False) -> list:
        world = self._world
        if world.comm is not self._comm:
            (self._machine,) = world.split(world.node)
            self._machine.allgather("")
            (self._heads,) = world.split(self._machine.rank)
            self._machine.bcast(0)
            self._comm = world.comm
        total = np.concatenate([np.ravel(tensor) for tensor in tensors])
        self._machine.Allreduce(started().IN_PLACE, total)
        if self._machine.rank == 0:
            world.refuse_after_death()
            self._heads.Allreduce(started().IN_PLACE, total)
            world.refuse_after_death()
        self._machine.Bcast(total)
        world.refuse_after_death()
        return np.split(total, np.cumsum([np.size(tensor) for tensor in tensors])[:-1])


class CountingStep(TrainingStep):
    """The real step around a gradient that names this rank's rows."""

    def __post_init__(self) -> None:
        self.state = checkpoint.State(0, 0, 1, 1, {})
        self.after_step: Callable[[CountingStep, Any], None] = lambda step, wanted: None

    def _own_sums(self, batches, inverse_weights, keys) -> list:
        rows = np.concatenate([batch["row"] for batch in batches])
        return [np.bincount(rows, minlength=NUM_ROWS).astype(float), np.array([float(len(rows))])]

    def take(self, batches, number, requests, clock):
        result, wanted = super().take(batches, number, requests, clock)
        self.after_step(self, wanted)
        return result, wanted


class QuietRun(Run):
    """Without TensorBoard's files, which are written by TensorFlow."""

    def _write_summary(self, event, step: int) -> None:
        pass


def program(world: World, folder: Path, options: Options, watch: Watch) -> None:
    """What an entry point does on each rank, from the newest checkpoint to the end."""
    with closing(QuietRun(folder, world)) as run:
        world.on_first(run.lock)
        settings = PlanSettings(
            num_train_steps=options.num_steps, global_batch_size=options.global_batch_size
        )
        loop = LoopSettings(
            save_checkpoints_steps=options.save_every,
            save_checkpoints_minutes=options.save_minutes,
            keep_checkpoints=2,
            log_steps=1,
            check_steps=options.check_steps,
        )
        plan = make_plan(settings, NUM_ROWS, world.launched_size).on_ranks(world.size)
        counts = Number(np.zeros(NUM_ROWS))
        optimizer = RowSums(Counting(), [counts], world, Sums(world))
        step = CountingStep(lambda *_: {}, weights_of, optimizer, seed=SEED)
        step.after_step = partial(watch.after_step, world)

        def copy_model() -> Callable[[Path], None]:
            copied = counts.value.copy()
            return lambda into: save_file({"0": copied}, into / "model.safetensors")

        saving = Checkpoints(
            folder / "checkpoints", world, copy_model, loop, publish=watch.published
        )
        with closing(saving) as checkpoints:

            def restored() -> State:
                path, state = newest_intact(checkpoints.folder, run.say) or (None, None)
                if path:
                    counts.assign(load_file(path / "model.safetensors")["0"])
                    checkpoints.restore(path, optimizer)
                return first_state(plan, {}, state, True)

            state = world.on_first(restored)
            step.begin_at(state)
            watch.begins(world, state)
            measure = partial(score_of, world, counts)
            held_out = HeldOut(
                measure=measure,
                num_rows=NUM_ROWS,
                every=options.evaluate_every,
                best="score" if options.keeps_best else None,
            )
            rows = Rows(pa.table({"row_id": pa.array(range(NUM_ROWS))}))
            feed = Feed(rows=rows, order=Order(NUM_ROWS, SEED), collate=dict)
            work = partial(train, step, feed, plan, checkpoints, run, loop, held_out)
            state = elastic.surviving(world, "the training", work)
        run.write_json("result.json", {"step": state.step})
        world.on_first(run.publish, True)


def weights_of(batch) -> dict[str, float]:
    return {"loss": float(len(batch["row"]))}


def score_of(world: World, counts: Number) -> dict[str, float]:
    """A score that goes up and down, of all ranks together."""
    share = float(counts.value @ np.resize(PRIMES, NUM_ROWS)) % 101
    return {"score": float(world.all_reduce_sum([share])[0]) / world.size}
