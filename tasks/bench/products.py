"""The matrix products of a training step alone: how many operations they are, and how long they take."""

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
TIMED_S = 0.1  # how long each product is repeated
CALLS = 4  # calls of a product for one time measurement
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def model_flop(config: "BertConfig", lengths: "np.ndarray") -> float:
    """Floating-point operations of the matrix products of one step on rows of these lengths, forward and backward.
    Counted as in Narayanan et al. 2021 (Megatron-LM, appendix) for the layers, without recomputation and without
    the vocabulary."""
    hidden = config.hidden_size
    linear = 2 * lengths.sum() * (4 * hidden * hidden + 2 * hidden * config.intermediate_size)
    attention = 2 * 2 * (lengths**2).sum() * hidden
    return float(3 * config.num_hidden_layers * (linear + attention))


def matrix_products(
    bert_config: "BertConfig",
    precision: str,
    shapes: Sequence[tuple[int, list[tuple[int, int]]]],
    world: "World",
) -> float:
    """Seconds for only the matrix products of a step of rank 0, in their real shapes, on all ranks at the same
    time.

    Args:
      shapes: for each micro-batch, the number of rows that linear layers process, all at once, and the rows and
        length of each group.
    """
    import tensorflow as tf

    hidden, inner, heads = bert_config.hidden_size, bert_config.intermediate_size, bert_config.num_attention_heads
    # (shape of the first factor, of the second, whether the second is transposed, shape of the product) -> count
    products: dict[tuple, int] = {}
    for tokens, groups in shapes:
        linear = [(hidden, 3 * hidden), (hidden, hidden), (hidden, inner), (inner, hidden)]  # q, k and v are one
        of_batch: list[tuple] = [((tokens, width), (width, to), False, (tokens, to)) for width, to in linear]
        for rows, length in groups:
            of_heads, scores = (rows, heads, length, hidden // heads), (rows, heads, length, length)
            of_batch += [(of_heads, of_heads, True, scores), (scores, of_heads, False, of_heads)]
        for product in of_batch:
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


def matrix_peak(precision: str, world: "World", size: int | None = None) -> float:
    """FLOP/s of one large matrix product of `size` rows and columns, on all ranks at the same time."""
    import tensorflow as tf

    size = size or PEAK_SIZE
    x = tf.cast(tf.random.normal([size, size]), DTYPES[precision])
    return 2 * size**3 / _seconds_each(lambda: tf.matmul(x, x), world)


def _seconds_each(run: "Callable[[], tf.Tensor]", world: "World") -> float:
    """The median time of a call. Each measurement times several calls and then reads the result, to wait for a
    GPU."""
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
