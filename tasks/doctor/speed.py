"""How fast a training step of BERT-base is here, beside the largest matrix product of the device."""

from typing import TYPE_CHECKING

from distributed.doctor.examination import Finding, ok, warning
from tasks.bench.load import StepLoad
from tasks.bench.products import matrix_peak, model_flop
from tasks.bench.step import speed
from tasks.bench.training import BenchTraining

if TYPE_CHECKING:
    from distributed.collectives import Collectives
    from distributed.world import World
    from tasks.doctor.settings import Config

PEAK_SIZES = {"cpu": 2048, "gpu": 8192}
LOW_SHARE = 0.2  # of the largest product's speed


def check_speed(config: "Config", world: "World", collectives: "Collectives") -> Finding:
    """A few steps of BERT-base on random tokens: 32 x 384 on a GPU, 1 x 128 on a CPU."""
    on_gpu = world.device.is_gpu
    load = StepLoad(
        model_size="base", batch_size=32 if on_gpu else 1, seq_length=384 if on_gpu else 128,
        num_warmup=3 if on_gpu else 1, num_steps=10 if on_gpu else 2, precision=config.precision,
        xla="on" if on_gpu else "off",
    )  # fmt: skip
    from tasks.job import set_precision

    set_precision(config.precision)
    training = BenchTraining(load, world, collectives)
    measured, _ = training.run(1)
    figures = speed(measured, world)
    peak = matrix_peak(config.precision, world, PEAK_SIZES[world.device.kind])
    work = sum(model_flop(training.bert_config, step.lengths) for step in measured)
    flop = work / sum(step.seconds for step in measured)
    text = (
        f"BERT-base, {load.rows_name} per rank, {load.precision}: {figures['examples_per_s']:.3g} examples/s, "
        f"{figures['tokens_per_s']:.0f} tokens/s over all ranks; {in_flop(flop)} per rank, {flop / peak:.0%} of "
        f"the {in_flop(peak)} of one large product"
    )
    details = {"flop_per_s": flop, "peak_flop_per_s": peak, **figures}
    if on_gpu and flop < LOW_SHARE * peak:
        return warning(text, "see bert-bench step, which shows where the time of a step goes", **details)
    return ok(text, **details)


def in_flop(flop: float) -> str:
    return f"{flop / 1e12:.3g} TFLOP/s" if flop >= 1e12 else f"{flop / 1e9:.3g} GFLOP/s"
