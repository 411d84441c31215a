"""A small regression in float64 for the programs that test distributed/: its rows, model, loss and
training.

`train` does on a toy what an entry point of tasks/ does: plan, model, optimizer, resume, train.
"""

import keras
import numpy as np
import pyarrow as pa
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from distributed.checkpoint import Checkpoints, SavedOptimizer
from distributed.fit import fit, restored
from distributed.found import complete_checkpoints, folder_name, read_checkpoint
from distributed.gradient import LossGradient, traced_once
from distributed.optimizer import AllreduceOptimizer
from distributed.order import Order
from distributed.plan import LoopSettings, PlanSettings, State, make_plan
from distributed.rows import Feed, Rows, ragged
from distributed.run import Run
from distributed.step import SplitStep
from ringbase.settings import Settings, made

NUM_ROWS, NUM_INPUTS = 50, 4
STEPS, GLOBAL_BATCH = 20, 14  # 5.6 epochs; 14 rows are 5, 5, 4 on three ranks


def rows():
    """50 rows of 4 inputs and a target that the model cannot quite reach."""
    inputs = np.random.default_rng(0).standard_normal((NUM_ROWS, NUM_INPUTS))
    number = np.arange(NUM_ROWS)
    targets = np.sin(inputs @ np.arange(1.0, 5.0)) + 0.1 * number % 3
    columns = {"x": ragged(inputs, pa.float64()), "y": targets, "row": number}
    return Rows(pa.table(columns))


def collate(fields):
    return {"x": fields["x"][0].reshape(-1, NUM_INPUTS), "y": fields["y"], "row": fields["row"]}


def weights(batch):
    return {"loss": float(len(batch["y"]))}


def make_model(seed):
    model = keras.Sequential([keras.Input((NUM_INPUTS,), dtype="float64")])
    for number, (width, activation) in enumerate(((8, "tanh"), (1, None)), 1000 * seed + 1):
        init = keras.initializers.GlorotUniform(number)
        model.add(keras.layers.Dense(width, activation, kernel_initializer=init, dtype="float64"))
    return model


def errors(model, batch):
    return model(batch["x"])[:, 0] - batch["y"]


def make_optimizer(model, world, collectives, **options):
    inner = keras.optimizers.Adam(0.01)
    return AllreduceOptimizer(inner, model.trainable_variables, world, collectives, **options)


def make_step(optimizer, loss, weights, terms=("loss",), **options):
    """The step of a loss by the optimizer's variables."""
    gradient = LossGradient(loss, weights, terms, optimizer.trainable, traced_once)
    return SplitStep(gradient, optimizer, **options)


class SavedModel:
    """A model's variables as a part of a checkpoint."""

    def __init__(self, model):
        self.variables = model.trainable_variables

    def copied(self):
        values = {f"{number:03d}": v.numpy() for number, v in enumerate(self.variables)}
        return lambda into: save_file(values, into / "model.safetensors")

    def restore(self, folder):
        saved = load_file(folder / "model.safetensors")
        for variable, name in zip(self.variables, sorted(saved), strict=True):
            variable.assign(saved[name])


class ToySettings(Settings):
    plan: PlanSettings
    loop: LoopSettings


class Toy:
    """A model, its optimizer, and their checkpoints in a folder. `flags` are those of
    `ToySettings`."""

    def __init__(self, world, collectives, folder, seed=1, saved_model=SavedModel, **flags):
        defaults = {
            "num_train_steps": STEPS,
            "global_batch_size": GLOBAL_BATCH,
            "save_checkpoints_minutes": 0,
        }
        self.settings = made(ToySettings, defaults | flags)
        self.model = make_model(seed)
        self.optimizer = make_optimizer(self.model, world, collectives)
        self.folder = folder / "checkpoints"
        parts = saved_model(self.model), SavedOptimizer(self.optimizer)
        self.checkpoints = Checkpoints(self.folder, world, parts, self.settings.loop)

    def save(self, position, **changes):
        """A checkpoint after `position` rows, 10 in each step; `changes` are those of its
        `State`."""
        given = {"step": position // 10, "steps": 100, "global_batch_size": 10} | changes
        self.checkpoints.save(State(position, settings={}, **given))
        self.checkpoints.finish()
        return self.folder / folder_name(position)

    def positions(self):
        return [read_checkpoint(path).position for path in complete_checkpoints(self.folder)]


def train(world, collectives, folder, collate=collate, weights=weights, held_out=None, **flags):
    """Trains from the newest intact checkpoint of the folder, or from values that rank 0 alone
    starts with."""
    run = Run(folder, world)
    feed = Feed(rows=rows(), order=Order(NUM_ROWS, 7), collate=collate)
    toy = Toy(world, collectives, folder, world.rank, **flags)
    plan = make_plan(toy.settings.plan, NUM_ROWS, world.size)

    def loss(batch, key):
        return {"loss": tf.reduce_sum(tf.square(errors(toy.model, batch)))}

    step = make_step(toy.optimizer, loss, weights, seed=7)
    state = world.on_first(restored, toy.checkpoints, plan, run.say)
    loop = LoopSettings(log_steps=1)
    state = fit(step, feed, plan, toy.checkpoints, run, loop, state, held_out)
    return toy.optimizer, state


def flat(optimizer):
    """All trainable values as one vector."""
    return np.concatenate([variable.numpy().reshape(-1) for variable in optimizer.trainable])
