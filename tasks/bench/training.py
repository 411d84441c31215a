"""The training steps that `bert-bench step` and `bert-doctor` measure: those of bert-squad, on random tokens."""

import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
from transformers import BertConfig

from bert import configuration
from bert.model import Bert
from distributed.collectives import Collectives
from distributed.feed import Batch, Feed, prefetched
from distributed.log import StepClock
from distributed.order import Order
from distributed.plan import Plan, PlanSettings, make_plan
from distributed.rows import Rows, ragged
from distributed.run import Run
from distributed.world import World
from ringbase.settings import flat, made
from tasks.bench.inputs import model_config
from tasks.bench.settings import LoadSettings
from tasks.fit import OPTIMIZED_FROM, feed_of, training_step
from tasks.job import Job, set_precision
from tasks.settings import TrainingSettings
from tasks.squad.task import SpanTask

SEED = 0
PARTS = ("data_s", "compute_s", "reduce_s", "apply_s")


def config_of(load: LoadSettings) -> BertConfig:
    """The model's configuration. Raises InputError: --bert_config_file has none."""
    if load.bert_config_file:
        return configuration.config_from_file(load.bert_config_file)
    return model_config(load.model_size, load.seq_length)


def feed_and_plan(load: LoadSettings, config: BertConfig, num_ranks: int) -> tuple[Feed, Plan]:
    """Full rows of random tokens, as the feed of `bert-squad`, and the plan of the steps."""
    length, count = load.seq_length, load.batch_size * load.gradient_accumulation_steps * num_ranks
    plan_settings = PlanSettings(
        global_batch_size=count,
        num_train_steps=max(OPTIMIZED_FROM, load.num_warmup + load.num_steps),  # graphs of a long training
        gradient_accumulation_steps=load.gradient_accumulation_steps,
    )
    generator = np.random.default_rng(SEED)
    tokens = generator.integers(0, config.vocab_size, (count, length), dtype=np.int32)
    starts, ends = (pa.array(generator.integers(0, length, count, dtype=np.int32)) for _ in range(2))
    columns = {
        "input_ids": ragged(list(tokens), pa.int32()),
        "question_tokens": pa.array(np.full(count, length // 8, np.int32)),
        "start_position": starts,
        "end_position": ends,
    }
    plan, rows = make_plan(plan_settings, count, num_ranks), Rows(pa.table(columns))
    task, order = SpanTask(length), Order(count, SEED)
    return feed_of(task, rows, order, plan, config, load.passes.packing, load.xla == "on"), plan


def measured_steps(
    load: LoadSettings, world: World, collectives: Collectives
) -> tuple[Bert, list[dict[str, float]]]:
    """Trains on every rank. Returns the model, and for each measured step the seconds of the whole step and of its
    parts (`seconds`, `PARTS`)."""
    set_precision(load.machine.precision, load.machine.tf32)
    settings = made(TrainingSettings, flat(load.passes) | flat(load.collectives) | {"xla": load.xla})
    config, job = config_of(load), Job(world, collectives, Run(Path(), is_writer=False))
    feed, plan = feed_and_plan(load, config, world.size)
    job.make_model(config, "span", SEED)
    step = training_step(SpanTask(load.seq_length), feed, plan, settings, job)
    step.synchronize()
    clock = StepClock(plan.global_batch_size, world.device.is_gpu)

    def micro_batches(number: int) -> list[Batch]:
        return feed.micro_batches(plan, world.rank, number * plan.global_batch_size)

    measured, numbers = [], range(load.num_warmup + load.num_steps)
    with closing(prefetched(micro_batches, numbers)) as batches_of_steps:
        for number in numbers:
            line_up(world)
            clock.skip()
            start_s = time.perf_counter()
            batches = next(batches_of_steps)
            clock.mark("data_s")
            step.take(batches, number, (), clock)
            measured.append({"seconds": time.perf_counter() - start_s, **clock.read()})
    return job.model, measured[load.num_warmup :]


def line_up(world: World) -> None:
    """Waits for all ranks in a busy loop. `World.barrier` sleeps while it waits: some ranks would start late."""
    if world.comm is not None:
        world.comm.Barrier()
