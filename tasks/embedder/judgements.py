"""Which documents are right for which queries of a search."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from distributed.joint import ANCHOR, POSITIVE
from tasks.embedder.beir import Judged
from tasks.embedder.texts import Texts


class Judgements(NamedTuple):
    """The queries and documents of a search, by the places of their texts; of each query the
    numbers of its right documents with their gains, and the number of the document that it may not
    find, unless it is right, or -1."""

    queries: Sequence[int]
    documents: Sequence[int]
    relevant: Sequence[np.ndarray]
    gains: Sequence[np.ndarray]
    own: Sequence[int]


def of_pairs(known: Texts) -> Judgements:
    """Of anchors and their positives: documents are all texts that are not anchors only. An anchor
    does not find its own text."""
    documents = np.concatenate([*(row[POSITIVE:] for row in known.rows), known.corpus])
    places = [*dict.fromkeys(documents.tolist())]
    number_of = {place: number for number, place in enumerate(places)}
    number_of_text = {known.texts[place]: number for number, place in enumerate(places)}
    positives_of: dict[int, set[int]] = {}
    for row in known.rows:
        positives_of.setdefault(int(row[ANCHOR]), set()).add(int(row[POSITIVE]))
    relevant = []
    for positives in positives_of.values():
        relevant.append(np.array([number_of[place] for place in sorted(positives)]))
    return Judgements(
        queries=[*positives_of],
        documents=places,
        relevant=relevant,
        gains=[np.ones(len(numbers)) for numbers in relevant],
        own=[number_of_text.get(known.texts[query], -1) for query in positives_of],
    )


def as_judged(judged: Judged, known: Texts) -> Judgements:
    """Each query and each document counts, also one with the text of another."""
    number = len(judged.own)
    queries = [-1] * number
    relevant: list[list[int]] = [[] for _ in range(number)]
    gains: list[list[float]] = [[] for _ in range(number)]
    columns = judged.queries, judged.documents, judged.gains, known.rows
    for query, document, gain, row in zip(*columns, strict=True):
        queries[query] = int(row[ANCHOR])
        relevant[query].append(document)
        gains[query].append(gain)
    return Judgements(
        queries=queries,
        documents=known.corpus.tolist(),
        relevant=[*map(np.array, relevant)],
        gains=[*map(np.array, gains)],
        own=judged.own,
    )
