"""The search that ranks share, against sorted products."""

import numpy as np
import pytest

from distributed import nearest as search

NUM_DOCUMENTS = 2 * search.DOCUMENTS_AT_ONCE + 37


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("most", [1, 7])
def test_the_nearest_of_all_blocks_are_those_of_sorted_products(most, world):
    """More queries and documents than a block has; some documents are equal."""
    chance = np.random.default_rng(2)
    documents = chance.integers(-3, 4, size=(NUM_DOCUMENTS, 5)).astype(np.float32)
    documents += chance.normal(size=documents.shape).astype(np.float32)
    documents[-1] = documents[3]
    queries = chance.normal(size=(search.QUERIES_AT_ONCE + 2, 5)).astype(np.float32)
    queries[-1] = documents[3] * 9
    given = (queries, documents) if world.rank == 0 else (None, None)
    found = search.nearest(world, *given, most)
    assert (found is None) == (world.rank > 0)
    if found is None:
        return
    places, products = found
    for number in (0, 500, search.QUERIES_AT_ONCE, len(queries) - 1):
        right = queries[number].astype(np.float64) @ documents.T.astype(np.float64)
        order = np.argsort(-right, kind="stable")[:most]
        np.testing.assert_allclose(products[number], right[order], rtol=1e-5)
        np.testing.assert_array_equal(places[number], order)


@pytest.mark.ranks(2)
def test_few_documents_are_all_found_and_none_are_no_error(world):
    documents = np.eye(3, dtype=np.float32)
    queries = np.array([[1, 2, 3]], np.float32)
    for each, expected in ((documents, [[2, 1, 0]]), (documents[:0], [[]])):
        given = (queries, each) if world.rank == 0 else (None, None)
        found = search.nearest(world, *given, 5)
        if found is not None:
            np.testing.assert_array_equal(found[0], expected)
