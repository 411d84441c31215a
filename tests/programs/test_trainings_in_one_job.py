"""Several trainings in one process: each has its own loss, data and compiled parts."""

from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from harness.program_runs import metrics_in

from bert.configuration import BertConfig
from distributed.collectives import Collectives
from distributed.devices import Device
from distributed.rows import Rows, ragged
from distributed.run import Run
from distributed.world import World
from ringbase.settings import made
from tasks.classifier.task import LabelTask
from tasks.runs.execute.job import Job, set_precision
from tasks.runs.execute.loading import model_of
from tasks.runs.execute.trainer import Trainer, TrainingData
from tasks.runs.history import History
from tasks.runs.resolve.spec import RunSpec, Start
from tasks.runs.settings import TrainingSettings

FACTOR = 1000.0
CONFIG = BertConfig(
    vocab_size=100,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    max_position_embeddings=32,
)
SETTINGS = {"global_batch_size": 8, "num_train_steps": 3, "num_warmup_steps": 0, "log_steps": 1}
TWELVE = 12  # tokens


@dataclass(frozen=True)
class LargeLoss(LabelTask):
    def loss(self, scores, batch):
        return {name: FACTOR * value for name, value in super().loss(scores, batch).items()}


def words(low, high):
    """Rows of tokens from these ids."""
    draw = np.random.default_rng(low)
    columns = {
        "input_ids": ragged(draw.integers(low, high, (16, 12)).astype(np.int32), pa.int32()),
        "sentence_a_tokens": np.full(16, 12, np.int32),
        "label": draw.integers(0, 2, 16).astype(np.int32),
    }
    return TrainingData(rows=Rows(pa.table(columns)), key=f"from {low}")


@pytest.fixture
def train(tmp_path):
    """Trains as often as it is called, in one job; returns the losses of the steps."""
    set_precision("fp32")
    world = World()
    job = Job(world, Collectives(), Run(tmp_path / "job", world))

    def train(training, name, seed):
        with closing(Run(tmp_path / name, world)) as run:
            spec = RunSpec("toy", seed, tmp_path / name, ("train",), {}, Start(CONFIG))
            training.run(spec, replace(job, run=run), History(run, world))
        return [line["loss"] for line in metrics_in(tmp_path / name)]

    def training(task, data, **settings):
        model = model_of(Start(CONFIG), task.head)
        return Trainer(model, task, data, made(TrainingSettings, SETTINGS | settings), job)

    train.world = world
    yield train, training
    tf.keras.backend.clear_session()


def test_each_training_has_its_own_loss_and_data(train):
    train, training = train
    fixed = {"learning_rate": 0.0}
    first = train(training(LabelTask(TWELVE), words(10, 20), **fixed), "first", 1)
    large = train(training(LargeLoss(TWELVE), words(10, 20), **fixed), "large", 1)
    np.testing.assert_allclose(large, FACTOR * np.array(first), rtol=1e-6)
    other = train(training(LabelTask(TWELVE), words(60, 90), **fixed), "other", 1)
    assert len(other) == 3
    assert other != first


def test_a_training_runs_anew_with_each_seed(train):
    """What one object has compiled gives the same bits as a new one."""
    train, training = train
    shared = training(LabelTask(TWELVE), words(10, 20), learning_rate=1e-2)
    of_seeds = [train(shared, f"shared-{seed}", seed) for seed in (1, 2)]
    alone = training(LabelTask(TWELVE), words(10, 20), learning_rate=1e-2)
    assert train(alone, "alone", 2) == of_seeds[1] != of_seeds[0]


def test_a_short_training_on_a_gpu_has_one_shape_to_compile(train):
    train, training = train
    train.world.device = Device("gpu")
    data = words(10, 20)
    lengths = np.arange(16) % 8 + 5
    tokens = [np.arange(length, dtype=np.int32) for length in lengths]
    table = data.rows.table.set_column(0, "input_ids", ragged(tokens, pa.int32()))
    data = data._replace(rows=Rows(table))

    def shapes(**settings):
        made = training(LabelTask(TWELVE), data, **settings)
        batches = made.feed(1).batches_of_shapes()
        return [[tuple(group) for group in batch["groups"]] for batch in batches]

    longest = [(8, 16)]  # rows of 12 tokens, rounded up
    assert shapes(num_train_steps=1999) == [longest]
    assert shapes(num_train_steps=1999, packing="off", xla="on") == [longest]
    for several in ({"num_train_steps": 2000}, {"num_train_steps": 3, "xla": "on"}):
        *shorter, last = shapes(**several)
        assert last == longest
        assert 1 <= len(shorter) <= 2
