"""bert-bench step: whole training steps, and what their matrix products alone would take."""

import resource
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from ringbert.settings import check_at_least, setting
from tasks import job as start
from tasks.bench.load import StepLoad, config_of, lengths_of, micro_batches_of, shapes_of
from tasks.bench.settings import FiguresSettings
from tasks.bench.timing import line_up

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf
    from transformers import BertConfig

    from distributed.feed import Batch
    from distributed.world import World

PEAK_SIZE = 2048  # rows and columns of the matrices of the large product
TIMED_S = 0.1  # how long a product is repeated
CALLS = 4  # of a product, between two looks at the clock
PARTS = ("data_s", "compute_s", "reduce_s", "apply_s")
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, kw_only=True)
class StepConfig(StepLoad, FiguresSettings):
    """bert-bench step: SQuAD training steps on full rows of random tokens, or on windows of a file."""

    num_pairs: int = setting(
        5, "how many of the last steps are computed again beside their matrix products alone", "load"
    )
    device: Literal["auto", "gpu", "cpu"] = setting("auto", "where to compute", "machine")
    share_gpus: bool = setting(False, "allow more ranks than GPUs", "machine")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "num_pairs")


def bench_step(config: StepConfig, world: "World") -> dict[str, object]:
    """Times whole training steps on every rank; the figures: of all ranks together, the parts of this one."""
    import numpy as np

    from bert.model import Bert
    from bert.optimizer import AdamWeightDecay
    from distributed.collectives import open_collectives
    from distributed.feed import prefetched
    from distributed.gradient import Gradient, dropout_key
    from distributed.optimizer import AllreduceOptimizer
    from distributed.steps import StepClock
    from tasks.squad.program import span_loss

    start.set_precision(config.precision)
    collectives = open_collectives(world, config.backend)
    bert_config = config_of(config)
    make_batches = micro_batches_of(config, world, bert_config.vocab_size)
    model = Bert(bert_config, "span")
    model.recomputes = config.recompute
    optimizer = AllreduceOptimizer(
        AdamWeightDecay(1e-5),
        model.trainable_variables,
        world,
        collectives,
        scales_loss=config.precision == "fp16",
        compresses=config.compression == "bf16",
        overlaps=config.overlap == "auto",
    )
    optimizer.broadcast_variables()
    steps = range(config.num_warmup + config.num_steps)
    batches_of_steps = prefetched(make_batches, steps)  # as in training

    def loss(batch, key):
        return {"loss": span_loss(model(batch, dropout_key=key), batch)}

    gradient = Gradient(optimizer, loss, is_fixed=config.xla == "on")

    def gradient_of(step, batches):
        """The tokens of each row, the weights, and the flat buffer, computed to its end."""
        lengths = np.concatenate([lengths_of(batch) for batch in batches])
        totals, _ = optimizer.reduce_weights({"loss": float(len(lengths))})
        keys = [dropout_key(0, step, number, world.rank) for number in range(len(batches))]
        flat = gradient(batches, optimizer.inverse_weights(totals), keys)
        flat[:1].numpy()  # a GPU still works on it when Python goes on
        return lengths, totals, flat

    global_rows = config.batch_size * config.gradient_accumulation_steps * world.size
    meter = StepClock(global_rows)
    measured: list[Measured] = []
    recent: deque[list[Batch]] = deque(maxlen=config.num_pairs)
    for step in steps:
        line_up(world)
        meter.skip()
        began = time.perf_counter()
        batches = next(batches_of_steps)
        meter.mark("data_s")
        lengths, totals, flat = gradient_of(step, batches)
        meter.mark("compute_s")
        if not gradient.overlaps:
            flat = optimizer.all_reduce(flat)
        meter.mark("reduce_s")
        optimizer.update(flat, totals)
        meter.mark("apply_s")
        found = Measured(
            time.perf_counter() - began,
            meter.read(),
            [shapes_of(batch) for batch in batches],
            lengths,
        )
        if step >= config.num_warmup:
            measured.append(found)
            recent.append(batches)
    # A step and its products in turn: machines change their speed within a minute.
    compute_s, alone_s, peaks = [], [], []
    for batches in recent:
        line_up(world)
        began = time.perf_counter()
        gradient_of(len(steps), batches)
        compute_s.append(time.perf_counter() - began)
        shapes = [shapes_of(batch) for batch in batches]
        alone_s.append(matrix_products(bert_config, config.precision, shapes, world))
        peaks.append(matrix_peak(config.precision, world))
    rates = [len(one.lengths) / one.seconds for one in measured]
    of_ranks = world.all_gather((float(np.mean(rates)), float(np.std(rates))))
    total, deviation = sum(mean for mean, _ in of_ranks), sum(std for _, std in of_ranks)
    token_rates = [one.lengths.sum() / one.seconds for one in measured]
    tokens, of_tokens = world.all_reduce_sum(np.array([np.mean(token_rates), np.std(token_rates)]))
    parts = {
        name: statistics.median(one.parts[name] for one in measured)
        for name in ("data_s", "compute_s", "reduce_s", "apply_s")
    }
    count = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    world.say(
        f"{config.model_name}: {count / 1e6:.1f} M parameters, {config.rows_name} per rank, {config.precision}, "
        f"backend {collectives.name}, {world.threads} threads per rank"
    )
    for rank, (mean, std) in enumerate(of_ranks):
        world.say(f"rank {rank}: {mean:.2f} +- {std:.2f} examples/sec")
    peak_bytes = max(world.all_gather(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
    products_s, peak = statistics.median(alone_s), statistics.median(peaks)
    times_alone = float(np.median(np.array(compute_s) / alone_s))
    padding = 1 - sum(one.lengths.sum() for one in measured) / sum(
        rows * length for one in measured for shapes in one.shapes for rows, length in shapes
    )
    work = [model_flop(bert_config, one.lengths) for one in measured]
    speed = sum(work) / sum(one.seconds for one in measured)
    whole = sum(parts.values())
    with_sums = " (the sums are part of it)" if gradient.overlaps else ""
    told = ", ".join(
        f"{name.removesuffix('_s')} {value * 1e3:.0f} ms ({value / whole:.0%})" for name, value in parts.items()
    )
    world.say(f"step (median): {told}")
    world.say(
        f"rank 0: the matrix products of a step alone {products_s * 1e3:.0f} ms, compute{with_sums} takes "
        f"{times_alone:.2f} times that (median of {len(alone_s)} pairs); model {speed / 1e9:.0f} GFLOP/s, "
        f"{speed / peak:.0%} of the {peak / 1e9:.0f} of one large product; {padding:.1%} of the tokens are padding"
    )
    world.say(f"total tokens/sec: {tokens:.0f} +- {of_tokens:.0f}, padding not counted")
    world.say(f"peak memory of a rank on the host: {peak_bytes / 1e9:.2f} GB")
    world.say(f"total examples/sec: {total:.2f} +- {deviation:.2f} on {world.size} rank{'s' * (world.size > 1)}")
    collectives.close()
    return {
        "world_size": world.size, "examples_per_s": total, "deviation": deviation, "of_ranks": of_ranks,
        "tokens_per_s": float(tokens), "padding": float(padding), "parameters": count,
        "products_alone_s": products_s, "times_products": times_alone,
        "flop_per_s": speed, "peak_flop_per_s": peak, "peak_host_bytes": peak_bytes, **parts,
    }  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """A measured step of a rank: its seconds and those of its parts; rows and length of each group of each
    micro-batch, without the few rows that XLA's parts add; real tokens of each example, int64."""

    seconds: float
    parts: dict[str, float]
    shapes: list[list[tuple[int, int]]]
    lengths: "np.ndarray"


def model_flop(config: "BertConfig", lengths: "np.ndarray") -> float:
    """Floating-point operations of the matrix products of one step on rows of these lengths, forward and backward:
    what Narayanan et al. 2021 (Megatron-LM, appendix) count for a layer, without recomputation and without a
    vocabulary."""
    hidden = config.hidden_size
    linear = 2 * lengths.sum() * (4 * hidden * hidden + 2 * hidden * config.intermediate_size)
    attention = 2 * 2 * (lengths**2).sum() * hidden
    return float(3 * config.num_hidden_layers * (linear + attention))


def matrix_products(
    bert_config: "BertConfig", precision: str, shapes: Sequence[list[tuple[int, int]]], world: "World"
) -> float:
    """Seconds that the matrix products of a step of rank 0 alone take, in their own shapes; on all ranks at once.

    Args:
      shapes: of each micro-batch the rows and length of each group. Linear layers see all its tokens at once.
    """
    import tensorflow as tf

    hidden, inner, heads = bert_config.hidden_size, bert_config.intermediate_size, bert_config.num_attention_heads
    # First factor, second, whether that is transposed, the product, and how often a layer has it.
    products: dict[tuple, int] = {}
    for groups in shapes:
        tokens = sum(rows * length for rows, length in groups)
        linear = [(hidden, 3 * hidden), (hidden, hidden), (hidden, inner), (inner, hidden)]  # q, k and v are one
        found: list[tuple] = [((tokens, width), (width, to), False, (tokens, to)) for width, to in linear]
        for rows, length in groups:
            of_heads, scores = (rows, heads, length, hidden // heads), (rows, heads, length, length)
            found += [(of_heads, of_heads, True, scores), (scores, of_heads, False, of_heads)]
        for product in found:
            products[product] = products.get(product, 0) + 1
    seconds = 0.0
    for (first, second, transposed, result), number in world.broadcast(list(products.items())):
        factors = (first, second, result)
        x, y, gradient = (tf.cast(tf.random.normal(shape), DTYPES[precision]) for shape in factors)
        runs = [
            partial(tf.matmul, x, y, transpose_b=transposed),
            partial(tf.matmul, gradient, y, transpose_b=not transposed),
            partial(tf.matmul, *((gradient, x) if transposed else (x, gradient)), transpose_a=True),
        ]
        seconds += number * sum(_seconds_each(run, world) for run in runs)
    return seconds * bert_config.num_hidden_layers


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
    while sum(times) * CALLS < TIMED_S or len(times) < 3:
        began = time.perf_counter()
        for _ in range(CALLS):
            product = run()
        product[..., :1, :1].numpy()
        times.append((time.perf_counter() - began) / CALLS)
    return statistics.median(times)
