"""The exact search of vectors for the nearest of others, in blocks that the ranks share.

Every rank has all queries of a block, and some of the blocks of documents; rank 0 merges what they
find. Blocks have the same bounds for any number of ranks, so the products have the same bits.

Shapes, as suffixes: Q queries, K the nearest of each.
"""

from collections.abc import Sequence

import numpy as np
from numpy import ndarray

from distributed.world import World

QUERIES_AT_ONCE = 1024
DOCUMENTS_AT_ONCE = 16384  # a block of products takes 64 MiB


def nearest(
    world: World, queries: ndarray | None, documents: ndarray | None, most: int
) -> tuple[ndarray, ndarray] | None:
    """For each query the places of the `most` documents with the largest products, or of all if
    there are fewer, the largest first and of equal ones the first document, int64 [Q, K]; and the
    products, float32 [Q, K].

    Rank 0 has the vectors, float32 [queries, W] and [documents, W], and gets the result; other
    ranks give and get None. All ranks call it together.
    """
    sizes = None
    if world.rank == 0:
        assert queries is not None
        assert documents is not None
        sizes = len(queries), len(documents)
    num_queries, num_documents = world.broadcast(sizes) or (0, 0)
    own = []  # the first place of each own block, and its vectors
    for number, start in enumerate(range(0, num_documents, DOCUMENTS_AT_ONCE)):
        block = None if documents is None else documents[start : start + DOCUMENTS_AT_ONCE]
        block = world.broadcast(block)
        if number % world.size == world.rank and block is not None:
            own.append((start, block))
    places, products = [], []
    for start in range(0, num_queries, QUERIES_AT_ONCE):
        part = None if queries is None else queries[start : start + QUERIES_AT_ONCE]
        part = world.broadcast(part)
        assert part is not None
        with world.watchdog.working():
            best = merged([], len(part), most)
            for first, vectors in own:
                found = _in_block(part, first, vectors, most)
                best = merged([best, found], len(part), most)
        gathered = world.gather(best)
        if gathered is not None:
            places_QK, products_QK = merged(gathered, len(part), most)
            places.append(places_QK)
            products.append(products_QK)
    if world.rank:
        return None
    width = min(most, num_documents)
    no_places, no_products = np.zeros((0, width), np.int64), np.zeros((0, width), np.float32)
    return np.concatenate([no_places, *places]), np.concatenate([no_products, *products])


def _in_block(queries: ndarray, first: int, documents: ndarray, most: int):
    """The same for documents whose first one has the place `first`, in any order."""
    products = queries @ documents.T
    if most >= len(documents):
        places = np.broadcast_to(np.arange(len(documents)), products.shape)
    else:
        places = np.argpartition(-products, most - 1, axis=1)[:, :most]
        products = np.take_along_axis(products, places, axis=1)
    return places + first, products


def merged(
    found: Sequence[tuple[ndarray, ndarray]], num_queries: int, most: int
) -> tuple[ndarray, ndarray]:
    """The best of what was found among different documents."""
    places = np.concatenate([np.zeros((num_queries, 0), np.int64), *(each[0] for each in found)], 1)
    products = np.concatenate(
        [np.zeros((num_queries, 0), np.float32), *(each[1] for each in found)], 1
    )
    order = np.lexsort((places, -products), axis=1)[:, :most]
    return np.take_along_axis(places, order, axis=1), np.take_along_axis(products, order, axis=1)
