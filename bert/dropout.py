"""Dropout from few random bits, which are a pure function of a key and a place in the model."""

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf


def num_bits(rate: float) -> int:
    """How many random bits each element needs: 8 if that changes rate and 1 - rate by at most 2 %, else 16."""
    return 8 if abs(round(rate * 256) / 256 - rate) <= 0.02 * min(rate, 1 - rate) else 16


def effective_rate(rate: float) -> float:
    """The nearest rate that these bits can express: 0.1 becomes 26 / 256."""
    steps = 1 << num_bits(rate)
    return round(rate * steps) / steps


def random_words(count: tf.Tensor, seed: tf.Tensor, generator: str = "auto_select") -> tf.Tensor:
    """uint64 [count], uniform, from TensorFlow's stateless generator (Philox by default)."""
    return tf.random.stateless_uniform([count], seed, minval=None, maxval=None, dtype=tf.uint64, alg=generator)


@dataclass(frozen=True)
class Dropout:
    """Zeroes elements with probability `effective_rate(rate)` and scales the rest to preserve the mean.

    Args:
      key: int32 [2], a function of seed, step, micro-batch and rank; None turns dropout off.
      place: the number of this dropout in the model; no two share their random numbers.
      words: the generator, as `random_words`.
    """

    rate: float
    key: tf.Tensor | None
    place: int
    words: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] = random_words

    @property
    def is_on(self) -> bool:
        return self.key is not None and self.rate > 0.0

    @property
    def scale(self) -> float:
        """The factor that multiplies the kept elements."""
        return 1 / (1 - effective_rate(self.rate)) if self.is_on else 1.0

    @property
    def highest_kept(self) -> int:
        """The largest draw for which an element is kept."""
        steps = 1 << num_bits(self.rate)
        return steps // 2 - 1 - round(self.rate * steps)

    def draws(self, shape: tf.Tensor) -> tf.Tensor:
        """int8 or int16 [shape], fewer than 2^31, uniform over all values of the type."""
        bits = num_bits(self.rate)
        # Several draws from each 64-bit word: on CPUs the generator takes longer than the matrix product before
        # it.
        draws_per_word = 64 // bits
        size = tf.reduce_prod(shape)
        seed = tf.random.experimental.stateless_fold_in(self.key, self.place)
        words = self.words((size + draws_per_word - 1) // draws_per_word, seed)
        drawn = tf.reshape(tf.bitcast(words, tf.int8 if bits == 8 else tf.int16), [-1])[:size]
        return tf.reshape(drawn, shape)

    def kept(self, shape: tf.Tensor) -> tf.Tensor:
        """bool [shape]: which elements stay."""
        return self.draws(shape) <= self.highest_kept

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        if not self.is_on:
            return x
        return tf.where(self.kept(tf.shape(x)), x, tf.zeros([], x.dtype)) * tf.cast(self.scale, x.dtype)
