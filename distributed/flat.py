"""Tensors side by side in one vector, which ranks sum in one message, or in buckets during the backward pass."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

LINE = 16  # float32 numbers in a cache line of 64 bytes
BUCKET_BYTES = 1 << 24  # gradients that are summed together while others are computed

# (a part of the vector, its number, whether it holds the numbers instead of tensors) -> its sum over ranks
SumPart = Callable[[tf.Tensor, int, bool], tf.Tensor]


class FlatLayout:
    """How tensors of one dtype lie in a vector, followed by some numbers.

    Each part is padded with zeros to whole cache lines, so that it can be used without a copy.
    """

    def __init__(self, shapes: Sequence[Sequence[int]], num_numbers: int, dtype: str):
        self.dtype = dtype
        self._shapes, self._num_numbers = list(shapes), num_numbers
        self._sizes = [int(np.prod(shape)) for shape in shapes]
        self._lines = [-(-size // LINE) for size in (*self._sizes, num_numbers)]
        self._buckets = buckets([4 * LINE * lines for lines in self._lines[:-1]], BUCKET_BYTES)

    @property
    def ends(self) -> list[int]:
        """Where each tensor, and then the numbers, end in the vector, with their padding."""
        return [int(end) * LINE for end in np.cumsum(self._lines)]

    @property
    def starts(self) -> list[int]:
        """Where each tensor begins in the vector."""
        return [0, *self.ends[:-1]][: len(self._sizes)]

    @property
    def numbers_at(self) -> int:
        """Where the numbers begin in the vector."""
        return self.ends[-2] if self._sizes else 0

    def flatten(self, tensors: Sequence, numbers: Sequence[tf.Tensor]) -> tf.Tensor:
        """The vector of tensors in the layout's shapes (None: zeros) and of scalars."""
        parts = [self._lined(*pair) for pair in zip(tensors, self._sizes, strict=True)]
        return tf.concat([*itertools.chain(*parts), *self._lined_numbers(numbers)], 0)

    def unflatten(self, flat: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """The tensors and the numbers [num_numbers] of a vector made by `flatten`."""
        *pieces, numbers = tf.split(tf.reshape(flat, [-1, LINE]), self._lines)  # at whole lines: without a copy
        tensors = [
            tf.reshape(tf.reshape(piece, [-1])[:size] if size % LINE else piece, shape)
            for piece, size, shape in zip(pieces, self._sizes, self._shapes, strict=True)
        ]
        return tensors, tf.reshape(numbers, [-1])[: self._num_numbers]

    def half_square(self, flat: tf.Tensor) -> tf.Tensor:
        """Half the sum of the squares of the tensors in a vector."""
        # One pass over memory, and more precise than the dot product of the vector with itself.
        return tf.nn.l2_loss(tf.reshape(flat, [-1, LINE])[: -self._lines[-1]])

    def sum_in_buckets(
        self, tensors: Sequence, numbers: Sequence[tf.Tensor], before: tf.Tensor | None, sum_part: SumPart
    ) -> tf.Tensor:
        """As `flatten`, plus the vector `before`, and summed over ranks.

        Called in the graph of the backward pass: buckets, from the last tensors to the first, are summed while
        other gradients are still being computed.
        """
        ends = self.ends
        summed: list[tf.Tensor] = []

        def add(parts: list, place: slice, holds_numbers: bool) -> tf.Tensor:
            whole = tf.concat(parts, 0) if before is None else tf.concat(parts, 0) + before[place]
            with tf.control_dependencies(summed[-1:]):  # so that all ranks have the same order
                return sum_part(whole, len(summed), holds_numbers)

        for bucket in self._buckets:
            parts = [*itertools.chain(*(self._lined(tensors[place], self._sizes[place]) for place in bucket))]
            first, last = ends[bucket[0]] - self._lines[bucket[0]] * LINE, ends[bucket[-1]]
            summed.append(add(parts, slice(first, last), holds_numbers=False))
        sums = add(self._lined_numbers(numbers), slice(self.numbers_at, ends[-1]), holds_numbers=True)
        return tf.concat([*reversed(summed), sums], 0)

    def _lined(self, tensor, size: int) -> list[tf.Tensor]:
        if tensor is None:
            return [tf.zeros([size + -size % LINE], self.dtype)]
        flat = tf.reshape(tf.convert_to_tensor(tensor), [size])
        return [flat, tf.zeros([-size % LINE], self.dtype)] if size % LINE else [flat]

    def _lined_numbers(self, numbers: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        stacked = tf.stack([tf.cast(number, self.dtype) for number in numbers])
        return [stacked, tf.zeros([-self._num_numbers % LINE], self.dtype)]


def buckets(sizes: Sequence[int], least: int) -> list[list[int]]:
    """Groups neighbouring places, from last to first, into lists of at least `least` bytes each; the list with the
    first places may be smaller."""
    lists: list[list[int]] = [[]]
    for place in reversed(range(len(sizes))):
        if sum(sizes[other] for other in lists[-1]) >= least:
            lists.append([])
        lists[-1].insert(0, place)
    return lists
