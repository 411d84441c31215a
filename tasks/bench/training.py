"""The training steps that `bert-bench step` and `bert-doctor` measure: those of bert-squad, on random tokens."""

import time
from contextlib import closing
from functools import partial

import numpy as np
import pyarrow as pa
import tensorflow as tf
from transformers import BertConfig

from bert import configuration
from bert.model import Bert
from bert.optimizer import AdamWeightDecay
from distributed.collectives import Collectives
from distributed.feed import Batch, Feed, prefetched
from distributed.gradient import TrainingStep, WholeStep
from distributed.log import StepClock
from distributed.optimizer import AllreduceOptimizer
from distributed.order import Order
from distributed.plan import Plan, PlanSettings, make_plan
from distributed.rows import Rows, ragged
from distributed.world import World
from tasks.batches import feed_of
from tasks.bench.inputs import model_config
from tasks.bench.settings import LoadSettings
from tasks.job import set_precision
from tasks.squad.task import SpanTask

SEED = 0
PARTS = ("data_s", "compute_s", "reduce_s", "apply_s")


def config_of(load: LoadSettings) -> BertConfig:
    """The model's configuration. Raises InputError: --bert_config_file has none."""
    if load.bert_config_file:
        return configuration.config_from_file(load.bert_config_file)
    return model_config(load.size.model_size, load.seq_length)


def feed_and_plan(load: LoadSettings, config: BertConfig, num_ranks: int) -> tuple[Feed, Plan]:
    """Full rows of random tokens, as the feed of `bert-squad`, and the plan of the steps."""
    plan_settings = PlanSettings(
        global_batch_size=load.batch_size * load.gradient_accumulation_steps * num_ranks,
        num_train_steps=load.num_warmup + load.num_steps,
        gradient_accumulation_steps=load.gradient_accumulation_steps,
    )
    count, generator = plan_settings.batch_size, np.random.default_rng(SEED)
    tokens = generator.integers(0, config.vocab_size, (count, load.seq_length), dtype=np.int32)
    answers = [pa.array(generator.integers(0, load.seq_length, count, dtype=np.int32)) for _ in range(2)]
    columns = {
        "input_ids": ragged(list(tokens), pa.int32()),
        "question_tokens": pa.array(np.full(count, load.seq_length // 8, np.int32)),
        "start_position": answers[0],
        "end_position": answers[1],
    }
    plan, rows = make_plan(plan_settings, count, num_ranks), Rows(pa.table(columns))
    task, order = SpanTask(load.seq_length), Order(count, SEED)
    return feed_of(task, rows, order, plan, config, load.passes.packing, load.xla == "on"), plan


def measured_steps(
    load: LoadSettings, world: World, collectives: Collectives
) -> tuple[Bert, list[dict[str, float]]]:
    """Trains on every rank. Returns the model, and for each measured step the seconds of the whole step and of its
    parts (`seconds`, `PARTS`)."""
    set_precision(load.machine.precision, load.machine.tf32)
    bert_config, is_fixed = config_of(load), load.xla == "on"
    feed, plan = feed_and_plan(load, bert_config, world.size)
    task, model = SpanTask(load.seq_length), Bert(bert_config, "span")
    model.recomputes = load.passes.recompute
    optimizer = AllreduceOptimizer(
        AdamWeightDecay(1e-5),
        model.trainable_variables,
        world,
        collectives,
        scales_loss=load.machine.precision == "fp16",
        compression=load.collectives.compression,
    )
    optimizer.broadcast_variables()

    def loss(batch: dict[str, tf.Tensor], key: tf.Tensor) -> dict[str, tf.Tensor]:
        return task.loss(model(batch, dropout_key=key), batch)

    is_whole = is_fixed and world.device.is_gpu and collectives.in_graph
    kind = WholeStep if is_whole else partial(TrainingStep, is_fixed=is_fixed)
    step: TrainingStep = kind(loss, feed.weights, optimizer, SEED)
    clock = StepClock(plan.global_batch_size, world.device.is_gpu)

    def micro_batches(number: int) -> list[Batch]:
        return feed.micro_batches(plan, world.rank, number * plan.global_batch_size)

    measured = []
    with closing(prefetched(micro_batches, range(plan.steps))) as batches_of_steps:
        for number in range(plan.steps):
            line_up(world)
            clock.skip()
            start_s = time.perf_counter()
            batches = next(batches_of_steps)
            clock.mark("data_s")
            step.take(batches, number, (), clock)
            seconds, parts = time.perf_counter() - start_s, clock.read()
            if number >= load.num_warmup:
                measured.append({"seconds": seconds, **parts})
    return model, measured


def line_up(world: World) -> None:
    """Waits for all ranks in a busy loop. `World.barrier` sleeps while it waits: some ranks would start late."""
    if world.comm is not None:
        world.comm.Barrier()
