"""The functions of bert/ops.py for CPUs: those of `ops_xla`, with compiled random numbers and attention."""

import functools
from collections.abc import Callable, Sequence

import tensorflow as tf

from bert import ops
from bert.dropout import Dropout
from bert.ops_xla import activated, biased, missing, padding_rows, residual  # noqa: F401  the same here

FEWEST_WORDS, WORD_PARTS = 4096, 8
IN_TURNS_FROM = 128  # positions; the matrices of shorter rows are too small to loop over
# For each thread: the size of one of the matrices [T, T] over all heads of one turn of the loop. Taking whole rows
# of MiniLM (12 heads, 384 positions) instead makes a step 7 % slower in float32 and 2 % in bfloat16 (AMD EPYC with
# 1 MiB of cache per core and 32 MiB shared).
TURN_BYTES = 2 << 20


def random_words(count: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """At least `count` words, rounded up so that XLA compiles for few different counts.

    XLA's Threefry (Salmon et al. 2011) takes 40 % of the time of TensorFlow's Philox.
    """
    return _threefry(count + missing(count, FEWEST_WORDS, WORD_PARTS), seed)


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _threefry(count: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    return ops.random_words(count, seed, "threefry")


def attention(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, mask: tf.Tensor, draws: tf.Tensor | None, dropout: Dropout
) -> tf.Tensor:
    """Processes the heads of long rows a few at a time, and compiles the operations between their products.

    That is faster once XLA has compiled it for each value of T. Without a dropout key there is no training, and
    without dropout and gradient there is nothing between the products to compile.
    """
    run = ops.all_at_once if dropout.key is None else _in_turns
    return ops.attention(query, key, value, mask, draws, dropout, run)


def _in_turns(function: Callable[..., list], arrays: Sequence[tf.Tensor], num_results: int) -> list[tf.Tensor]:
    """Calls `function` on a few heads of a row at a time, if rows are long. The data of one call then stays in the
    cache, and the shapes that XLA compiles for differ only in the length."""
    rows, heads, length = tf.unstack(tf.shape(arrays[0]))[:3]
    numbers = tf.range(1, heads + 1)
    num_caches = max(1, tf.config.threading.get_intra_op_parallelism_threads())  # one per thread of the rank
    fits = numbers <= num_caches * TURN_BYTES // arrays[0].dtype.size // tf.maximum(length * length, 1)
    heads_per_turn = tf.reduce_max(tf.where(fits & (heads % numbers == 0), numbers, 1))

    def loop():
        turns = rows * heads // heads_per_turn
        parts = [tf.reshape(x, tf.concat([[turns, heads_per_turn], tf.shape(x)[2:]], 0)) for x in arrays]
        results = [tf.TensorArray(arrays[0].dtype, turns) for _ in range(num_results)]

        def turn(number, *results):
            turn_results = function(COMPILED, *(part[number] for part in parts))
            written = (array.write(number, result) for array, result in zip(results, turn_results, strict=True))
            return number + 1, *written

        _, *results = tf.while_loop(lambda number, *_: number < turns, turn, (0, *results), parallel_iterations=1)
        stacked = [result.stack() for result in results]
        return [tf.reshape(each, tf.concat([[rows, heads], tf.shape(each)[2:]], 0)) for each in stacked]

    is_worth_it = tf.logical_and(length >= IN_TURNS_FROM, rows > 0)
    return tf.cond(is_worth_it, loop, lambda: ops.all_at_once(function, arrays, num_results))


def _dropped(highest_kept: int, probs, draws=None):
    """Selects on the bits: to select between two bfloat16 numbers, XLA's CPU code would convert them to float32
    and back."""
    bits = {2: tf.uint16, 4: tf.uint32, 8: tf.uint64}[probs.dtype.size]
    return tf.bitcast(ops.dropped(highest_kept, tf.bitcast(probs, bits), draws), probs.dtype)


def _d_scores(highest_kept: int, probs, d_dropped, sums, draws=None, same_draws=None):
    """Rounds only at the end: in bfloat16 XLA's CPU code rounds after each operation, which takes longer."""
    d_scores, _ = ops.d_scores(highest_kept, ops.wide(probs), ops.wide(d_dropped), sums, draws)
    return tf.cast(d_scores, probs.dtype), _dropped(highest_kept, probs, same_draws)


COMPILED = ops.BetweenProducts(
    tf.function(_dropped, jit_compile=True, autograph=False),
    tf.function(_d_scores, jit_compile=True, autograph=False),
)
