"""The order of rows: each once per epoch, a function of (seed, position); blocks of any corpus in
O(1) memory."""

import tracemalloc

import numpy as np
import pytest

from distributed.order import BlockOrder, Order

BOTH = pytest.mark.parametrize("kind", [Order, BlockOrder])
# all lengths of a short last block, and shapes of the bijection
SIZES = [*range(1, 70), 1000, 12_345]


@pytest.mark.parametrize(
    "make", [Order, *(lambda n, seed, b=b: BlockOrder(n, seed, b) for b in (1, 2, 3, 16))]
)
def test_each_epoch_holds_each_row_once(make):
    for num_rows in SIZES:
        rows = make(num_rows, num_rows + 3).rows_at(0, 3 * num_rows)
        epochs = np.sort(rows.reshape(3, num_rows), axis=1)
        np.testing.assert_array_equal(epochs, np.tile(np.arange(num_rows), (3, 1)))


@BOTH
def test_epochs_and_seeds_differ(kind):
    first, second = kind(12_345, 3).rows_at(0, 2 * 12_345).reshape(2, 12_345)
    others = [kind(12_345, seed).rows_at(0, 12_345) for seed in (4, 3 + 2**32)]
    # Independent orders agree in 1 row on average, or in a whole block of 16 at once: 200 has odds
    # below 10^-6.
    for other in [second, *others, np.arange(12_345)]:
        assert np.sum(first == other) < 200


@BOTH
def test_a_position_holds_the_same_row_however_it_is_reached(kind):
    num_rows = 333  # 21 blocks, the last of 13 rows
    whole = kind(num_rows, seed=9).rows_at(0, 10 * num_rows)
    order, chance = kind(num_rows, seed=9), np.random.default_rng(0)
    for _ in range(100):
        start, stop = np.sort(chance.integers(0, 2700, 2))
        np.testing.assert_array_equal(order.rows_at(start, stop), whole[start:stop])


def test_the_order_is_the_same_on_every_machine():
    """Else a run that is resumed under another NumPy would lose rows."""
    rows = "2 4 5 0 9 8 1 7 3 6 7 1 4 9 8 3 5 0 2 6"
    blocks = "10 9 3 5 4 6 7 8 1 0 2 2 0 1 9 10 4 5 3 8 7 6"
    for order, expected in (Order(10, 42), rows), (BlockOrder(11, 42, 3), blocks):
        numbers = expected.split()
        assert [*map(str, order.rows_at(0, len(numbers)))] == numbers


def test_a_billion_rows_take_no_memory():
    tracemalloc.start()
    order = BlockOrder(10**9 + 7, seed=2)
    batches = [order.rows_at(start, start + 256) for start in (0, 5 * 10**8, 7 * 10**9 + 3)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20, "a bitmap of the rows alone would be 125 MB"
    for rows in batches:
        assert len(np.unique(rows)) == 256
        assert 0 <= rows.min() <= rows.max() < 10**9 + 7
    assert len(np.unique(batches[0] // 10**8)) >= 5, "drawn from all over the corpus"
