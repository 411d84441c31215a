"""Scores of vectors: correlations of cosines with scores, and the search for positives."""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

QUERIES_AT_ONCE = 1024


def correlations(cosines: np.ndarray, scores: Sequence[float]) -> dict[str, float]:
    """Spearman's and Pearson's, 0 where all values are the same."""
    true = np.asarray(scores, np.float64)
    if np.ptp(true) == 0 or np.ptp(cosines) == 0:
        return {"spearman": 0.0, "pearson": 0.0}
    return {
        "spearman": float(stats.spearmanr(cosines, true).statistic),
        "pearson": float(stats.pearsonr(cosines.astype(np.float64), true).statistic),
    }


def ranks_of_relevant(
    queries: np.ndarray, documents: np.ndarray, relevant: Sequence[np.ndarray], own: Sequence[int]
) -> list[np.ndarray]:
    """For each query the ranks, from 0, of its relevant documents (their places) among all by the
    product of vectors; the query's own text (its place, or -1) is left out. Of equal products the
    worst rank counts."""
    ranks = list[np.ndarray]()
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        products = queries[start : start + QUERIES_AT_ONCE] @ documents.T
        for number, row in enumerate(products, start):
            if own[number] >= 0:
                row[own[number]] = -np.inf
            found = row[relevant[number]]
            ranks.append((row[None, :] >= found[:, None]).sum(1) - 1)
    return ranks


def relevant_of(anchors: np.ndarray, positives: np.ndarray) -> Mapping[int, np.ndarray]:
    """The places of the positives of each anchor's place."""
    found = dict[int, set[int]]()
    for anchor, positive in zip(anchors.tolist(), positives.tolist(), strict=True):
        found.setdefault(anchor, set()).add(positive)
    return {anchor: np.array(sorted(places)) for anchor, places in found.items()}
