"""Rows of different lengths with little padding: groups of rows of similar length share the linear layers.

Group k has B_k rows of T_k tokens. The groups follow each other in flat arrays [R], where R is the sum of all
B_k * T_k. Linear layers see all groups at once, on CPUs without their padding (bert/tokens.py). Attention sees one
group at a time, so its cost depends on T_k and not on the longest row of the batch.

A `Grouping` decides how a batch is grouped: `in_one_group` pads all rows to the longest, `ByLength` chooses groups
that fit the lengths in the batch, and `Layouts` takes one of a few shapes for which XLA has compiled the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

LENGTH_MULTIPLE = 8  # lengths are rounded up to a multiple of this
NUM_LAYOUTS, GROUPS_OF_LAYOUT = 4, 8


class Groups(NamedTuple):
    """The groups of one batch: for each an array int32 [2], its number of rows and its length.

    They are part of a batch, and pass through tf.function and Keras like its other arrays.
    """

    shapes: tuple[Any, ...]

    @property
    def is_fixed(self) -> bool:
        """Whether the shapes are Python numbers, so that tf.function builds one graph for each shape."""
        return False

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        """Rows and length of each group; tensors in a graph."""
        return [(shape[0], shape[1]) for shape in self.shapes]

    @property
    def num_tokens(self) -> int:
        return sum(int(rows) * int(length) for rows, length in self.pairs)

    @property
    def widths(self) -> np.ndarray:
        """The padded length of each row, int32 [rows]."""
        rows, lengths = np.array(self.pairs, np.int32).T
        return np.repeat(lengths, rows)


class FixedGroups(Groups):
    """The groups of one batch as pairs of Python numbers: each shape has its own graph, which XLA compiles as a
    whole."""

    @property
    def is_fixed(self) -> bool:
        return True


class Grouping(Protocol):
    def __call__(self, lengths: np.ndarray) -> tuple[np.ndarray, Groups]:
        """Groups rows of these lengths, int [B]: the order in which they stand in the batch, int64 [B], and the
        groups, which may have more rows than there are lengths. The rows after the last one are then empty."""


def in_one_group(lengths: np.ndarray) -> tuple[np.ndarray, Groups]:
    """All rows, in their order, padded to the longest."""
    shape = np.array([len(lengths), rounded_up(np.max(lengths))], np.int32)
    return np.arange(len(lengths)), Groups((shape,))


@dataclass(frozen=True)
class ByLength:
    """Groups that fit the lengths in the batch: rows in descending order of length, cut into runs.

    Dynamic programming over the distinct lengths finds the cuts with the fewest padded tokens. There are always
    `num_groups` groups, so that one graph serves all batches; in a batch of B rows, those after the B-th are
    empty.
    """

    num_groups: int

    def __call__(self, lengths: np.ndarray) -> tuple[np.ndarray, Groups]:
        order = np.argsort(-np.asarray(lengths), kind="stable")
        rounded = rounded_up(np.asarray(lengths, np.int64)[order])
        shapes = np.zeros((self.num_groups, 2), np.int32)
        shapes[:, 1] = LENGTH_MULTIPLE
        # A cut saves tokens only where the length changes, so there are few places to try in any batch.
        edges = np.concatenate([[0], np.flatnonzero(np.diff(rounded)) + 1, [len(rounded)]])
        cuts = _cheapest_cuts(edges, rounded, self.num_groups)
        for number, (start, stop) in enumerate(cuts):
            shapes[number] = stop - start, rounded[start]
        return order.astype(np.int64), Groups(tuple(shapes))


@dataclass(frozen=True)
class _InLayout:
    """The grouping into one fixed sequence of groups."""

    layout: FixedGroups

    def __call__(self, lengths: np.ndarray) -> tuple[np.ndarray, FixedGroups]:
        return np.argsort(-np.asarray(lengths), kind="stable"), self.layout


class Layouts:
    """At most `NUM_LAYOUTS` fixed sequences of groups; a batch takes the one with the fewest tokens that holds it.

    The layouts are made from a sample of the run's batches, sorted by their number of tokens. The first third of
    the sample gives a staircase: the maximum of the batches' longest rows, of their second longest rows, and so
    on. Two thirds give a second staircase, and the whole sample a third one. `ByLength` cuts each into groups. The
    last layout holds every batch.

    Args:
      sample: the row lengths of some batches, each int [at most num_rows].
      num_rows, longest: the most rows, and the longest row, of any batch.
    """

    def __init__(self, sample: Sequence[np.ndarray], num_rows: int, longest: int):
        stairs = np.ones((len(sample), num_rows), np.int64)  # an empty row needs a place too
        for stair, lengths in zip(stairs, sample, strict=True):
            stair[: len(lengths)] = -np.sort(-np.asarray(lengths))
        by_tokens = stairs[np.argsort(stairs.sum(1), kind="stable")]
        parts = [part.max(0) for part in np.array_split(by_tokens, NUM_LAYOUTS - 1) if len(part)]
        parts = list(np.maximum.accumulate(parts)) if parts else []
        distinct: dict[FixedGroups, None] = {}
        for stair in (*parts, np.full(num_rows, longest)):
            _, groups = ByLength(GROUPS_OF_LAYOUT)(stair)
            pairs = tuple((int(rows), int(length)) for rows, length in groups.pairs if rows)
            distinct[FixedGroups(pairs)] = None
        self._layouts = sorted(distinct, key=lambda groups: groups.num_tokens)
        self._widths = np.array([layout.widths for layout in self._layouts])

    def __len__(self) -> int:
        return len(self._layouts)

    def single(self) -> list[Grouping]:
        """Each layout as a grouping of its own, for rows that fit into it."""
        return [_InLayout(layout) for layout in self._layouts]

    def __call__(self, lengths: np.ndarray) -> tuple[np.ndarray, FixedGroups]:
        order = np.argsort(-np.asarray(lengths), kind="stable")
        assert len(lengths) <= self._widths.shape[1], f"{len(lengths)} rows in {self._widths.shape[1]} places"
        holds = np.all(np.asarray(lengths)[order] <= self._widths[:, : len(lengths)], 1)
        assert holds.any(), f"a row of {np.max(lengths)} tokens"
        return order.astype(np.int64), self._layouts[int(np.argmax(holds))]


def rounded_up(lengths: Any) -> Any:
    """A length, or an array of lengths, rounded up as rows are padded."""
    return -(-lengths // LENGTH_MULTIPLE) * LENGTH_MULTIPLE


def _cheapest_cuts(edges: np.ndarray, lengths: np.ndarray, num_groups: int) -> list[tuple[int, int]]:
    """The runs (start, stop) of at most `num_groups` groups whose rows are all as long as their first."""
    num_runs = len(edges) - 1
    heights = lengths[edges[:-1]]
    # best[j]: the cost of the first j runs in g groups. A group of the runs i..j-1 costs its rows times the length
    # of run i.
    width = edges[None, :] - edges[:-1, None]  # [i, j]: rows of the runs i..j-1
    price = np.where(width > 0, width * heights[:, None], np.iinfo(np.int64).max // 4)
    best = np.full(num_runs + 1, np.iinfo(np.int64).max // 4)
    best[0] = 0
    choices = []
    for _ in range(min(num_groups, num_runs)):
        total = best[:-1, None] + price
        choices.append(total.argmin(0))
        best = np.minimum(total.min(0), np.iinfo(np.int64).max // 4)
    cuts: list[tuple[int, int]] = []
    stop = num_runs
    for choice in reversed(choices):
        start = int(choice[stop])
        cuts.insert(0, (int(edges[start]), int(edges[stop])))
        stop = start
    return cuts
