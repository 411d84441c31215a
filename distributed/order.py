"""The order of the rows in the endless stream, and each rank's share of a step's rows.

The row at position p of the stream is a pure function of (seed, p): a checkpoint stores only p, and
any number of ranks can continue from it.
"""

import functools
import heapq
import math

import numpy as np
from numpy import ndarray

from ringbase.ragged import mixed

_ROUNDS = 8
_WORD = (1 << 64) - 1
_ODD = np.uint64(0x9E3779B97F4A7C15)  # the golden ratio of 2⁶⁴


class Order:
    """A seeded permutation of all rows for each epoch: each row once per epoch, in a different
    order each time."""

    def __init__(self, num_rows: int, seed: int):
        self.num_rows = num_rows
        self.seed = seed
        self._permutation = functools.lru_cache(2)(self._permutation_of)

    def rows_at(self, start: int, stop: int) -> ndarray:
        """Row numbers (int64) of the positions start, …, stop - 1 of the endless stream."""
        return self.fields_at(start, stop)["row"]

    def fields_at(self, start: int, stop: int) -> dict[str, ndarray]:
        """Of these positions of the stream, int64: the number of the "row", the "epoch" in which it
        is seen, counted from 0, and the "position" itself."""
        positions = np.arange(start, stop, dtype=np.int64)
        epochs, within = np.divmod(positions, self.num_rows)
        parts = [within[:0]]
        for epoch in np.unique(epochs).tolist():
            parts.append(self._rows_of_epoch(epoch, within[epochs == epoch]))
        return {"row": np.concatenate(parts), "epoch": epochs, "position": positions}

    def _rows_of_epoch(self, epoch, positions):
        return self._permutation(epoch)[positions]

    def _permutation_of(self, epoch):
        bits = np.random.Philox(key=[self.seed, epoch])
        return np.random.Generator(bits).permutation(self.num_rows)


class BlockOrder(Order):
    """The order of a corpus of any size, in O(1) memory: in each epoch, blocks of neighbouring rows
    are shuffled, and so are the rows within each block. So a step reads whole blocks, but for its
    ends.

    Of the B = ⌈n / block⌉ blocks of n rows the last is short when `block` does not divide n. In
    epoch e slot k of 0, …, B - 1 holds block π(k). π is a Feistel network whose two halves are
    numbers modulo ⌈√B⌉ and ⌈B / ⌈√B⌉⌉; it is applied again while the result is ≥ B (Black and
    Rogaway 2002, Ciphers with Arbitrary Finite Domains); each round adds to one half a hash of
    (seed, e, round, other half). If the short block, of t rows, is in slot s, then position p of
    the epoch lies in slot p // block if p < s·block + t, else in slot (p + block - t) // block. The
    rows of a block are sorted by the hash of (seed, e, row).
    """

    def __init__(self, num_rows: int, seed: int, block: int = 16):
        super().__init__(num_rows, seed)
        self.block = block
        self._num_blocks = -(-num_rows // block)
        self._last_rows = num_rows - (self._num_blocks - 1) * block
        first = math.isqrt(max(self._num_blocks - 1, 0)) + 1
        second = -(-self._num_blocks // first)
        self._halves = np.uint64(first), np.uint64(second)

    def _rows_of_epoch(self, epoch, positions):
        seed = np.array([self.seed & _WORD], np.uint64)
        of_epoch = mixed(seed) + np.array([epoch], np.uint64) * _ODD
        # one for each round, and the last one for the rows within a block
        keys = mixed(of_epoch + np.arange(1, _ROUNDS + 2, dtype=np.uint64))
        last_block = np.array([self._num_blocks - 1])
        short_slot = self._permuted(last_block, keys, backwards=True)
        short_end = short_slot * self.block + self._last_rows
        missing = self.block - self._last_rows
        shift = np.where(positions >= short_end, missing, 0)
        slots, within = np.divmod(positions + shift, self.block)
        blocks = self._permuted(np.arange(slots[0], slots[-1] + 1), keys)
        rows = blocks[:, None] * self.block + np.arange(self.block)
        hashes = mixed(rows.astype(np.uint64) * _ODD + keys[-1])
        hashes[rows >= self.num_rows] = _WORD
        # stable, so that even equal hashes have a fixed order
        order = np.argsort(hashes, axis=1, kind="stable")
        block_index = slots - slots[0]
        return rows[block_index, order[block_index, within]]

    def _permuted(self, blocks, keys, backwards=False):
        """π of each number, or the inverse of π."""
        permuted = self._through_rounds(blocks.astype(np.uint64), keys, backwards)
        outside = permuted >= self._num_blocks
        while outside.any():
            permuted[outside] = self._through_rounds(permuted[outside], keys, backwards)
            outside = permuted >= self._num_blocks
        return permuted.astype(np.int64)

    def _through_rounds(self, numbers, keys, backwards):
        first = self._halves[0]
        halves = [numbers % first, numbers // first]
        rounds = range(_ROUNDS)
        for number in reversed(rounds) if backwards else rounds:
            changed = number % 2
            size = self._halves[changed]
            gain = mixed(halves[1 - changed] * _ODD + keys[number]) % size
            if backwards:
                gain = size - gain
            halves[changed] = (halves[changed] + gain) % size
        return halves[0] + halves[1] * first


def balanced(lengths: ndarray, num_parts: int) -> list[ndarray]:
    """Divides rows into parts with nearly equal numbers of tokens, whose numbers of rows differ by
    at most one: the longest remaining row goes to the part with the fewest tokens so far (Graham
    1969, LPT), of those that still need rows. Returns places in `lengths`, ascending."""
    num_rows, larger = divmod(len(lengths), num_parts)  # of each part; so many parts have one more
    parts: list[list] = [[] for _ in range(num_parts)]
    open_parts = [(0, part) for part in range(num_parts)]  # a heap, by tokens
    longest_first = np.argsort(-lengths, kind="stable").tolist()
    for row in longest_first:
        tokens, part = heapq.heappop(open_parts)
        while len(parts[part]) == num_rows and not larger:
            tokens, part = heapq.heappop(open_parts)
        larger -= len(parts[part]) == num_rows
        parts[part].append(row)
        if len(parts[part]) <= num_rows:
            heapq.heappush(open_parts, (tokens + int(lengths[row]), part))
    return [np.sort(np.array(part, np.int64)) for part in parts]


def micro_batches_of(rows: ndarray, lengths: ndarray, accumulation: int) -> list[ndarray]:
    """The micro-batches of a rank that has these rows of a step. Rows are places in `lengths`."""
    return [rows[part] for part in balanced(lengths[rows], accumulation)]
