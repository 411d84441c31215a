"""Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1), its gradient written out."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from bert.elementwise import on_cpu

IN_TURNS_FROM = 128  # positions; the matrices of shorter rows are too small for a turn of a loop
# Of each matrix [T, T] that a turn computes, over its heads, for each thread. Whole rows of MiniLM (12 heads, 384
# positions) take 7 % longer a step in float32, 2 % in bfloat16 (AMD EPYC with 1 MiB of its own and 32 MiB shared).
TURN_BYTES = 2 << 20


def attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    mask: tf.Tensor,
    draws: tf.Tensor | None = None,
    highest_kept: int = 0,
    in_turns: bool = False,
) -> tf.Tensor:
    """softmax(Q K^T / sqrt(D) + mask), zero where draws > highest_kept, times V -> [B, N, T, D].

    The matrices [B, N, T, T] are most of what attention costs: they stay in the dtype of the inputs and are passed
    over as seldom as can be. Of them the gradient needs the softmax and the draws alone.

    Args:
      query, key, value: [B, N, T, D] of one dtype.
      mask: [B, 1, T, T] of that dtype, added to the scores.
      draws: integers [B, N, T, T] that decide about dropout, of `elementwise.draws`; what it leaves is not scaled
        here. None without dropout.
      in_turns: take the heads of long rows some after the others, and compile what stands between their products.
        On CPUs that is faster, once XLA has compiled for each value of T.
    """
    scale = query.shape[-1] ** -0.5

    @tf.custom_gradient
    def differentiable(query, key, value, mask, *draws):
        # On CPUs product, scale and mask become one operation of oneDNN.
        probs = softmax(tf.matmul(query, key, transpose_b=True) * scale + mask)

        def forward(between, probs, value, *draws):
            return [tf.matmul(between.dropped(highest_kept, probs, *draws), value)]

        def backward(between, query, key, value, probs, d_context, sums, *draws):
            d_dropped = tf.matmul(d_context, value, transpose_b=True)
            d_scores, dropped = between.d_scores(highest_kept, probs, d_dropped, sums, *draws, *draws)
            d_query = tf.matmul(d_scores, key) * scale
            d_key = tf.matmul(d_scores, query, transpose_a=True) * scale
            return [d_query, d_key, tf.matmul(dropped, d_context, transpose_a=True)]

        def gradient(d_context):
            # The softmax's gradient is P (dP - rowsum(P dP)), and rowsum(P dP) = rowsum(dO O), of far fewer
            # numbers: Dao et al. 2022 (FlashAttention), appendix B.2, equation 4.
            sums = tf.reduce_sum(wide(d_context) * wide(context), -1, keepdims=True)
            found = run(backward, [query, key, value, probs, d_context, sums, *draws], 3)
            return *found, None, *[None for _ in draws]

        def run(function, arrays, num_results):
            return _in_turns(function, arrays, num_results) if in_turns else function(PLAIN, *arrays)

        (context,) = run(forward, [probs, value, *draws], 1)
        return context, gradient

    return differentiable(query, key, value, mask, *(() if draws is None else (draws,)))


def _dropped(highest_kept: int, probs, draws=None):
    """`probs` where dropout keeps them, else 0."""
    return probs if draws is None else tf.where(draws <= highest_kept, probs, tf.zeros([], probs.dtype))


def _d_scores(highest_kept: int, probs, d_dropped, sums, draws=None, same_draws=None):
    """The gradient of the scores, and the softmax after dropout. The draws are given twice: XLA, which cannot
    know, makes one loop (`elementwise.ONE_LOOP`), without another for what both results would share."""
    d_probs = _dropped(highest_kept, d_dropped, draws)
    return probs * (d_probs - tf.cast(sums, probs.dtype)), _dropped(highest_kept, probs, same_draws)


def _dropped_by_bits(highest_kept: int, probs, draws=None):
    """To choose between two numbers in bfloat16 XLA's CPU code makes float32 of them, and bfloat16 again."""
    bits = {2: tf.uint16, 4: tf.uint32, 8: tf.uint64}[probs.dtype.size]
    return tf.bitcast(_dropped(highest_kept, tf.bitcast(probs, bits), draws), probs.dtype)


def _d_scores_in_float32(highest_kept: int, probs, d_dropped, sums, draws=None, same_draws=None):
    """Rounded at the end alone: in bfloat16 XLA's CPU code rounds after each operation, and takes longer."""
    d_scores, _ = _d_scores(highest_kept, wide(probs), wide(d_dropped), sums, draws)
    return tf.cast(d_scores, probs.dtype), _dropped_by_bits(highest_kept, probs, same_draws)


class _Between(NamedTuple):
    """What is computed between the products."""

    dropped: Callable
    d_scores: Callable


PLAIN = _Between(_dropped, _d_scores)
COMPILED = _Between(
    tf.function(_dropped_by_bits, jit_compile=True, autograph=False),
    tf.function(_d_scores_in_float32, jit_compile=True, autograph=False),
)


def _in_turns(function: Callable[..., list], arrays: Sequence[tf.Tensor], num_results: int) -> list[tf.Tensor]:
    """`function` of some heads of a row after the others, if rows are long: what a turn needs then stays in the
    cache, and the shapes that XLA compiles for differ in the length alone."""
    rows, heads, length = tf.unstack(tf.shape(arrays[0]))[:3]
    numbers = tf.range(1, heads + 1)
    caches = max(1, tf.config.threading.get_intra_op_parallelism_threads())  # each thread of the rank has its own
    fits = numbers <= caches * TURN_BYTES // arrays[0].dtype.size // tf.maximum(length * length, 1)
    of_turn = tf.reduce_max(tf.where(fits & (heads % numbers == 0), numbers, 1))

    def loop():
        turns = rows * heads // of_turn
        parts = [tf.reshape(array, tf.concat([[turns, of_turn], tf.shape(array)[2:]], 0)) for array in arrays]
        results = [tf.TensorArray(arrays[0].dtype, turns) for _ in range(num_results)]

        def turn(number, *results):
            found = function(COMPILED, *(part[number] for part in parts))
            written = (result.write(number, each) for result, each in zip(results, found, strict=True))
            return number + 1, *written

        _, *results = tf.while_loop(lambda number, *_: number < turns, turn, (0, *results), parallel_iterations=1)
        stacked = [result.stack() for result in results]
        return [tf.reshape(each, tf.concat([[rows, heads], tf.shape(each)[2:]], 0)) for each in stacked]

    is_worth_it = tf.logical_and(length >= IN_TURNS_FROM, rows > 0)
    return tf.cond(is_worth_it, loop, lambda: function(PLAIN, *arrays))


def wide(x: tf.Tensor) -> tf.Tensor:
    """x in float32, or float64 if it is that."""
    return x if x.dtype == tf.float64 else tf.cast(x, tf.float32)


def softmax(scores: tf.Tensor) -> tf.Tensor:
    """Softmax over the last axis, computed in float32, given in the dtype of `scores`."""
    if scores.dtype == tf.bfloat16 and _computes_in_float32():
        return tf.nn.softmax(scores)
    return tf.cast(tf.nn.softmax(wide(scores)), scores.dtype)


@functools.cache
def _computes_in_float32() -> bool:
    """Whether the softmax of bfloat16 is the rounded one of float32: oneDNN's is, on CPUs."""
    if not on_cpu():
        return False
    with tf.init_scope():
        scores = tf.cast(tf.random.stateless_normal([64, 509], [1, 2]), tf.bfloat16)
        rounded = tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32)), tf.bfloat16)
        found = tf.function(tf.nn.softmax, autograph=False)(scores)
        return bool(tf.reduce_mean(tf.cast(found == rounded, tf.float32)) > 0.99)
