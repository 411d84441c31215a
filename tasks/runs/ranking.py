"""Scores of rankings: what stands before the right documents; correlations of numbers."""

from collections.abc import Sequence

import numpy as np

BEST = 10  # of the ranks that count for MRR and NDCG
RECALLS = (1, 10, 100)


def correlation(kind: str, one: np.ndarray, other: np.ndarray) -> float:
    """Pearson's ("pearsonr") or Spearman's ("spearmanr"); 0 where all values are the same."""
    from scipy import stats  # a second to import

    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    test = getattr(stats, kind)(one.astype(float), other.astype(float))
    return float(test.statistic)


def search_scores(ranks: Sequence[np.ndarray]) -> dict[str, float]:
    """MRR@10, NDCG@10 with equal gains, and recall@k of the ranks of relevant documents, those of
    each query from 0."""
    gains = 1 / np.log2(np.arange(BEST) + 2)
    reciprocals = []
    ndcgs = []
    for ranks_of_query in ranks:
        best = ranks_of_query[ranks_of_query < BEST]
        reciprocals.append(1 / (1 + best.min()) if len(best) else 0.0)
        ideal_gain = gains[: len(ranks_of_query)].sum()
        ndcgs.append(gains[best].sum() / ideal_gain)
    scores = {f"mrr@{BEST}": float(np.mean(reciprocals)), f"ndcg@{BEST}": float(np.mean(ndcgs))}
    for most in RECALLS:
        recalls = [(ranks_of_query < most).mean() for ranks_of_query in ranks]
        scores[f"recall@{most}"] = float(np.mean(recalls))
    return scores


def ranks_of(values: np.ndarray, relevant: np.ndarray) -> np.ndarray:
    """The ranks, from 0, of the relevant documents (their places) by values, the largest first,
    int64 [relevant].

    Of equal values the irrelevant ones come first, so that nobody gains by giving all documents
    the same. NaN comes last.
    """
    values = np.where(np.isnan(values), -np.inf, values)
    is_relevant = np.zeros(len(values), bool)
    is_relevant[relevant] = True
    of_relevant = values[relevant]
    irrelevant_before = (values[~is_relevant] >= of_relevant[:, None]).sum(1)
    order = np.argsort(-of_relevant, kind="stable")
    relevant_before = np.empty(len(relevant), np.int64)
    relevant_before[order] = np.arange(len(relevant))
    return irrelevant_before + relevant_before


def ranks_in_groups(
    groups: Sequence[str], true: np.ndarray, predicted: np.ndarray
) -> list[np.ndarray]:
    """The ranks of the relevant rows, whose truth is above 0, among the rows of their group by what
    is predicted, as `ranks_of`; of groups with a relevant row, perhaps none."""
    rows_of = dict[str, list[int]]()
    for row, group in enumerate(groups):
        rows_of.setdefault(group, []).append(row)
    ranks = []
    for rows in rows_of.values():
        relevant = np.flatnonzero(true[rows] > 0)
        if len(relevant):
            ranks.append(np.sort(ranks_of(predicted[rows], relevant)))
    return ranks
