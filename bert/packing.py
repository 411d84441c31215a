"""Rows of unlike lengths with little padding: groups of rows of like length that share the linear layers.

Groups k of B_k rows of T_k tokens lie one after the other in flat arrays [R], R the sum of all B_k * T_k. Linear
layers see R tokens at once; attention sees one group at a time and so pays for its T_k, not for the longest row of
the batch.

Groups of a batch's own lengths (`group`) give each batch another shape. `Layouts` are a few shapes for all batches
of a run, for XLA, which compiles once for each.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

LENGTH_MULTIPLE = 8  # lengths are rounded up to it
NUM_LAYOUTS, GROUPS_OF_LAYOUT = 4, 8


def group(lengths: np.ndarray, num_groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows in descending order of length, cut into `num_groups` runs with the fewest padded tokens.

    Args:
      lengths: tokens of each row, int [B].
    Returns:
      order, int64 [B]: the rows as they stand in the batch.
      groups, int32 [num_groups, 2]: rows and length of each group; groups behind the B-th have no rows.
    The cuts are optimal: dynamic programming over the distinct lengths.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    rounded = rounded_up(np.asarray(lengths, np.int64)[order])
    groups = np.zeros((num_groups, 2), np.int32)
    groups[:, 1] = LENGTH_MULTIPLE
    # Only where the length changes can a cut save anything: few places, whatever the batch.
    edges = np.concatenate([[0], np.flatnonzero(np.diff(rounded)) + 1, [len(rounded)]])
    cuts = _cheapest_cuts(edges, rounded, num_groups)
    for number, (start, stop) in enumerate(cuts):
        groups[number] = stop - start, rounded[start]
    return order.astype(np.int64), groups


class Layouts:
    """At most `NUM_LAYOUTS` fixed sequences of groups; a batch takes the one with the fewest tokens that holds it.

    A third of a sample of the run's batches, those of the fewest tokens, fits below one staircase: the longest of
    their longest rows, of their second longest, …; two thirds fit below another, all of them below a third one.
    `group` cuts them. The last layout holds every batch.

    Args:
      sample: the lengths of the rows of some batches, each int [at most num_rows].
      num_rows, longest: of any batch.
    """

    def __init__(self, sample: Sequence[np.ndarray], num_rows: int, longest: int):
        stairs = np.ones((len(sample), num_rows), np.int64)  # an empty row, too, has a place
        for stair, lengths in zip(stairs, sample, strict=True):
            stair[: len(lengths)] = -np.sort(-np.asarray(lengths))
        by_tokens = stairs[np.argsort(stairs.sum(1), kind="stable")]
        parts = [part.max(0) for part in np.array_split(by_tokens, NUM_LAYOUTS - 1) if len(part)]
        parts = list(np.maximum.accumulate(parts)) if parts else []
        found: dict[tuple, None] = {}
        for stair in (*parts, np.full(num_rows, longest)):
            _, groups = group(stair, GROUPS_OF_LAYOUT)
            found[tuple((int(rows), int(length)) for rows, length in groups if rows)] = None
        self._layouts = sorted(found, key=tokens_of)
        self._widths = np.array([np.repeat(*np.array(layout)[:, ::-1].T) for layout in self._layouts])

    def __len__(self) -> int:
        return len(self._layouts)

    def __call__(self, lengths: np.ndarray) -> tuple[np.ndarray, tuple[tuple[int, int], ...]]:
        """As `group`; the groups are numbers of Python and may have more rows than there are lengths. The rows
        behind the last are empty."""
        order = np.argsort(-np.asarray(lengths), kind="stable")
        assert len(lengths) <= self._widths.shape[1], f"{len(lengths)} rows in {self._widths.shape[1]} places"
        holds = np.all(np.asarray(lengths)[order] <= self._widths[:, : len(lengths)], 1)
        assert holds.any(), f"a row of {np.max(lengths)} tokens"
        return order.astype(np.int64), self._layouts[int(np.argmax(holds))]


def tokens_of(groups: Sequence[tuple[int, int]]) -> int:
    return sum(rows * length for rows, length in groups)


def rounded_up(lengths: Any) -> Any:
    """A length, or an array of them, as rows are padded."""
    return -(-lengths // LENGTH_MULTIPLE) * LENGTH_MULTIPLE


def _cheapest_cuts(edges: np.ndarray, lengths: np.ndarray, num_groups: int) -> list[tuple[int, int]]:
    """The runs (start, stop) of at most `num_groups` groups whose rows are all as long as their first."""
    num_runs = len(edges) - 1
    heights = lengths[edges[:-1]]
    # best[j]: the cost of the first j runs in g groups; a group of the runs i..j-1 costs its rows x height i.
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
