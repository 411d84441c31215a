"""What a layer computes besides products with weights: attention, bias, activation, residual,
LayerNorm, dropout.

This module uses TensorFlow's own operations. `ops_cpu`, `ops_gpu` and `ops_cudnn` have faster
versions of the same functions. `Bert` chooses one of these modules (bert/kernels.py) for each pass.
W is the width of a layer; the other shapes are those of bert/model.py.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow import Tensor

Activation = Callable[[Tensor], Tensor]


def _tanh_gelu(x: Tensor) -> Tensor:
    return tf.nn.gelu(x, approximate=True)


ACTIVATIONS: dict[str, Activation] = {
    # With erf, as in Google's first release and Hugging Face. tf.nn.gelu divides by sqrt(2): half
    # as fast.
    "gelu": lambda x: 0.5 * x * (1.0 + tf.math.erf(x * 0.5**0.5)),
    "gelu_new": _tanh_gelu,  # as in Google's last release
    "gelu_pytorch_tanh": _tanh_gelu,
    "relu": tf.nn.relu,
    "silu": tf.nn.silu,
    "tanh": tf.math.tanh,
    "linear": tf.identity,
}

# x W [R, W] of a linear layer, and its bias [W], which is not yet added
Product = tuple[Tensor, Tensor]
Norm = tuple[Tensor, Tensor, float]  # gamma [W], beta [W] and epsilon of a LayerNorm
Heads = list[Tensor]  # query, key and value, each [B, N, T, D]
Words = Callable[[Tensor, Tensor], Tensor]  # count and seed -> uint64 [count]

biased = tf.nn.bias_add  # x [R, W] + bias [W]
keeps_matrices = True  # attention has matrices [T, K] in memory


def random_words(count: Tensor, seed: Tensor, generator: str = "auto_select") -> Tensor:
    """uint64 [count], uniform, from TensorFlow's stateless generator (Philox by default)."""
    return tf.random.stateless_uniform(
        [count], seed, minval=None, maxval=None, dtype=tf.uint64, alg=generator
    )


@dataclass(frozen=True)
class Dropout:
    """Zeroes elements with probability `rate`, as near as the bits can express it, and scales the
    rest to preserve the mean."""

    rate: float
    # int32 [], drawn by a key that is a function of seed, step, micro-batch and rank; None turns
    # dropout off.
    key: Tensor | None
    place: int | Tensor  # its number in the model; no two share their random numbers
    # The generator, as `random_words`; None where the numbers are computed as in bert/ops_gpu.py.
    words: Words | None = random_words
    group: int = 0  # the number of the group of rows, for generators that draw for each group alone

    @property
    def is_on(self) -> bool:
        return self.key is not None and self.rate > 0.0

    @property
    # of each element: 8 if that changes rate and 1 - rate by at most 2 %, else 16
    def num_bits(self) -> int:
        error = abs(round(self.rate * 256) / 256 - self.rate)
        allowed = 0.02 * min(self.rate, 1 - self.rate)
        return 8 if error <= allowed else 16

    @property
    def num_dropped(self) -> int:  # of the values that a draw may have: 26 of 256 for the rate 0.1
        return round(self.rate * (1 << self.num_bits))

    @property
    def scale(self) -> float:  # of the kept elements
        if not self.is_on:
            return 1.0
        num_values = 1 << self.num_bits
        return 1 / (1 - self.num_dropped / num_values)

    @property
    def highest_kept(self) -> int:  # draws up to this keep their element
        return (1 << self.num_bits - 1) - 1 - self.num_dropped

    def draws(self, *shapes: Sequence[Any]) -> list[Tensor]:
        """int8 or int16, uniform over all values of the type, of these shapes, with fewer than 2^31
        elements."""
        assert self.words is not None
        # Several draws from each 64-bit word: on CPUs the generator takes longer than the matrix
        # product before it. No tf.reduce_prod: a GPU would compute it, and the host wait for it.
        draws_per_word = 64 // self.num_bits
        sizes = [math.prod(shape) for shape in shapes]
        num_words = (sum(sizes) + draws_per_word - 1) // draws_per_word
        words = self.words(num_words, tf.stack([self.key, self.place]))
        kind = tf.int8 if self.num_bits == 8 else tf.int16
        drawn = tf.reshape(tf.bitcast(words, kind), [-1])
        # By slices: GPUs have no kernel that splits int8.
        parts = []
        start = 0
        for shape, size in zip(shapes, sizes, strict=True):
            end = start + size
            parts.append(tf.reshape(drawn[start:end], shape))
            start = end
        return parts

    def kept(self, x: Tensor) -> Tensor:
        """bool, which elements of x stay."""
        shape = tf.unstack(tf.shape(x))
        (draws,) = self.draws(shape)
        return draws <= self.highest_kept

    def __call__(self, x: Tensor) -> Tensor:
        if not self.is_on:
            return x
        kept = tf.where(self.kept(x), x, tf.zeros([], x.dtype))
        return kept * tf.cast(self.scale, x.dtype)


def on_cpu() -> bool:
    """Whether TensorFlow computes without GPUs."""
    return not tf.config.get_visible_devices("GPU")


def wide(x: Tensor) -> Tensor:
    return tf.cast(x, tf.float32)


def activated(x: Tensor, bias: Tensor, activation: Activation) -> Tensor:
    """activation(x + bias), computed in float32 and returned in the dtype of x: on CPUs, GELU in
    bfloat16 would take twice as long."""
    result = activation(wide(biased(x, bias)))
    return tf.cast(result, x.dtype)


def gradient_again(function, gradient, x, *rest):
    """The gradient by x of function(x, *rest), which is computed again."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        result = function(x, *rest)
    return tape.gradient(result, x, gradient)


def row_means(x: Tensor) -> Tensor:
    """The means over the last axis, which stays with length 1."""
    return tf.reduce_mean(x, -1, keepdims=True)


def gated(x: Tensor, activation: Activation) -> Tensor:
    """activation(a) b of x = [a, b] (Shazeer 2020), computed in float32: [R, 2 I] -> [R, I]."""
    first, second = tf.split(wide(x), 2, -1)
    return tf.cast(activation(first) * second, x.dtype)


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """The pairs x [R, 3, N, 2, E] of queries, keys and values, turned (Su et al. 2021, equation 34)
    in float32. Cosines and sines are [R, 3, 1, 2, E]; the first sine of a pair is negative."""
    # Two casts: each of their gradients is rounded to the dtype of x.
    swapped = tf.reverse(wide(x), [-2])
    turned = wide(x) * cosines + swapped * sines
    return tf.cast(turned, x.dtype)


def normalized(x: Tensor, gamma: Tensor, beta: Tensor | float, epsilon: float) -> Tensor:
    """Layer normalisation over the last axis (Ba et al. 2016)."""
    centered = x - row_means(x)
    variance = row_means(tf.square(centered))
    factor = tf.math.rsqrt(variance + epsilon)
    return centered * factor * gamma + beta


def residual(hidden: Tensor, branch: Product, norm: Norm, dropout: Dropout) -> Tensor:
    """LayerNorm(hidden + dropout(branch)) [R, H], in float32, returned in the dtype of `hidden`."""
    x, bias = branch
    gamma, beta, epsilon = norm
    mask = dropout.kept(x) if dropout.is_on else None
    total = residual_sum(wide(biased(x, bias)), hidden, dropout.scale, mask)
    normed = normalized(total, gamma, beta, epsilon)
    return tf.cast(normed, hidden.dtype)


def prenormed(
    hidden: Tensor, branch: Tensor | None, gamma: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """hidden + branch [R, H], where there is a branch, and its LayerNorm without a bias."""
    total = hidden
    if branch is not None:
        total += branch
    normed = normalized(wide(total), gamma, 0.0, epsilon)
    return total, tf.cast(normed, hidden.dtype)


def residual_sum(
    branch: Tensor, hidden: Tensor, scale: float, mask: Tensor | None = None
) -> Tensor:
    """hidden + scale * branch where the mask keeps it, in the dtype of `branch`."""
    return tf.cast(hidden, branch.dtype) + scaled(branch, scale, mask)


def scaled(x: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """x without a mask; else scale * x where the mask keeps it, and 0."""
    if mask is None:
        return x
    return tf.where(mask, x * scale, tf.zeros([], x.dtype))


def attention(
    heads: Heads, mask: Tensor, draws: Tensor | None, dropout: Dropout, longest: int | None
) -> Tensor:
    """dropped(softmax(Q K^T / sqrt(D) + mask)) V -> [B, N, T, D] (Vaswani et al. 2017, section
    3.2.1).

    `mask`, [B, 1, 1 or T, K] of the heads' dtype, is added to the scores; there may be more keys K
    than queries T. `draws` are integers [B, N, T, K], from `dropout.draws`; None without dropout.
    The kept values are not scaled here. `longest` says how long the rows of the run are, where it
    is known; the result does not depend on it.
    """
    query, key, value = heads
    # On CPUs oneDNN fuses product, scale and mask into one operation.
    scale = query.shape[-1] ** -0.5
    probs = softmax(tf.matmul(query, key, transpose_b=True) * scale + mask)
    kept = dropped(probs, draws, dropout.highest_kept)
    return tf.matmul(kept, value)


def dropped(probs: Tensor, draws: Tensor | None, highest_kept: int) -> Tensor:
    """`probs` where dropout keeps them, else 0."""
    if draws is None:
        return probs
    is_kept = draws <= highest_kept
    return tf.where(is_kept, probs, tf.zeros([], probs.dtype))


def softmax(scores: Tensor) -> Tensor:
    """Softmax over the last axis, computed in float32 and returned in the dtype of `scores`."""
    if scores.dtype == tf.bfloat16 and _softmax_computes_in_float32():
        return tf.nn.softmax(scores)
    return tf.cast(tf.nn.softmax(wide(scores)), scores.dtype)


@functools.cache
def _softmax_computes_in_float32() -> bool:
    """Whether TensorFlow's bfloat16 softmax is the float32 softmax, rounded. With oneDNN, on CPUs,
    it is."""
    if not on_cpu():
        return False
    with tf.init_scope():
        scores = tf.random.stateless_normal([64, 509], [1, 2])
        scores = tf.cast(scores, tf.bfloat16)
        expected = tf.cast(tf.nn.softmax(wide(scores)), tf.bfloat16)
        traced = tf.function(tf.nn.softmax, autograph=False)
        share = tf.reduce_mean(wide(traced(scores) == expected))
        return bool(share > 0.99)
