"""What vectors are worth: cosines, their correlation with scores, and the search for positives."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from distributed.joint import ANCHOR, POSITIVE
from tasks.embedder.reading import Pairs
from tasks.embedder.texts import Texts
from tasks.runs.details import Record, Section, table
from tasks.runs.ranking import correlation, ranks_of, search_scores
from tasks.runs.task import Scores

QUERIES_AT_ONCE = 1024
SHARES = (5, 25, 50, 75, 95)  # percentiles
MAIN_SCORES = "mrr@10", "ndcg@10", "spearman"


class Search:
    """Pairs and the unit vectors of their texts. An anchor, or a query, searches its positives
    among the documents: all texts that are not anchors only."""

    def __init__(self, pairs: Pairs, known: Texts, vectors: np.ndarray):
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        self._pairs = pairs
        self._texts = known.texts
        self._units = vectors / np.maximum(lengths, 1e-12)
        anchors = np.array([row[ANCHOR] for row in known.rows])
        self._positives = np.array([row[POSITIVE] for row in known.rows])
        self._anchors = self._units[anchors]
        self._cosines = (self._anchors * self._units[self._positives]).sum(1)
        documents = np.concatenate([*(row[POSITIVE:] for row in known.rows), known.corpus])
        self._documents = [*dict.fromkeys(documents.tolist())]
        self._queries: dict[int, set[int]] = {}
        for anchor, positive in zip(anchors.tolist(), self._positives.tolist(), strict=True):
            self._queries.setdefault(anchor, set()).add(positive)

    @cached_property
    def query_texts(self) -> list[str]:
        return [self._texts[place] for place in self._queries]

    @cached_property
    def query_units(self) -> np.ndarray:
        return self._units[[*self._queries]]

    @cached_property
    def document_texts(self) -> list[str]:
        return [self._texts[place] for place in self._documents]

    @cached_property
    def document_units(self) -> np.ndarray:
        return self._units[self._documents]

    @cached_property
    def own_of_queries(self) -> list[int]:
        """Of each query the number of the document with its text; -1 if there is none."""
        number_of = {self._texts[place]: number for number, place in enumerate(self._documents)}
        return [number_of.get(self._texts[query], -1) for query in self._queries]

    @cached_property
    def positives_of_queries(self) -> list[np.ndarray]:
        """Of each query the numbers of its positives among the documents, in the order of their
        places."""
        number_of = {place: number for number, place in enumerate(self._documents)}
        relevant = []
        for positives in self._queries.values():
            numbers = [number_of[place] for place in sorted(positives)]
            relevant.append(np.array(numbers))
        return relevant

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
            return search_scores(self._ranks)
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
        documents = np.array(self._documents)
        units = self._units[documents]
        queries = zip(self._queries.items(), self._ranks, self.own_of_queries, strict=True)
        for (query, positives), ranks, own in queries:
            products = units @ self._units[query]
            if own >= 0 and self._documents[own] not in positives:
                products[own] = -np.inf
            nearest = int(products.argmax())
            nearest_cosine = float(products[nearest])
            positive = sorted(positives)[ranks.argmin()]
            cosine = float(self._units[positive] @ self._units[query])
            rank = int(ranks.min())
            fields = {
                "anchor": self._texts[query],
                "positive": self._texts[positive],
                "rank": rank + 1,
                "cosine": cosine,
                "nearest": self._texts[documents[nearest]],
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
