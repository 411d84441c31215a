"""bert-bench step: times whole training steps and their parts, those of bert-squad, on random tokens."""

import math
import resource
import statistics
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
from transformers import BertConfig

from bert import configuration
from distributed.collectives import Collectives, open_collectives
from distributed.gradient import StepClock
from distributed.order import Order
from distributed.plan import Plan, PlanSettings, make_plan
from distributed.rows import Feed, Rows, prefetched, ragged
from distributed.run import Run
from distributed.world import World
from ringbase.settings import flat, made
from tasks.bench.inputs import model_config
from tasks.bench.settings import LoadSettings, StepConfig
from tasks.bench.timing import line_up, medians, write
from tasks.fit import OPTIMIZED_FROM, feed_of, training_step
from tasks.job import Job, set_precision
from tasks.settings import TrainingSettings
from tasks.squad.task import SpanTask

SEED = 0
PARTS = ("data_s", "compute_s", "reduce_s", "apply_s")
PEAK_SIZES = {"cpu": 2048, "gpu": 8192}  # rows and columns of the matrices of the large product
PEAK_S, CALLS = 0.1, 4  # how long the product is repeated; calls for one time measurement
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def run(config: StepConfig) -> None:
    with World.join(config.load.machine.device, "bert-bench") as world:
        collectives = open_collectives(world, config.load.machine.backend.backend)
        figures = step_figures(config.load, world, collectives)
        show(config.load, figures, world, collectives.name)
        world.on_first(write, config.output_file, figures)


def show(load: LoadSettings, figures: dict[str, Any], world: World, backend: str) -> None:
    """Prints the speed of all ranks, and the parts of a step on rank 0."""
    world.say(
        f"{load}: {figures['parameters'] / 1e6:.1f} M parameters, backend {backend}, "
        f"{world.device.threads} threads per rank"
    )
    for rank, (mean, deviation) in enumerate(figures["of_ranks"]):
        world.say(f"rank {rank}: {mean:.2f} +- {deviation:.2f} examples/sec")
    times = {name.removesuffix("_s"): figures[name] for name in PARTS}
    parts = [
        f"{name} {part_s * 1e3:.0f} ms ({part_s / sum(times.values()):.0%})" for name, part_s in times.items()
    ]
    world.say(f"step (median): {', '.join(parts)}")
    flop, peak = figures["flop_per_s"], figures["peak_flop_per_s"]
    world.say(f"rank 0: {flop / 1e9:.0f} GFLOP/s, {flop / peak:.0%} of the {peak / 1e9:.0f} of one large product")
    world.say(f"peak memory of a rank on the host: {figures['peak_host_bytes'] / 1e9:.2f} GB")
    world.say(f"total tokens/sec: {figures['tokens_per_s']:.0f}")
    world.say(
        f"total examples/sec: {figures['examples_per_s']:.2f} +- {figures['deviation']:.2f} "
        f"on {world.size} rank{'s' * (world.size > 1)}"
    )


def step_figures(load: LoadSettings, world: World, collectives: Collectives) -> dict[str, Any]:
    """The speed over all ranks in examples and tokens; the parts of a step, and the FLOP per second, of rank 0."""
    config = config_of(load)
    job = Job(world, collectives, Run(Path(), is_writer=False))
    measured = measured_steps(load, config, job)
    rows = load.batch_size * load.gradient_accumulation_steps
    rates = [rows / step["seconds"] for step in measured]
    of_ranks = world.all_gather((float(np.mean(rates)), float(np.std(rates))))
    examples, deviation = (float(value) for value in np.sum(of_ranks, axis=0))
    work = rows * model_flop(config, load.seq_length)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "world_size": world.size, "examples_per_s": examples, "deviation": deviation, "of_ranks": of_ranks,
        "tokens_per_s": examples * load.seq_length, **medians(measured, PARTS),
        "flop_per_s": work * len(measured) / sum(step["seconds"] for step in measured),
        "peak_flop_per_s": matrix_peak(load.machine.precision, world),
        "parameters": sum(math.prod(variable.shape) for variable in job.model.trainable_variables),
        "peak_host_bytes": max(world.all_gather(peak_bytes)),
    }  # fmt: skip


def measured_steps(load: LoadSettings, config: BertConfig, job: Job) -> list[dict[str, float]]:
    """Trains on every rank. Returns for each measured step the seconds of the whole step and of its parts
    (`seconds`, `PARTS`)."""
    set_precision(load.machine.precision, load.machine.tf32)
    settings = made(TrainingSettings, flat(load.passes) | flat(load.collectives) | {"xla": load.xla})
    world = job.world
    feed, plan = feed_and_plan(load, config, world.size)
    job.make_model(config, "span", SEED)
    step = training_step(SpanTask(load.seq_length), feed, plan, settings, job)
    step.synchronize()
    clock = StepClock(plan.global_batch_size, world.device.is_gpu)
    make = lambda number: feed.micro_batches(plan, world.rank, number * plan.global_batch_size)  # noqa: E731
    measured, numbers = [], range(load.num_warmup + load.num_steps)
    with closing(prefetched(make, numbers)) as batches_of_steps:
        for number in numbers:
            line_up(world)
            clock.skip()
            start_s = time.perf_counter()
            batches = next(batches_of_steps)
            clock.mark("data_s")
            step.take(batches, number, (), clock)
            measured.append({"seconds": time.perf_counter() - start_s, **clock.read()})
    return measured[load.num_warmup :]


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


def model_flop(config: BertConfig, length: int) -> float:
    """Floating-point operations of the matrix products of a row's training, forward and backward. Counted as in
    Narayanan et al. 2021 (Megatron-LM, appendix) for the layers, without recomputation and the vocabulary."""
    hidden = config.hidden_size
    linear = 2 * length * (4 * hidden * hidden + 2 * hidden * config.intermediate_size)
    attention = 2 * 2 * length**2 * hidden
    return float(3 * config.num_hidden_layers * (linear + attention))


def matrix_peak(precision: str, world: World) -> float:
    """FLOP/s of one large matrix product, on all ranks at the same time. Reading a number waits for a GPU."""
    size = PEAK_SIZES[world.device.kind]
    x = tf.cast(tf.random.normal([size, size]), DTYPES[precision])
    tf.matmul(x, x)[:1, :1].numpy()
    line_up(world)
    times: list[float] = []
    while sum(times) * CALLS < PEAK_S or len(times) < 3:
        start_s = time.perf_counter()
        products = [tf.matmul(x, x) for _ in range(CALLS)]
        products[-1][:1, :1].numpy()
        times.append((time.perf_counter() - start_s) / CALLS)
    return 2 * size**3 / statistics.median(times)
