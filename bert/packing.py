"""Rows of unlike lengths with little padding: groups of rows of like length that share the linear layers.

Groups k of B_k rows of T_k tokens lie one after the other in flat arrays [R], R the sum of all B_k * T_k. Linear
layers see R tokens at once; attention sees one group at a time and so pays for its T_k, not for the longest row of
the batch.
"""

import numpy as np

LENGTH_MULTIPLE = 8  # lengths are rounded up to it


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
    rounded = -(-np.asarray(lengths, np.int64)[order] // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    groups = np.zeros((num_groups, 2), np.int32)
    groups[:, 1] = LENGTH_MULTIPLE
    # Only where the length changes can a cut save anything: few places, whatever the batch.
    edges = np.concatenate([[0], np.flatnonzero(np.diff(rounded)) + 1, [len(rounded)]])
    cuts = _cheapest_cuts(edges, rounded, num_groups)
    for number, (start, stop) in enumerate(cuts):
        groups[number] = stop - start, rounded[start]
    return order.astype(np.int64), groups


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
