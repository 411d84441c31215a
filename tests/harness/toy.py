"""A small regression in float64 for the programs that test distributed/: its rows, model, loss and training.

`train` does on a toy what an entry point of tasks/ does: plan, model, optimizer, resume, train.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pyarrow as pa
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from distributed.checkpoint import (
    Checkpoints,
    State,
    check_settings,
    complete_checkpoints,
    folder_name,
    newest_intact,
    read_state,
)
from distributed.collectives import Collectives
from distributed.elastic import surviving
from distributed.evaluation import HeldOut
from distributed.feed import Feed
from distributed.gradient import TrainingStep
from distributed.optimizer import AllreduceOptimizer
from distributed.order import Order
from distributed.plan import Plan, PlanSettings, make_plan
from distributed.rows import Rows, ragged
from distributed.run import Run
from distributed.settings import LoopSettings
from distributed.state import START
from distributed.train import resumed_step
from distributed.train import train as train_loop
from distributed.world import World

NUM_ROWS, NUM_INPUTS = 50, 4
STEPS, GLOBAL_BATCH = 20, 14  # 5.6 epochs; 14 rows are 5, 5, 4 on three ranks


def rows() -> Rows:
    """50 rows of 4 inputs and a target that the model cannot quite reach."""
    inputs = np.random.default_rng(0).standard_normal((NUM_ROWS, NUM_INPUTS))
    targets = np.sin(inputs @ np.arange(1.0, 5.0)) + 0.1 * np.arange(NUM_ROWS) % 3
    number = np.arange(NUM_ROWS, dtype=np.int32)
    columns = {"x": ragged(inputs, pa.float64()), "y": pa.array(targets), "row": pa.array(number)}
    return Rows(pa.table(columns))


def collate(fields: dict) -> dict[str, np.ndarray]:
    return {"x": fields["x"][0].reshape(-1, NUM_INPUTS), "y": fields["y"], "row": fields["row"]}


def weights(batch: dict[str, np.ndarray]) -> dict[str, float]:
    return {"loss": float(len(batch["y"]))}


def feed(collate: Callable = collate, weights: Callable = weights) -> Feed:
    return Feed(rows=rows(), order=Order(NUM_ROWS, 7), collate=collate, weights=weights)


def make_model(seed: int) -> keras.Model:
    def dense(width: int, activation: str | None, number: int) -> keras.layers.Layer:
        init = keras.initializers.GlorotUniform(seed=1000 * seed + number)
        return keras.layers.Dense(width, activation, kernel_initializer=init, dtype="float64")

    return keras.Sequential([keras.Input((NUM_INPUTS,), dtype="float64"), dense(8, "tanh", 1), dense(1, None, 2)])


def errors(model: keras.Model, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """Prediction minus target of each row, float64 [B]."""
    return model(batch["x"])[:, 0] - batch["y"]


def squared_loss(model: keras.Model) -> Callable:
    return lambda batch, key: {"loss": tf.reduce_sum(tf.square(errors(model, batch)))}


def make_optimizer(
    model: keras.Model,
    world: World,
    collectives: Collectives,
    optimizer: keras.optimizers.Optimizer | None = None,
    **options,
) -> AllreduceOptimizer:
    inner = optimizer or keras.optimizers.Adam(0.01)
    return AllreduceOptimizer(inner, model.trainable_variables, world, collectives, **options)


def make_checkpoints(folder: Path, world: World, model: keras.Model, **settings) -> Checkpoints:
    def copy_model() -> Callable[[Path], None]:
        values = {f"{number:03d}": v.numpy() for number, v in enumerate(model.trainable_variables)}
        return lambda into: save_file(values, into / "model.safetensors")

    return Checkpoints(folder / "checkpoints", world, copy_model, LoopSettings(**settings))


def load_model(model: keras.Model, checkpoint: Path) -> None:
    saved = load_file(checkpoint / "model.safetensors")
    for number, variable in enumerate(model.trainable_variables):
        variable.assign(saved[f"{number:03d}"])


def plan_of(size: int, num_rows: int = NUM_ROWS, **settings) -> Plan:
    """The plan of a training at the rate 0.01, unless `settings` say otherwise."""
    return make_plan(PlanSettings(**{"learning_rate": 0.01, **settings}), num_rows, size)


def train(
    world: World,
    collectives: Collectives,
    folder: Path,
    *,
    steps: int = STEPS,
    global_batch: int = GLOBAL_BATCH,
    accumulation: int = 1,
    settings: dict[str, object] | None = None,
    collate: Callable = collate,
    weights: Callable = weights,
    save_every: int = 1000,
    save_minutes: float = 0,
    held_out: HeldOut | None = None,
) -> tuple[AllreduceOptimizer, State]:
    """Trains from the newest intact checkpoint of the folder, or from values that rank 0 alone starts with."""
    run = Run(folder, is_writer=world.rank == 0)
    plan = plan_of(
        world.size,
        global_batch_size=global_batch,
        num_train_steps=steps,
        gradient_accumulation_steps=accumulation,
    )
    settings = settings or {"--seed": 7}
    model = make_model(seed=world.rank)
    optimizer = make_optimizer(model, world, collectives)
    step = TrainingStep(squared_loss(model), weights, optimizer, seed=7)
    checkpoints = make_checkpoints(
        folder, world, model, save_checkpoints_steps=save_every, save_checkpoints_minutes=save_minutes
    )

    def restore() -> State:
        newest = newest_intact(folder / "checkpoints", run.say)
        if newest is None:
            return replace(START, settings=settings)
        check_settings(newest.state.settings, settings, folder)
        load_model(model, newest.path)
        checkpoints.restore(newest.path, optimizer)
        return replace(newest.state, step=resumed_step(newest.state, plan))

    step.state = world.on_first(restore)
    try:
        source = feed(collate, weights)
        state = surviving(world, "training", lambda: train_loop(step, source, plan, checkpoints, run, 1, held_out))
    finally:
        run.close()
    return optimizer, state


class Saver:
    """Saves a toy's model and optimizer as the checkpoint of any position."""

    def __init__(self, world: World, collectives: Collectives, folder: Path, keep: int = 5):
        self.model = make_model(seed=1)
        self.optimizer = make_optimizer(self.model, world, collectives)
        self.checkpoints = make_checkpoints(folder, world, self.model, keep_checkpoints=keep)
        self.folder = folder / "checkpoints"

    def save(self, position: int, **changes) -> Path:
        """A checkpoint after `position` rows, 10 in each step; `changes` are those of its `State`."""
        values = {"step": position // 10, "steps": 100, "global_batch_size": 10, "settings": {"--seed": 7}}
        self.checkpoints.save(self.optimizer, State(position, **(values | changes)))
        self.checkpoints.finish()
        return self.folder / folder_name(position)

    def before_each_model(self, action: Callable[[Path], object]) -> None:
        """Calls `action(folder)` before the model is written to it."""
        copy_model = self.checkpoints.copy_model

        def copy() -> Callable[[Path], None]:
            write_model = copy_model()
            return lambda into: (action(into), write_model(into))[1]

        self.checkpoints.copy_model = copy

    def positions(self) -> list[int]:
        """Those of the complete checkpoints."""
        return [read_state(path).position for path in complete_checkpoints(self.folder)]

    def names(self) -> list[str]:
        """All that is in the folder."""
        return sorted(path.name for path in self.folder.iterdir())


def flat(optimizer: AllreduceOptimizer) -> np.ndarray:
    """All trainable values as one vector."""
    return np.concatenate([variable.numpy().reshape(-1) for variable in optimizer.trainable])


def listed(optimizer: AllreduceOptimizer, gradient: np.ndarray, *sums: float) -> list[tf.Tensor]:
    """What the ranks sum: a gradient, in the order of `flat`, and loss sums."""
    shapes = [tuple(variable.shape) for variable in optimizer.trainable]
    pieces = np.split(gradient, np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1])
    parts = [tf.constant(piece.reshape(shape)) for piece, shape in zip(pieces, shapes, strict=True)]
    terms = {term: tf.constant(value, tf.float64) for term, value in zip(optimizer.loss_terms, sums, strict=True)}
    return optimizer.listed(parts, terms)
