"""What vectors are worth: cosines, their correlation with scores, and the search for positives."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from distributed.joint import ANCHOR, POSITIVE
from tasks.embedder.judgements import judgements_of
from tasks.embedder.reading import Pairs
from tasks.embedder.texts import Texts
from tasks.runs.details import Record, Section, table
from tasks.runs.ranking import correlation, ranks_of, search_scores
from tasks.runs.task import Scores

QUERIES_AT_ONCE = 1024
SHARES = (5, 25, 50, 75, 95)  # percentiles
MAIN_SCORES = "ndcg@10", "mrr@10", "spearman"


class Search:
    """Pairs and the unit vectors of their texts. An anchor, or a query, searches the documents that
    are right for it among all."""

    def __init__(self, pairs: Pairs, known: Texts, vectors: np.ndarray):
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        self._pairs = pairs
        self._texts = known.texts
        self._units = vectors / np.maximum(lengths, 1e-12)
        anchors = np.array([row[ANCHOR] for row in known.rows])
        self._positives = np.array([row[POSITIVE] for row in known.rows])
        self._anchors = self._units[anchors]
        self._cosines = (self._anchors * self._units[self._positives]).sum(1)
        self._judgements = judgements_of(pairs, known)

    @cached_property
    def query_texts(self) -> list[str]:
        return [self._texts[place] for place in self._judgements.queries]

    @cached_property
    def query_units(self) -> np.ndarray:
        return self._units[np.asarray(self._judgements.queries)]

    @cached_property
    def document_texts(self) -> list[str]:
        return [self._texts[place] for place in self._judgements.documents]

    @cached_property
    def document_units(self) -> np.ndarray:
        return self._units[np.asarray(self._judgements.documents)]

    @property
    def own_of_queries(self) -> Sequence[int]:
        """Of each query the number of the document that it may not find; -1 if there is none."""
        return self._judgements.own

    @property
    def positives_of_queries(self) -> Sequence[np.ndarray]:
        """Of each query the numbers of its positives among the documents."""
        return self._judgements.relevant

    def cosines_of_positives(self, query: int) -> np.ndarray:
        """Of the query with this number."""
        positives = self.document_units[self.positives_of_queries[query]]
        return positives @ self.query_units[query]

    @cached_property
    def _ranks(self) -> list[np.ndarray]:
        """Of each query's positives among all documents."""
        relevant, own = self.positives_of_queries, self.own_of_queries
        return ranks_of_relevant(self.query_units, self.document_units, relevant, own)

    def scores(self) -> Scores:
        if not self._pairs.scores:
            return search_scores(self._ranks, self._judgements.gains)
        true = np.asarray(self._pairs.scores)
        kinds = {"spearman": "spearmanr", "pearson": "pearsonr"}
        return {name: correlation(kind, self._cosines, true) for name, kind in kinds.items()}

    def records(self) -> Iterator[Record]:
        """Of each pair with a score, else of each query."""
        scores = self._pairs.scores
        if scores:
            cosines = self._cosines.tolist()
            for row, score, cosine in zip(self._pairs.rows, scores, cosines, strict=True):
                fields: dict = {"anchor": row[ANCHOR], "positive": row[POSITIVE]}
                fields |= {"score": score, "cosine": cosine}
                yield Record(fields, abs(cosine - score))
            return
        of_queries = self.positives_of_queries, self._ranks, self.own_of_queries
        for number, (relevant, ranks, own) in enumerate(zip(*of_queries, strict=True)):
            products = self.document_units @ self.query_units[number]
            cosine = float(products[relevant[ranks.argmin()]])
            if own >= 0 and own not in relevant:
                products[own] = -np.inf
            nearest = int(products.argmax())
            nearest_cosine = float(products[nearest])
            rank = int(ranks.min())
            fields = {
                "anchor": self.query_texts[number],
                "positive": self.document_texts[relevant[ranks.argmin()]],
                "rank": rank + 1,
                "cosine": cosine,
                "nearest": self.document_texts[nearest],
                "nearest_cosine": nearest_cosine,
            }
            yield Record(fields, nearest_cosine - cosine if rank else None)

    def distribution(self) -> Section:
        """The cosines of pairs and of other texts."""
        # the positive of a row far away, if that is another
        far = np.roll(self._positives, max(1, len(self._positives) // 2))
        cosines_of_far = (self._anchors * self._units[far]).sum(1)
        others = cosines_of_far[far != self._positives]
        rows = []
        for name, cosines in (
            ("pairs", self._cosines),
            ("an anchor and another row's positive", others),
        ):
            if len(cosines):
                figures = [np.mean(cosines), *np.percentile(cosines, SHARES)]
                rows.append([name, *(f"{figure:.3f}" for figure in figures)])
        columns = ["cosine of", "mean", *(f"{share} % below" for share in SHARES)]
        return table("Cosines", "", columns, rows)


def ranks_of_relevant(
    queries: np.ndarray, documents: np.ndarray, relevant: Sequence[np.ndarray], own: Sequence[int]
) -> list[np.ndarray]:
    """For each query the ranks, from 0, of its relevant documents (their places) among all by the
    product of vectors, as `ranks_of`; the query's own text (its place, or -1) is left out, unless
    it is relevant."""
    ranks = []
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        products = queries[start : start + QUERIES_AT_ONCE] @ documents.T
        for number, row in enumerate(products, start):
            places = relevant[number]
            left_out = own[number]
            if left_out >= 0 and left_out not in places:
                row = np.delete(row, left_out)
                places = places - (places > left_out)
            ranks.append(ranks_of(row, places))
    return ranks
