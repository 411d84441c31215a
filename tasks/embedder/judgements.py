"""Which documents are right for which queries of a search."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from distributed.joint import ANCHOR, POSITIVE
from tasks.embedder.beir import Judged
from tasks.embedder.reading import Pairs
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


def judgements_of(pairs: Pairs, known: Texts) -> Judgements:
    """Those of a search in the form of BEIR, of classes, or of pairs."""
    if pairs.judged:
        return as_judged(pairs.judged, known)
    if pairs.labels:
        return of_classes(pairs.labels, known)
    return of_pairs(known)


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


def of_classes(labels: Sequence[str | None], known: Texts) -> Judgements:
    """Each text is a query and a document, for which all others of its class are right."""
    positives = [int(row[POSITIVE]) for row in known.rows]
    documents = [*dict.fromkeys([*positives, *known.corpus.tolist()])]
    number_of = {place: number for number, place in enumerate(documents)}
    number_of_text = {known.texts[place]: number for number, place in enumerate(documents)}
    members: dict[str | None, set[int]] = {}
    for label, positive in zip(labels, positives, strict=True):
        members.setdefault(label, set()).add(number_of[positive])
    queries = [int(row[ANCHOR]) for row in known.rows]
    own = [number_of_text[known.texts[query]] for query in queries]
    relevant = []
    for label, number in zip(labels, own, strict=True):
        relevant.append(np.array(sorted(members[label] - {number})))
    gains = [np.ones(len(numbers)) for numbers in relevant]
    return Judgements(queries, documents, relevant, gains, own)


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
