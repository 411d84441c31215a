"""Scores of rankings: what stands before the right documents; correlations of numbers."""

from collections.abc import Sequence

import numpy as np

from ringbase.errors import InputError

BEST = 10  # of the ranks that count for MRR and NDCG
RECALLS = (1, 10, 100)


def correlation(kind: str, one: np.ndarray, other: np.ndarray) -> float:
    """Pearson's ("pearsonr") or Spearman's ("spearmanr"); 0 where all values are the same."""
    from scipy import stats  # a second to import

    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    found = getattr(stats, kind)(one.astype(float), other.astype(float))
    return float(found.statistic)


def search_scores(ranks: Sequence[np.ndarray]) -> dict[str, float]:
    """MRR@10, NDCG@10 with equal gains, and recall@k of the ranks of relevant documents."""
    reciprocal = [1 / (1 + each.min()) if each.min() < BEST else 0.0 for each in ranks]
    gains = 1 / np.log2(np.arange(BEST) + 2)
    ndcg = [gains[each[each < BEST]].sum() / gains[: len(each)].sum() for each in ranks]
    values = {f"mrr@{BEST}": np.mean(reciprocal), f"ndcg@{BEST}": np.mean(ndcg)}
    for most in RECALLS:
        values[f"recall@{most}"] = np.mean([(each < most).mean() for each in ranks])
    return {name: float(value) for name, value in values.items()}


def ranks_in_groups(
    groups: Sequence[str], true: np.ndarray, predicted: np.ndarray
) -> list[np.ndarray]:
    """The ranks of the relevant rows, whose truth is above 0, among the rows of their group by what
    is predicted; of groups with a relevant row. Of equal predictions the worst rank counts."""
    rows_of = dict[str, list[int]]()
    for row, group in enumerate(groups):
        rows_of.setdefault(group, []).append(row)
    ranks = []
    for rows in rows_of.values():
        values, relevant = predicted[rows], true[rows] > 0
        if relevant.any():
            ranks.append(np.sort((values >= values[relevant][:, None]).sum(1) - 1))
    if not ranks:
        raise InputError("there is nothing to rank: the number of no document is above 0")
    return ranks
