"""bert-bench step: times whole training steps and their parts, beside one large matrix product."""

import math
import resource
import statistics
import time
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from transformers import BertConfig

from distributed.collectives import Collectives, open_collectives
from distributed.world import World
from tasks.bench.settings import LoadSettings, StepConfig
from tasks.bench.timing import medians
from tasks.bench.training import PARTS, config_of, line_up, measured_steps
from tasks.bench.worlds import on_ranks

PEAK_SIZES = {"cpu": 2048, "gpu": 8192}  # rows and columns of the matrices of the large product
PEAK_S, CALLS = 0.1, 4  # how long the product is repeated; calls for one time measurement
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def run(config: StepConfig) -> None:
    on_ranks(config.load.machine.device, config.figures, partial(bench_step, config.load))


def bench_step(load: LoadSettings, world: World) -> dict[str, Any]:
    """Prints the speed of all ranks, and the parts of a step on rank 0."""
    collectives = open_collectives(world, load.machine.backend.backend)
    figures = step_figures(load, world, collectives)
    world.say(
        f"{load}: {figures['parameters'] / 1e6:.1f} M parameters, backend {collectives.name}, "
        f"{world.device.threads} threads per rank"
    )
    for rank, (mean, deviation) in enumerate(figures["of_ranks"]):
        world.say(f"rank {rank}: {mean:.2f} +- {deviation:.2f} examples/sec")
    whole_s = sum(figures[name] for name in PARTS)
    parts = [
        f"{name.removesuffix('_s')} {figures[name] * 1e3:.0f} ms ({figures[name] / whole_s:.0%})" for name in PARTS
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
    return figures


def step_figures(load: LoadSettings, world: World, collectives: Collectives) -> dict[str, Any]:
    """The speed over all ranks in examples and tokens; the parts of a step, and the FLOP per second, of rank 0."""
    model, measured = measured_steps(load, world, collectives)
    rows = load.batch_size * load.gradient_accumulation_steps
    rates = [rows / step["seconds"] for step in measured]
    of_ranks = world.all_gather((float(np.mean(rates)), float(np.std(rates))))
    examples, deviation = (float(value) for value in np.sum(of_ranks, axis=0))
    work = rows * model_flop(config_of(load), load.seq_length)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "world_size": world.size, "examples_per_s": examples, "deviation": deviation, "of_ranks": of_ranks,
        "tokens_per_s": examples * load.seq_length, **medians(measured, PARTS),
        "flop_per_s": work * len(measured) / sum(step["seconds"] for step in measured),
        "peak_flop_per_s": matrix_peak(load.machine.precision, world),
        "parameters": sum(math.prod(variable.shape) for variable in model.trainable_variables),
        "peak_host_bytes": max(world.all_gather(peak_bytes)),
    }  # fmt: skip


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
