"""The order of several corpora in one stream, as stated by weights that may change along it.

Corpus and row of a position are a pure function of (seed, position), as with one corpus
(distributed/order.py), in a time that does not depend on the position or on the numbers of rows.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from distributed.order import BlockOrder, Order
from distributed.stages import Table
from ringbase.ragged import mixed

# of all weights as whole numbers: products with places within a step are exact in 64 bits
MOST_UNITS = 1 << 32
# the golden ratio of 2⁶⁴: splitmix64's step from one state to the next
_STEP = np.uint64(0x9E3779B97F4A7C15)


def units_of(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """The smallest whole numbers with these ratios. Raises ValueError: their sum is 0, or too
    large."""
    denominator = math.lcm(*(weight.denominator for weight in weights))
    units = [int(weight * denominator) for weight in weights]
    divisor = math.gcd(*units)
    if not divisor:
        raise ValueError("all weights are 0")
    total = sum(units) // divisor
    if total > MOST_UNITS:
        raise ValueError(
            f"the weights are {total:,} parts of a whole, of which there may be {MOST_UNITS:,}:"
            " give fewer digits"
        )
    return tuple(unit // divisor for unit in units)


def numbers_at(table: Table, positions: ndarray) -> ndarray:
    """Which of the table's values each position has."""
    return np.searchsorted(table.starts, positions, side="right") - 1


class Portion(NamedTuple):
    """The places of one corpus in a stretch of a stream: they hold its rows number `first`, …, in
    its own order."""

    corpus: int
    places: ndarray  # ascending, from the start of the stretch
    first: int

    @property
    def stop(self) -> int:
        return self.first + len(self.places)


class Shares:
    """Which corpus each place of a stream has, for constant weights.

    The corpora are the leaves of a binary tree. A node divides its places between its two halves,
    of weights a and b: of its first x places ⌊(x·a + φ) / (a + b)⌋ belong to the first half, with φ
    from the seed. So each half has its share of any number of places to within one place, and each
    of n corpora to within ⌈log₂ n⌉.
    """

    def __init__(self, units: Sequence[int], key: int):
        self._sums = [0, *itertools.accumulate(units)]
        self._key = key

    def portions(self, start: int, stop: int) -> Iterator[Portion]:
        """Those of the places start, …, stop - 1."""
        places = np.arange(stop - start, dtype=np.int64)
        return self._divided(0, len(self._sums) - 1, places, start)

    def counts(self, stop: int) -> list[int]:
        """How many of the first places each corpus has."""
        return self._counted(0, len(self._sums) - 1, stop)

    def _node(self, low: int, high: int) -> tuple[int, int, int, int]:
        """Of the corpora low, …, high - 1: the first one of the second half, the weights of the
        first half and of both, and φ."""
        middle = (low + high) // 2
        first, total = self._sums[middle] - self._sums[low], self._sums[high] - self._sums[low]
        return middle, first, total, hashed(self._key, low, high) % total

    def _divided(self, low: int, high: int, places: ndarray, start: int) -> Iterator[Portion]:
        if not len(places):
            return
        if high - low == 1:
            yield Portion(low, places, start)
            return
        middle, first, total, phase = self._node(low, high)
        before, rest = divmod(start * first + phase, total)
        edges = (rest + first * np.arange(len(places) + 1, dtype=np.int64)) // total
        is_first = np.diff(edges) > 0
        yield from self._divided(low, middle, places[is_first], before)
        yield from self._divided(middle, high, places[~is_first], start - before)

    def _counted(self, low: int, high: int, stop: int) -> list[int]:
        if not stop:
            return [0] * (high - low)
        if high - low == 1:
            return [stop]
        middle, first, total, phase = self._node(low, high)
        of_first = (stop * first + phase) // total
        return [
            *self._counted(low, middle, of_first),
            *self._counted(middle, high, stop - of_first),
        ]


class Mixture(Order):
    """The order of corpora of these numbers of rows, whose rows follow each other in the data.

    `units` are the weights of all corpora, as whole numbers, along the stream. Each corpus has an
    order of its own, in which none of its rows is repeated before all have been seen, and goes on
    in it when weights change. From the start of the stream on each `batch` rows are of one corpus:
    weights that change within them change after them.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        units: Table[tuple[int, ...]],
        seed: int,
        batch: int = 1,
        order_of: Callable[[int, int], Order] = BlockOrder,
    ):
        super().__init__(sum(sizes), seed)
        self._batch = batch
        self._first_rows = [0, *itertools.accumulate(sizes)]
        self._orders = []
        for number, size in enumerate(sizes):
            self._orders.append(order_of(size, hashed(seed, number)))
        # places are batches of rows
        self._table = Table(tuple(-(-start // batch) for start in units.starts), units.values)
        self._shares = []
        # how many places of each corpus come before each piece of the table
        self._counts = [[0] * len(sizes)]
        for number, values in enumerate(units.values):
            self._shares.append(Shares(values, hashed(seed, len(sizes), number)))
        for number, (start, stop) in enumerate(itertools.pairwise(self._table.starts)):
            of_piece = self._shares[number].counts(stop - start)
            self._counts.append([*map(sum, zip(self._counts[-1], of_piece, strict=True))])

    def counts(self, stop: int) -> list[int]:
        """How many rows of each corpus the first `stop` positions have."""
        places, rest = divmod(stop, self._batch)
        piece = self._table.number_at(max(places - 1, 0))
        of_piece = self._shares[piece].counts(places - self._table.starts[piece])
        both = zip(self._counts[piece], of_piece, strict=True)
        counts = [self._batch * (before + more) for before, more in both]
        if rest:
            counts[int(self.fields_at(stop - 1, stop)["corpus"][0])] += rest
        return counts

    def fields_at(self, start: int, stop: int) -> dict[str, ndarray]:
        """As of one corpus, and the number of the "corpus". The "epoch" is that of the corpus."""
        batch = self._batch
        first_place, end_place = start // batch, -(-stop // batch)
        first_row = first_place * batch
        positions = np.arange(first_row, end_place * batch, dtype=np.int64)
        names = "row", "epoch", "corpus"
        fields = {name: np.empty_like(positions) for name in names} | {"position": positions}
        starts = self._table.starts
        pieces = numbers_at(self._table, np.arange(first_place, end_place))
        for piece in np.unique(pieces).tolist():
            first = max(first_place, starts[piece])
            end = min([end_place, *starts[piece + 1 : piece + 2]])
            portions = self._shares[piece].portions(first - starts[piece], end - starts[piece])
            for portion in portions:
                places = portion.places + (first - first_place)
                rows = (places[:, None] * batch + np.arange(batch)).reshape(-1)
                before = self._counts[piece][portion.corpus]
                of_corpus = (before + portion.first) * batch, (before + portion.stop) * batch
                own = self._orders[portion.corpus].fields_at(*of_corpus)
                fields["row"][rows] = own["row"] + self._first_rows[portion.corpus]
                fields["epoch"][rows] = own["epoch"]
                fields["corpus"][rows] = portion.corpus
        wanted = slice(start - first_row, stop - first_row)
        return {name: values[wanted] for name, values in fields.items()}


def hashed(*numbers: int) -> int:
    """A hash of numbers, 64 bits."""
    state = np.zeros(1, np.uint64)
    for number in numbers:
        state = mixed(state + _STEP + np.array([number], np.uint64))
    return int(state[0])
