"""bert-bench step: whole training steps on synthetic rows, and what their matrix products alone would take."""

import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from tasks import flags, start

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf
    from transformers import BertConfig

    from distributed.world import World

PEAK_SIZE = 2048  # rows and columns of the matrices of the large product
TIMED_S = 0.5  # how long a product is repeated
CALLS = 4  # of a product, between two looks at the clock

# hidden size, layers, heads, intermediate size
SIZES = {
    "tiny": (128, 2, 2, 512),
    "minilm": (384, 6, 12, 1536),
    "base": (768, 12, 12, 3072),
    "large": (1024, 24, 16, 4096),
}
VOCABULARY = 30522
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class StepLoad:
    """What a measured step computes; names and meaning as in training."""

    model_size: Literal["tiny", "minilm", "base", "large"] = flags.flag("minilm", "published sizes", "model")
    bert_config_file: str | None = flags.flag(None, "a configuration instead of --model_size", "model")
    batch_size: int = flags.flag(8, "rows per rank and micro-batch", "load")
    seq_length: int = flags.flag(384, "tokens per row", "load")
    gradient_accumulation_steps: int = flags.flag(1, "micro-batches per step", "load")
    num_warmup: int = flags.flag(3, "steps before the measurement", "load")
    num_steps: int = flags.flag(10, "steps measured", "load")
    precision: Literal["fp32", "bf16", "fp16"] = flags.flag("fp32", "as in training", "machine")
    backend: Literal["auto", "mpi", "nccl", "ring", "local"] = flags.flag(
        "auto", "what sums the gradients", "machine"
    )
    compression: Literal["none", "bf16"] = flags.flag("none", "as in training", "machine")
    recompute: bool = flags.flag(False, "as in training", "machine")

    def __post_init__(self):
        least = {
            "batch_size": 1,
            "seq_length": 1,
            "gradient_accumulation_steps": 1,
            "num_warmup": 0,
            "num_steps": 1,
        }
        for name, needed in least.items():
            if getattr(self, name) < needed:
                raise ValueError(f"--{name} is {getattr(self, name)}, needed is at least {needed}")


@dataclass(frozen=True)
class StepConfig(StepLoad):
    """bert-bench step: SQuAD training steps on random tokens, every row full."""

    device: Literal["auto", "gpu", "cpu"] = flags.flag("auto", "where to compute", "machine")
    share_gpus: bool = flags.flag(False, "allow more ranks than GPUs", "machine")
    output_file: str | None = flags.flag(None, "write the figures as JSON too", "machine")


def line_up(world: "World") -> None:
    """Waits for all ranks, spinning: after `World.barrier`, which sleeps in between, some would begin late."""
    if world.comm is not None:
        world.comm.Barrier()


def positive_numbers(name: str, given: str) -> tuple[float, ...]:
    """The value of a flag that takes numbers separated by commas. Raises ValueError: it is something else."""
    try:
        numbers = tuple(float(number) for number in given.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) <= 0:
        raise ValueError(f"--{name} is {given}, needed are positive numbers, separated by commas")
    return numbers


def model_config(size: str, seq_length: int = 512) -> "BertConfig":
    """The configuration of a published size."""
    from transformers import BertConfig

    hidden, layers, heads, intermediate = SIZES[size]
    return BertConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=intermediate, max_position_embeddings=max(512, seq_length),
    )  # fmt: skip


def bench_step(config: StepConfig, world: "World") -> dict[str, object]:
    """Times whole training steps on every rank; the figures, the same on every rank."""
    import numpy as np

    from bert import weights
    from bert.model import Bert
    from bert.optimizer import AdamWeightDecay
    from distributed.collectives import open_collectives
    from distributed.optimizer import AllreduceOptimizer
    from distributed.rows import prefetched
    from distributed.train import Meter, dropout_key, gradient_function
    from tasks.squad import span_loss

    start.set_precision(config.precision)
    collectives = open_collectives(world, config.backend)
    if config.bert_config_file:
        bert_config = weights.config_from_file(config.bert_config_file)
    else:
        bert_config = model_config(config.model_size, config.seq_length)
    model = Bert(bert_config, "span")
    model.recomputes = config.recompute
    optimizer = AllreduceOptimizer(
        AdamWeightDecay(1e-5),
        model.trainable_variables,
        world,
        collectives,
        scales_loss=config.precision == "fp16",
        compresses=config.compression == "bf16",
    )
    optimizer.broadcast_variables()
    num_steps = config.num_warmup + config.num_steps

    def make_batch(step: int) -> "dict[str, np.ndarray]":
        seed = num_steps * world.rank + step
        return _random_batch(config.batch_size, config.seq_length, bert_config.vocab_size, seed)

    batches = prefetched(make_batch, range(num_steps))  # as in training

    def loss(batch, key):
        return {"loss": span_loss(model(batch, dropout_key=key), batch)}

    gradient = gradient_function(optimizer, loss, make_batch(0))
    rows = config.batch_size * config.gradient_accumulation_steps
    meter = Meter(rows * world.size)
    times: list[float] = []
    parts: dict[str, list[float]] = {}
    for step in range(num_steps):
        line_up(world)
        meter.skip()
        began = time.perf_counter()
        batch = next(batches)
        meter.mark("data_s")
        totals, _ = optimizer.reduce_weights({"loss": float(rows)})
        inverse, flat = optimizer.inverse_weights(totals), None
        for number in range(config.gradient_accumulation_steps):
            part = gradient(batch, inverse, dropout_key(0, step, number, world.rank))
            flat = part if flat is None else flat + part
        part[:1].numpy()  # a GPU still works on it when Python goes on
        meter.mark("compute_s")
        flat = optimizer.all_reduce(flat)
        meter.mark("reduce_s")
        optimizer.update(flat, totals)
        meter.mark("apply_s")
        if step >= config.num_warmup:
            times.append(time.perf_counter() - began)
            for name, seconds in meter.read().items():
                parts.setdefault(name, []).append(seconds)
        else:
            meter.read()
    rates = [rows / seconds for seconds in times]
    of_ranks = world.all_gather((float(np.mean(rates)), float(np.std(rates))))
    total, deviation = sum(mean for mean, _ in of_ranks), sum(std for _, std in of_ranks)
    split = {name: statistics.median(parts[name]) for name in ("data_s", "compute_s", "reduce_s", "apply_s")}
    count = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    world.say(
        f"{config.bert_config_file or config.model_size}: {count / 1e6:.1f} M parameters, "
        f"batch {rows} x {config.seq_length} tokens per rank, {config.precision}, backend {collectives.name}, "
        f"{world.threads} threads per rank"
    )
    for rank, (mean, std) in enumerate(of_ranks):
        world.say(f"rank {rank}: {mean:.2f} +- {std:.2f} examples/sec")
    peak_bytes = max(world.all_gather(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
    alone_s = matrix_products(bert_config, config, world)
    peak = matrix_peak(config.precision, world)
    work = model_flop(bert_config, rows, config.seq_length)
    speed = work / (sum(times) / len(times))
    whole = sum(split.values())
    told = ", ".join(
        f"{name.removesuffix('_s')} {value * 1e3:.0f} ms ({value / whole:.0%})" for name, value in split.items()
    )
    world.say(f"step (median): {told}")
    world.say(
        f"rank 0: the matrix products of a step alone {alone_s * 1e3:.0f} ms, compute takes "
        f"{split['compute_s'] / alone_s:.2f} times that; model {speed / 1e9:.0f} GFLOP/s, {speed / peak:.0%} of "
        f"the {peak / 1e9:.0f} of one large product"
    )
    world.say(
        f"total tokens/sec: {total * config.seq_length:.0f} +- {deviation * config.seq_length:.0f}, none of them "
        "padding"
    )
    world.say(f"peak memory of a rank on the host: {peak_bytes / 1e9:.2f} GB")
    world.say(f"total examples/sec: {total:.2f} +- {deviation:.2f} on {world.size} rank{'s' * (world.size > 1)}")
    collectives.close()
    return {
        "world_size": world.size, "examples_per_s": total, "deviation": deviation, "of_ranks": of_ranks,
        "parameters": count, "products_alone_s": alone_s, "flop_per_s": speed, "peak_flop_per_s": peak,
        "peak_host_bytes": peak_bytes, **split,
    }  # fmt: skip


def model_flop(config: "BertConfig", rows: int, length: int) -> float:
    """Floating-point operations of the matrix products of one step, forward and backward: what Narayanan
    et al. 2021 (Megatron-LM, appendix) count for a layer, without recomputation and without a vocabulary."""
    hidden, tokens = config.hidden_size, rows * length
    linear = 2 * tokens * (4 * hidden * hidden + 2 * hidden * config.intermediate_size)
    attention = 2 * 2 * tokens * length * hidden
    return 3.0 * config.num_hidden_layers * (linear + attention)


def matrix_products(bert_config: "BertConfig", config: StepConfig, world: "World") -> float:
    """Seconds that the matrix products of one step alone take, in their own shapes; on all ranks at once."""
    import tensorflow as tf

    hidden, inner, heads = bert_config.hidden_size, bert_config.intermediate_size, bert_config.num_attention_heads
    batch, length = config.batch_size, config.seq_length
    of_heads = [batch, heads, length, hidden // heads]
    scores = [batch, heads, length, length]
    tokens = [batch * length]
    # First factor, second, whether that is transposed, the product, and how many of them a layer has.
    # Queries, keys and values are one.
    products = [
        ([*tokens, hidden], [hidden, 3 * hidden], False, [*tokens, 3 * hidden], 1),
        ([*tokens, hidden], [hidden, hidden], False, [*tokens, hidden], 1),
        ([*tokens, hidden], [hidden, inner], False, [*tokens, inner], 1),
        ([*tokens, inner], [inner, hidden], False, [*tokens, hidden], 1),
        (of_heads, of_heads, True, scores, 1),
        (scores, of_heads, False, of_heads, 1),
    ]
    seconds = 0.0
    for first, second, transposed, product, number in products:
        shapes = (first, second, product)
        x, y, gradient = (tf.cast(tf.random.normal(shape), DTYPES[config.precision]) for shape in shapes)
        runs = [
            partial(tf.matmul, x, y, transpose_b=transposed),
            partial(tf.matmul, gradient, y, transpose_b=not transposed),
            partial(tf.matmul, *((gradient, x) if transposed else (x, gradient)), transpose_a=True),
        ]
        seconds += number * sum(_seconds_each(run, world) for run in runs)
    return seconds * bert_config.num_hidden_layers * config.gradient_accumulation_steps


def matrix_peak(precision: str, world: "World") -> float:
    """FLOP/s of one large matrix product, on all ranks at once."""
    import tensorflow as tf

    x = tf.cast(tf.random.normal([PEAK_SIZE, PEAK_SIZE]), DTYPES[precision])
    return 2 * PEAK_SIZE**3 / _seconds_each(lambda: tf.matmul(x, x), world)


def _seconds_each(run: "Callable[[], tf.Tensor]", world: "World") -> float:
    """The median time of a call, of several between two looks at the result, for which a GPU is waited for."""
    run()[..., :1, :1].numpy()
    line_up(world)
    times: list[float] = []
    while sum(times) * CALLS < TIMED_S / 5 or len(times) < 3:
        began = time.perf_counter()
        for _ in range(CALLS):
            product = run()
        product[..., :1, :1].numpy()
        times.append((time.perf_counter() - began) / CALLS)
    return statistics.median(times)


def _random_batch(rows: int, length: int, vocabulary: int, seed: int) -> "dict[str, np.ndarray]":
    import numpy as np

    generator = np.random.default_rng(seed)
    whole = np.zeros((rows, length), np.int32)
    return {
        "input_ids": generator.integers(0, vocabulary, (rows, length), dtype=np.int32),
        "token_type_ids": whole,
        "position_ids": whole + np.arange(length, dtype=np.int32),
        "example_ids": whole + 1,
        "start_position": generator.integers(0, length, rows, dtype=np.int32),
        "end_position": generator.integers(0, length, rows, dtype=np.int32),
    }
