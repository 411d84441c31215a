"""bert-bench step: times whole training steps and their parts, those of bert-squad, on random
tokens."""

import math
import resource
import time
from collections.abc import Iterable
from contextlib import closing
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from bert import configuration
from bert.configuration import BertConfig
from bert.heads import SPAN
from bert.model import Bert, encoder_shapes
from bert.sizes import SIZES, ModelSize, config_of_size
from distributed.clock import PARTS, StepClock
from distributed.collectives import Collectives, open_collectives
from distributed.plan import first_state
from distributed.rows import Batch, Rows, ragged
from distributed.run import Unwritten
from distributed.step import TrainingStep
from distributed.world import World
from ringbase.errors import InputError
from ringbase.settings import flat, made
from tasks.bench.settings import LoadSettings, StepConfig
from tasks.bench.timing import line_up, medians, write
from tasks.runs.execute.job import Job, set_precision
from tasks.runs.execute.trainer import OPTIMIZED_FROM, Trainer, TrainingData
from tasks.runs.resolve.command import with_dropouts_of
from tasks.runs.settings import TrainingSettings
from tasks.squad.settings import WindowSettings
from tasks.squad.task import SpanTask

SEED = 0
ROUNDS = 3  # of measured steps, on a GPU


def run(config: StepConfig) -> None:
    """Prints the speed of all ranks, and the parts of a step on rank 0."""
    load = config.load
    with World.join(load.machine.device, "bert-bench") as world:
        collectives = open_collectives(world, load.machine.collectives.backend)
        figures = step_figures(load, world, collectives)
        place = f"backend {collectives.name}, {world.device.threads} threads per rank"
        world.say(f"{load}: {figures['parameters'] / 1e6:.1f} M parameters, {place}")
        for rank, (mean, deviation) in enumerate(figures["of_ranks"]):
            world.say(f"rank {rank}: {mean:.2f} +- {deviation:.2f} examples/sec")
        step_s = sum(figures[part] for part in PARTS)
        parts = []
        for part in PARTS:
            part_s = figures[part]
            share = part_s / step_s
            parts.append(f"{part.removesuffix('_s')} {part_s * 1e3:.0f} ms ({share:.0%})")
        world.say(f"step (median): {', '.join(parts)}")
        world.say(f"rank 0: {figures['flop_per_s'] / 1e9:.0f} GFLOP/s")
        world.say(f"peak memory of a rank on the host: {figures['peak_host_bytes'] / 1e9:.2f} GB")
        world.say(f"total tokens/sec: {figures['tokens_per_s']:.0f}")
        total = f"{figures['examples_per_s']:.2f} +- {figures['deviation']:.2f}"
        world.say(f"total examples/sec: {total} on {world.size} rank{'s' * (world.size > 1)}")
        world.on_first(write, config.output_file, figures)


def step_figures(load: LoadSettings, world: World, collectives: Collectives) -> dict:
    """The speed over all ranks in examples and tokens; the parts of a step, and the FLOP per
    second, of rank 0. Raises InputError: memory runs out."""
    config = config_of(load)
    job = Job(world, collectives, Unwritten())
    try:
        measured, rates = measured_steps(load, config, job)
    except tf.errors.ResourceExhaustedError as error:
        raise InputError(
            f"out of memory: {load} is too much here: lower --batch_size or --seq_length of"
            " bert-bench step"
        ) from error
    mean = float(np.mean(rates))
    deviation = float(np.std(rates))
    of_ranks = world.all_gather((mean, deviation))
    rate_of_first, _ = of_ranks[0]
    total, total_deviation = np.sum(of_ranks, axis=0).tolist()
    flop_per_s = rate_of_first * model_flop(config, load.seq_length)
    shapes = encoder_shapes(config) | SPAN.shapes(config)
    num_parameters = sum(map(math.prod, shapes.values()))
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peaks_kib = world.all_gather(peak_kib)
    return {
        "world_size": world.size,
        "examples_per_s": total,
        "deviation": total_deviation,
        "of_ranks": of_ranks,
        "tokens_per_s": total * load.seq_length,
        **medians(measured, PARTS),
        "flop_per_s": flop_per_s,
        "parameters": num_parameters,
        "peak_host_bytes": 1024 * max(peaks_kib),
    }


def measured_steps(
    load: LoadSettings, config: BertConfig, job: Job
) -> tuple[list[dict[str, float]], list[float]]:
    """Trains on every rank. Returns the seconds of each measured step's parts, and the rank's
    examples/s: of each of these steps on CPUs, on a GPU of further steps that are not waited for,
    as in a training."""
    world, device = job.world, job.world.device
    rows_of_rank = load.batch_size * load.gradient_accumulation_steps
    steps_needed = load.num_warmup + (1 + ROUNDS) * load.num_steps
    values = flat(load.step) | {
        "global_batch_size": rows_of_rank * world.size,
        "xla": load.xla,
        "gradient_accumulation_steps": load.gradient_accumulation_steps,
        # graphs of a long training
        "num_train_steps": max(OPTIMIZED_FROM, steps_needed),
    }
    set_precision(load.machine.precision, load.machine.tf32)
    training = random_training(config, load.seq_length, values, job)
    if training.attention_note:
        world.say(training.attention_note)
    training.words.take()
    step, plan = training.step, training.plan
    step.synchronize()
    clock = StepClock(rows_of_rank, device.is_gpu)
    measured = []
    state = first_state(plan, {}, None, continues=False)
    with closing(training.feed(SEED).batches(plan, world, state)) as batches_of_steps:
        for number in range(load.num_warmup + load.num_steps):
            with clock.pause("line up"):
                line_up(world)
            with clock.step():
                with clock.part("data_s"):
                    batches = next(batches_of_steps)
                step.take(batches, number, (), clock)
            measured.append(clock.read())
        del measured[: load.num_warmup]
        if not device.is_gpu:
            return measured, [figures["examples_per_s"] for figures in measured]
        rates = []
        for _ in range(ROUNDS):
            batches_of_round = islice(batches_of_steps, load.num_steps)
            rates.append(rows_of_rank * steps_per_s(step, batches_of_round, world))
    return measured, rates


def steps_per_s(step: TrainingStep, batches_of_steps: Iterable[list[Batch]], world: World) -> float:
    """The speed of steps of which only the last is waited for: the host prepares the next step
    while the GPU computes."""
    unread_clock = StepClock(0)
    line_up(world)
    begin_s = time.perf_counter()
    for number, batches in enumerate(batches_of_steps):
        result, _ = step.take(batches, number, (), unread_clock)
    result.read()
    return (number + 1) / (time.perf_counter() - begin_s)


def config_of(load: LoadSettings) -> BertConfig:
    """The model's configuration. Raises InputError: --bert_config_file has none."""
    if load.bert_config_file:
        config = configuration.config_from_file(load.bert_config_file)
    else:
        num_positions = max(512, load.seq_length)
        config = model_config(load.model_size, max_position_embeddings=num_positions)
    return with_dropouts_of(flat(load.dropout), config)


def model_config(size: ModelSize, **others: Any) -> BertConfig:
    """The configuration of a published size, uncased."""
    model_type, *_ = SIZES[size]
    vocab_size = 50368 if model_type == "modernbert" else 30522
    return config_of_size(size, vocab_size, **others)


def random_training(config: BertConfig, length: int, values: dict, job: Job) -> Trainer:
    """The training of a model of `bert-squad` on full rows of random tokens, with these values of
    `TrainingSettings`; the same in every call."""
    window = WindowSettings(max_seq_length=length, max_query_length=1)
    task = SpanTask(window)
    rows = random_rows(values["global_batch_size"], length, config.vocab_size)
    model = Bert(config, task.head, SEED)
    settings = made(TrainingSettings, values)
    return Trainer(model, task, TrainingData(rows, "random tokens"), settings, job)


def random_rows(count: int, length: int, vocab_size: int) -> Rows:
    """Full rows for the task of `bert-squad`, of random tokens, the same in every call."""
    generator = np.random.default_rng(SEED)
    tokens = generator.integers(0, vocab_size, (count, length), dtype=np.int32)
    columns = {
        "input_ids": ragged(tokens, pa.int32()),
        "question_tokens": np.full(count, length // 8, np.int32),
        "start_position": generator.integers(0, length, count, dtype=np.int32),
        "end_position": generator.integers(0, length, count, dtype=np.int32),
    }
    return Rows(pa.table(columns))


def model_flop(config: BertConfig, length: int) -> int:
    """Floating-point operations of the matrix products of a row's training, forward and backward.
    Counted as in Narayanan et al. 2021 (Megatron-LM, appendix) for the layers, without
    recomputation and the vocabulary."""
    kernel_size = 0
    for name, shape in encoder_shapes(config).items():
        if name.startswith("bert/encoder/") and name.endswith("kernel"):
            kernel_size += math.prod(shape)
    num_keys = config.num_hidden_layers * length  # over all layers
    if config.layer_types:
        num_sliding = config.layer_types.count(configuration.SLIDING)
        num_keys -= num_sliding * max(0, length - config.local_attention)
    products = 2 * length * kernel_size
    attention = 2 * 2 * length * num_keys * config.hidden_size
    return 3 * (products + attention)
