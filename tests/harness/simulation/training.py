"""A training of `distributed` in a simulation: the real loop, step, checkpoints and regrouping, on
a model that counts its rows.
"""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
from harness.simulation.options import Options
from harness.simulation.watch import (
    NUM_ROWS,
    PRIMES,
    SEED,
    Watch,
    hash_after,
    order_of_rows,
)
from safetensors.numpy import load_file, save_file

from distributed.checkpoint import Checkpoints, SavedOptimizer
from distributed.collectives import Collectives
from distributed.fit import fit, restored
from distributed.joining import started
from distributed.plan import LoopSettings, PlanSettings, make_plan
from distributed.rows import Feed, Rows
from distributed.run import Run
from distributed.step import SplitStep
from distributed.train import HeldOut
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


class RowSums:
    """An optimizer that adds the sum over ranks of a step's rows to the counts."""

    def __init__(self, counts: Number, world: World):
        self.world = world
        self.trainable = [counts]
        self.hashed = Number(np.zeros([]))
        self._iterations = Number(np.zeros([]))
        self._sums = Sums(world)

    def state(self) -> dict[str, Number]:
        return {"0000": self._iterations, "0001": self.hashed}

    def reset(self) -> None:
        raise NotImplementedError  # one training is simulated

    def num_steps(self) -> int:
        return int(self._iterations.value)

    def factors(self, weights) -> np.ndarray:
        return 1 / np.array([*weights.values()])

    def sink(self):
        return self._sums.sink()

    def update(self, total: list) -> tf.Tensor:
        counts = self.trainable[0]
        rows, sums = total
        counts.assign(counts.value + rows)
        self.hashed.assign(hash_after(self.hashed.value, rows))
        self._iterations.assign(self._iterations.value + 1)
        return tf.constant([1.0, 0.0, 1.0, 0.0, *sums])

    def skip(self, num_terms: int) -> tf.Tensor:
        raise NotImplementedError  # each row has a target


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
            world.ranks.refuse_after_death()
            self._heads.Allreduce(started().IN_PLACE, total)
            world.ranks.refuse_after_death()
        self._machine.Bcast(total)
        world.ranks.refuse_after_death()
        return np.split(total, np.cumsum([np.size(tensor) for tensor in tensors])[:-1])


class RowCounts:
    """A gradient that names this rank's rows."""

    terms = ("loss",)

    def weights(self, batch) -> dict[str, float]:
        return {"loss": float(len(batch["row"]))}

    def sums(self, batches, factors, keys, sink) -> np.ndarray:
        rows = np.concatenate([batch["row"] for batch in batches])
        terms = np.array([float(len(rows))])
        sink.put(1, terms)
        sink.put(0, np.bincount(rows, minlength=NUM_ROWS).astype(float))
        return terms

    def alone(self) -> "RowCounts":
        return self


class SavedCounts:
    """The counts as a part of a checkpoint."""

    def __init__(self, counts: Number):
        self._counts = counts

    def copied(self) -> Callable[[Path], None]:
        copied = self._counts.value.copy()
        return lambda into: save_file({"0": copied}, into / "model.safetensors")

    def restore(self, folder: Path) -> None:
        self._counts.assign(load_file(folder / "model.safetensors")["0"])


class WatchedStep(SplitStep):
    """The real step. `seen` is told of each."""

    def __init__(self, gradient, optimizer, seen: Callable[[SplitStep, Any], None], **options):
        super().__init__(gradient, optimizer, **options)
        self._seen = seen

    def take(self, batches, number, requests, clock):
        result, wanted = super().take(batches, number, requests, clock)
        self._seen(self, wanted)
        return result, wanted


def no_trackers(folder: Path) -> list:
    """TensorBoard's files are written by TensorFlow."""
    return []


def program(world: World, folder: Path, options: Options, watch: Watch) -> None:
    """What an entry point does on each rank, from the newest checkpoint to the end."""
    with closing(Run(folder, world, trackers_of=no_trackers)) as run:
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
        plan = make_plan(settings, NUM_ROWS, world.ranks.launched_size).on_ranks(world.size)
        counts = Number(np.zeros(NUM_ROWS))
        optimizer = RowSums(counts, world)
        seen = partial(watch.after_step, world)
        step = WatchedStep(RowCounts(), optimizer, seen, seed=SEED)
        parts = SavedCounts(counts), SavedOptimizer(optimizer)
        saving = Checkpoints(folder / "checkpoints", world, parts, loop, publish=watch.published)
        with closing(saving) as checkpoints:
            state = world.on_first(restored, checkpoints, plan, run.say)
            watch.begins(world, state)
            measure = partial(score_of, world, counts)
            held_out = HeldOut(
                measure=measure,
                num_rows=NUM_ROWS,
                every=options.evaluate_every,
                best="score" if options.keeps_best else None,
            )
            rows = Rows(pa.table({"row_id": pa.array(range(NUM_ROWS))}))
            feed = Feed(rows=rows, order=order_of_rows(), collate=dict)
            state = fit(step, feed, plan, checkpoints, run, loop, state, held_out)
        run.write_json("result.json", {"step": state.step})
        world.on_first(run.publish, True)


def score_of(world: World, counts: Number) -> dict[str, float]:
    """A score that goes up and down, of all ranks together."""
    share = float(counts.value @ np.resize(PRIMES, NUM_ROWS)) % 101
    return {"score": float(world.all_reduce_sum([share])[0]) / world.size}
