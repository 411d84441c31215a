"""Scores of vectors: correlations of cosines with scores, and the search for positives."""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

BEST = 10  # of the ranks that count for MRR and NDCG
RECALLS = (1, 10, 100)
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


def search_scores(ranks: Sequence[np.ndarray]) -> dict[str, float]:
    """MRR@10, NDCG@10 with equal gains, and recall@k of the ranks of relevant documents."""
    reciprocal = [1 / (1 + each.min()) if each.min() < BEST else 0.0 for each in ranks]
    gains = 1 / np.log2(np.arange(BEST) + 2)
    ndcg = [gains[each[each < BEST]].sum() / gains[: len(each)].sum() for each in ranks]
    values = {f"mrr@{BEST}": np.mean(reciprocal), f"ndcg@{BEST}": np.mean(ndcg)}
    for most in RECALLS:
        values[f"recall@{most}"] = np.mean([(each < most).mean() for each in ranks])
    return {name: float(value) for name, value in values.items()}


def relevant_of(anchors: np.ndarray, positives: np.ndarray) -> Mapping[int, np.ndarray]:
    """The places of the positives of each anchor's place."""
    found = dict[int, set[int]]()
    for anchor, positive in zip(anchors.tolist(), positives.tolist(), strict=True):
        found.setdefault(anchor, set()).add(positive)
    return {anchor: np.array(sorted(places)) for anchor, places in found.items()}
