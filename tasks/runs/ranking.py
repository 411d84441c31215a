"""Scores of rankings: what stands before the right documents; correlations of numbers."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

BEST = 10  # of the ranks that count for MRR and NDCG
RECALLS = (1, 10, 100)
PRECISIONS = (1, 10)
MOST_PRECISE = 100  # of the ranks that count for MAP


def correlation(kind: str, one: np.ndarray, other: np.ndarray) -> float:
    """Pearson's ("pearsonr") or Spearman's ("spearmanr"); 0 where all values are the same."""
    from scipy import stats  # a second to import

    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    test = getattr(stats, kind)(one.astype(float), other.astype(float))
    return float(test.statistic)


def search_scores(
    ranks: Sequence[np.ndarray], gains: Sequence[np.ndarray] | None = None
) -> dict[str, float]:
    """Means over queries, of the ranks of each query's relevant documents, from 0, as trec_eval
    computes them: NDCG@10 with these gains, without them equal ones, MRR@10, recall@k, MAP@100 (the
    precision at each relevant document, 0 beyond rank 100) and precision@k. The first one chooses
    models."""
    if gains is None:
        gains = [np.ones(len(ranks_of_query)) for ranks_of_query in ranks]
    scores = dict[str, list[float]]()

    def add(name: str, score: float) -> None:
        scores.setdefault(name, []).append(score)

    for ranks_of_query, gains_of_query in zip(ranks, gains, strict=True):
        add(f"ndcg@{BEST}", _ndcg(ranks_of_query, gains_of_query))
        first = ranks_of_query.min()
        add(f"mrr@{BEST}", 1 / (1 + first) if first < BEST else 0.0)
        for most in RECALLS:
            add(f"recall@{most}", (ranks_of_query < most).mean())
        found = np.sort(ranks_of_query[ranks_of_query < MOST_PRECISE])
        precisions = np.arange(1, len(found) + 1) / (1 + found)
        add(f"map@{MOST_PRECISE}", precisions.sum() / len(ranks_of_query))
        for most in PRECISIONS:
            add(f"precision@{most}", (ranks_of_query < most).sum() / most)
    return {name: float(np.mean(values)) for name, values in scores.items()}


def _ndcg(ranks: np.ndarray, gains: np.ndarray) -> float:
    """The gains of the best ranks, each divided by log2(2 + rank), as a part of the most that they
    can be."""
    discounts = 1 / np.log2(np.arange(BEST) + 2)
    is_best = ranks < BEST
    gained = (gains[is_best] * discounts[ranks[is_best]]).sum()
    highest = np.sort(gains)[::-1][:BEST]
    return gained / (highest * discounts[: len(highest)]).sum()


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


class Ranked(NamedTuple):
    """A group of rows, of which some are relevant, int64: their numbers, the places of the relevant
    ones among these, and the ranks of the relevant ones."""

    rows: np.ndarray
    relevant: np.ndarray
    ranks: np.ndarray


def ranked_groups(groups: Sequence[str], true: np.ndarray, predicted: np.ndarray) -> list[Ranked]:
    """The relevant rows, whose truth is above 0, among the rows of their group by what is
    predicted, with ranks as `ranks_of`; of groups with a relevant row, perhaps none."""
    rows_of = dict[str, list[int]]()
    for row, group in enumerate(groups):
        rows_of.setdefault(group, []).append(row)
    ranked = []
    for numbers in rows_of.values():
        rows = np.array(numbers)
        relevant = np.flatnonzero(true[rows] > 0)
        if len(relevant):
            ranked.append(Ranked(rows, relevant, ranks_of(predicted[rows], relevant)))
    return ranked
