"""The matrix products of a training step alone: how many operations, and how long they take here."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tasks.bench.timing import line_up

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf
    from transformers import BertConfig

    from distributed.world import World

PEAK_SIZE = 2048  # rows and columns of the matrices of the large product
TIMED_S = 0.1  # how long a product is repeated
CALLS = 4  # of a product, between two looks at the clock
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


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
        start_s = time.perf_counter()
        for _ in range(CALLS):
            product = run()
        product[..., :1, :1].numpy()
        times.append((time.perf_counter() - start_s) / CALLS)
    return statistics.median(times)
