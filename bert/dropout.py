"""Dropout from few random bits, which are a pure function of a key and a place in the model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf


def random_words(count: tf.Tensor, seed: tf.Tensor, generator: str = "auto_select") -> tf.Tensor:
    """uint64 [count], uniform, from TensorFlow's stateless generator (Philox by default)."""
    return tf.random.stateless_uniform([count], seed, minval=None, maxval=None, dtype=tf.uint64, alg=generator)


@dataclass(frozen=True)
class Dropout:
    """Zeroes elements with probability `rate`, as near as the bits can express it, and scales the rest to preserve
    the mean.

    Args:
      key: int32 [], drawn by a key that is a function of seed, step, micro-batch and rank; None turns dropout off.
      place: the number of this dropout in the model; no two share their random numbers.
      words: the generator, as `random_words`; None where the numbers are computed as in bert/ops_gpu.py.
      group: the number of the group of rows, for generators that draw for each group alone.
    """

    rate: float
    key: tf.Tensor | None
    place: int | tf.Tensor
    words: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = random_words
    group: int = 0

    @property
    def is_on(self) -> bool:
        return self.key is not None and self.rate > 0.0

    @property
    def num_bits(self) -> int:  # of each element: 8 if that changes rate and 1 - rate by at most 2 %, else 16
        is_near = abs(round(self.rate * 256) / 256 - self.rate) <= 0.02 * min(self.rate, 1 - self.rate)
        return 8 if is_near else 16

    @property
    def num_dropped(self) -> int:  # of the values that a draw may have: 26 of 256 for the rate 0.1
        return round(self.rate * (1 << self.num_bits))

    @property
    def scale(self) -> float:  # of the kept elements
        return 1 / (1 - self.num_dropped / (1 << self.num_bits)) if self.is_on else 1.0

    @property
    def highest_kept(self) -> int:  # draws up to this keep their element
        return (1 << self.num_bits - 1) - 1 - self.num_dropped

    def draws(self, shape: Sequence[Any]) -> tf.Tensor:
        """int8 or int16, uniform over all values of the type, of this shape, of fewer than 2^31 elements."""
        assert self.words is not None
        # Several draws from each 64-bit word: on CPUs the generator takes longer than the matrix product before
        # it. No tf.reduce_prod: a GPU would compute it, and the host wait for it.
        size, draws_per_word = math.prod(shape), 64 // self.num_bits
        words = self.words((size + draws_per_word - 1) // draws_per_word, tf.stack([self.key, self.place]))
        drawn = tf.bitcast(words, tf.int8 if self.num_bits == 8 else tf.int16)
        return tf.reshape(tf.strided_slice(tf.reshape(drawn, [-1]), [0], [size]), shape)

    def kept(self, x: tf.Tensor) -> tf.Tensor:
        """bool, which elements of x stay."""
        return self.draws(tf.unstack(tf.shape(x))) <= self.highest_kept

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        if not self.is_on:
            return x
        return tf.where(self.kept(x), x, tf.zeros([], x.dtype)) * tf.cast(self.scale, x.dtype)
