"""bert-bench step: times whole training steps, and their matrix products alone."""

import math
import resource
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringbase.settings import check_at_least, setting
from tasks.bench.load import StepLoad, shapes_of
from tasks.bench.products import matrix_peak, matrix_products, model_flop
from tasks.bench.settings import FiguresSettings
from tasks.bench.timing import medians, ratio

if TYPE_CHECKING:
    from distributed.feed import Batch
    from distributed.world import World
    from tasks.bench.training import BenchTraining, MeasuredStep

PARTS = ("data_s", "compute_s", "reduce_s", "apply_s")


@dataclass(frozen=True, kw_only=True)
class StepConfig(StepLoad, FiguresSettings):
    """SQuAD training steps on full rows of random tokens, or on the windows of a file."""

    num_pairs: int = setting(
        5, "number of last steps to compute again, in turn with only their matrix products", "load"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "num_pairs")


def bench_step(config: StepConfig, world: "World") -> dict[str, Any]:
    """Times whole training steps on every rank. Returns the speed of all ranks and the parts of a step on this
    one."""
    from distributed.collectives import open_collectives
    from tasks.bench.training import BenchTraining
    from tasks.job import set_precision

    set_precision(config.precision, config.tf32)
    collectives = open_collectives(world, config.backend)
    training = BenchTraining(config, world, collectives)
    measured, recent = training.run(config.num_pairs)
    figures = speed(measured, world) | beside_products(config, training, measured, recent)
    figures["parameters"] = sum(math.prod(variable.shape) for variable in training.model.trainable_variables)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    figures["peak_host_bytes"] = max(world.all_gather(peak_bytes))
    say_figures(config, collectives.name, figures, world)
    collectives.close()
    return figures


def speed(measured: "list[MeasuredStep]", world: "World") -> dict[str, Any]:
    """Examples and real tokens per second over all ranks; the share of places that are padding, and the parts of a
    step, on this rank."""
    import numpy as np

    def rate(amounts: list[float]) -> tuple[float, float]:
        rates = [amount / step.seconds for amount, step in zip(amounts, measured, strict=True)]
        return float(np.mean(rates)), float(np.std(rates))

    real = [float(step.lengths.sum()) for step in measured]
    of_ranks = world.all_gather(rate([float(len(step.lengths)) for step in measured]))
    examples, tokens = np.sum(of_ranks, axis=0), np.sum(world.all_gather(rate(real)), axis=0)
    computed = sum(rows * length for step in measured for groups in step.shapes for rows, length in groups)
    return {
        "world_size": world.size, "examples_per_s": float(examples[0]), "deviation": float(examples[1]),
        "of_ranks": of_ranks, "tokens_per_s": float(tokens[0]), "tokens_deviation": float(tokens[1]),
        "padding": 1 - sum(real) / computed, **medians([step.parts for step in measured], PARTS),
    }  # fmt: skip


def beside_products(
    config: StepConfig, training: "BenchTraining", measured: "list[MeasuredStep]", recent: "list[list[Batch]]"
) -> dict[str, float]:
    """Times the gradients of the last steps, in turn with only their matrix products; the model's FLOP per
    second."""
    bert_config, world = training.bert_config, training.world
    compute_s, alone_s, peaks = [], [], []
    for batches in recent:
        shapes = [(len(batch["input_ids"]), shapes_of(batch)) for batch in batches]
        compute_s.append(training.gradient_seconds(batches))
        alone_s.append(matrix_products(bert_config, config.precision, shapes, world))
        peaks.append(matrix_peak(config.precision, world))
    work = sum(model_flop(bert_config, step.lengths) for step in measured)
    return {
        "products_alone_s": statistics.median(alone_s), "times_products": ratio(compute_s, alone_s).median,
        "flop_per_s": work / sum(step.seconds for step in measured), "peak_flop_per_s": statistics.median(peaks),
    }  # fmt: skip


def say_figures(config: StepConfig, backend: str, figures: dict[str, Any], world: "World") -> None:
    """Prints the figures."""
    world.say(
        f"{config.model_name}: {figures['parameters'] / 1e6:.1f} M parameters, {config.rows_name} per rank, "
        f"{config.precision}, backend {backend}, {world.device.threads} threads per rank"
    )
    for rank, (mean, deviation) in enumerate(figures["of_ranks"]):
        world.say(f"rank {rank}: {mean:.2f} +- {deviation:.2f} examples/sec")
    whole_s = sum(figures[name] for name in PARTS)
    parts = (
        f"{name.removesuffix('_s')} {figures[name] * 1e3:.0f} ms ({figures[name] / whole_s:.0%})" for name in PARTS
    )
    world.say(f"step (median): {', '.join(parts)}")
    num_pairs = min(config.num_pairs, config.num_steps)
    flop, peak = figures["flop_per_s"], figures["peak_flop_per_s"]
    world.say(
        f"rank 0: the matrix products of a step alone {figures['products_alone_s'] * 1e3:.0f} ms, "
        f"compute takes {figures['times_products']:.2f} times that (median of {num_pairs} pairs); "
        f"model {flop / 1e9:.0f} GFLOP/s, {flop / peak:.0%} of the {peak / 1e9:.0f} of one large product; "
        f"{figures['padding']:.1%} of the places in rows are padding"
    )
    world.say(
        f"total tokens/sec: {figures['tokens_per_s']:.0f} +- {figures['tokens_deviation']:.0f}, "
        "padding not counted"
    )
    world.say(f"peak memory of a rank on the host: {figures['peak_host_bytes'] / 1e9:.2f} GB")
    world.say(
        f"total examples/sec: {figures['examples_per_s']:.2f} +- {figures['deviation']:.2f} "
        f"on {world.size} rank{'s' * (world.size > 1)}"
    )
