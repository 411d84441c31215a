"""The order of rows: a permutation, or for a corpus of any size blocks by a keyed bijection in O(1) memory."""

import itertools
import tracemalloc

import numpy as np
import pytest

from distributed.order import BlockOrder, Order, fixed_batches


@pytest.mark.parametrize("num_rows", [1, 2, 7, 1000])
def test_each_epoch_is_a_permutation(num_rows: int) -> None:
    order = Order(num_rows, seed=3)
    for epoch in range(4):
        rows = order.rows_at(epoch * num_rows, (epoch + 1) * num_rows)
        assert rows.dtype == np.int64
        assert sorted(rows) == list(range(num_rows))


def test_epochs_and_seeds_differ() -> None:
    first, second = Order(1000, 3).rows_at(0, 2000).reshape(2, 1000)
    other_seed = Order(1000, 4).rows_at(0, 1000)
    # Two independent permutations of any length agree at 1 place on average; at 10 with odds below 1 in a million.
    assert np.sum(first == second) < 10
    assert np.sum(first == other_seed) < 10
    assert np.sum(first == np.arange(1000)) < 10


def test_a_position_holds_the_same_row_however_it_is_reached() -> None:
    whole = Order(50, seed=9).rows_at(0, 500)
    in_steps = Order(50, seed=9)
    steps = [in_steps.rows_at(start, start + 7) for start in range(0, 497, 7)]
    np.testing.assert_array_equal(np.concatenate(steps), whole[:497])
    at_random, chance = Order(50, seed=9), np.random.default_rng(0)
    for start in chance.integers(0, 380, 50):  # forwards and backwards, across up to three epochs
        np.testing.assert_array_equal(at_random.rows_at(start, start + 120), whole[start : start + 120])


def test_the_order_is_the_same_on_every_machine() -> None:
    # numpy may change how it permutes between versions: a run resumed under another numpy would lose rows.
    expected = [2, 4, 5, 0, 9, 8, 1, 7, 3, 6, 7, 1, 4, 9, 8, 3, 5, 0, 2, 6]
    assert Order(10, seed=42).rows_at(0, 20).tolist() == expected


@pytest.mark.parametrize("most_tokens", [1, 49, 200, 5000])
def test_fixed_batches_hold_every_row_once_beside_rows_of_like_length(most_tokens: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 50, 30)
    batches = fixed_batches(lengths, most_tokens)
    assert sorted(np.concatenate(batches)) == list(range(30))
    for batch, after in itertools.pairwise([*batches, []]):
        longest = lengths[batch[0]]
        assert len(batch) == 1 or len(batch) * longest <= most_tokens
        assert not len(after) or (len(batch) + 1) * longest > most_tokens  # not one row more would fit
    in_order = lengths[np.concatenate(batches)]
    assert np.all(np.diff(in_order) <= 0)


# -- blocks -------------------------------------------------------------------------------------------------------

SIZES = [1, 15, 16, 17, 31, 32, 33, 1000, 12_345]


@pytest.mark.parametrize("num_rows", SIZES)
@pytest.mark.parametrize("block", [16, 1, 5])
def test_each_epoch_holds_each_row_once(num_rows: int, block: int) -> None:
    order = BlockOrder(num_rows, seed=3, block=block)
    for epoch in range(5):
        rows = order.rows_at(epoch * num_rows, (epoch + 1) * num_rows)
        assert rows.dtype == np.int64
        np.testing.assert_array_equal(np.sort(rows), np.arange(num_rows))


def test_every_small_size_and_block() -> None:
    for num_rows in range(1, 70):  # every residue: all lengths of the short block, all shapes of the network
        for block in (1, 2, 3, 16):
            rows = BlockOrder(num_rows, seed=num_rows, block=block).rows_at(0, 3 * num_rows).reshape(3, num_rows)
            np.testing.assert_array_equal(np.sort(rows, axis=1), np.tile(np.arange(num_rows), (3, 1)))


def test_epochs_and_seeds_of_blocks_differ() -> None:
    first, second = BlockOrder(12_345, 3).rows_at(0, 2 * 12_345).reshape(2, 12_345)
    others = [BlockOrder(12_345, seed).rows_at(0, 12_345) for seed in (4, 3 + 2**32, -3)]
    # Independent orders agree in 1 row on average, with blocks of 16 in 16 or so at once when one block agrees:
    # 200 has odds below 1 in a million.
    for other in [second, *others, np.arange(12_345)]:
        assert np.sum(first == other) < 200
    blocks, counts = np.unique(np.stack([first, second])[:, ::16] // 16, return_counts=True)
    assert counts.max() < 10
    assert len(blocks) > 700


def test_a_position_in_blocks_holds_the_same_row_however_it_is_reached() -> None:
    num_rows = 333  # 21 blocks, the last of 13 rows
    whole = BlockOrder(num_rows, seed=9).rows_at(0, 10 * num_rows)
    steps = [BlockOrder(num_rows, seed=9).rows_at(start, start + 7) for start in range(0, 10 * num_rows - 7, 7)]
    steps = np.concatenate(steps)
    np.testing.assert_array_equal(steps, whole[: len(steps)])
    order, chance = BlockOrder(num_rows, seed=9), np.random.default_rng(0)
    for start in chance.integers(0, 2000, 100):  # forwards and backwards, across up to three epochs
        length = chance.integers(0, 700)
        rows = order.rows_at(start, start + length)
        np.testing.assert_array_equal(rows, whole[start : start + length])


def runs_of_blocks(rows: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """The block of each run of rows of one block, and the run's length."""
    starts = np.flatnonzero(np.diff(rows // block, prepend=-1))
    return rows[starts] // block, np.diff(starts, append=len(rows))


@pytest.mark.parametrize("num_rows", [1000, 12_345, 160])
def test_the_rows_of_a_block_stand_together_in_an_order_of_their_own(num_rows: int) -> None:
    order = BlockOrder(num_rows, seed=5)
    in_blocks = []
    for epoch in range(3):
        rows = order.rows_at(epoch * num_rows, (epoch + 1) * num_rows)
        blocks, lengths = runs_of_blocks(rows, 16)
        np.testing.assert_array_equal(np.sort(blocks), np.arange(-(-num_rows // 16)))
        expected = np.minimum(16, num_rows - 16 * blocks)
        np.testing.assert_array_equal(lengths, expected)
        place = np.flatnonzero(blocks == 3)[0]
        start = lengths[:place].sum()
        in_blocks.append(rows[start : start + 16].tolist())
    assert len({tuple(rows) for rows in [*in_blocks, sorted(in_blocks[0])]}) == 4, (
        "16! orders, and two are the same"
    )


def test_shares_at_multiples_of_the_block_read_whole_blocks() -> None:
    order = BlockOrder(16 * 10_000, seed=1)
    for start in range(0, 16 * 1000, 48):
        rows = order.rows_at(start, start + 48)
        np.testing.assert_array_equal(np.bincount(np.unique(rows // 16, return_inverse=True)[1]), [16, 16, 16])


@pytest.mark.slow
@pytest.mark.parametrize(("num_rows", "block"), [(160, 16), (100, 1), (37, 4)])
def test_every_row_is_as_often_at_each_place(num_rows: int, block: int) -> None:
    """χ² of the row at a position over many seeds and epochs.

    With n - 1 degrees of freedom χ² has mean n - 1 and variance 2(n - 1); 5 standard deviations are passed by
    chance once in 10⁵ (its tail is heavier than the normal one), and the seeds are fixed. A block is as often the
    first as any other, so the rows of a short one are more often the first row; after it, places are compared
    where all blocks are of one length.
    """
    seeds, epochs = 500, 8
    epochs_of_rows = np.stack(
        [
            BlockOrder(num_rows, seed, block).rows_at(0, epochs * num_rows).reshape(epochs, -1)
            for seed in range(seeds)
        ]
    ).reshape(-1, num_rows)
    starts = np.arange(num_rows) // block * block
    blocks = -(-num_rows // block)
    share = 1 / blocks / np.minimum(block, num_rows - starts)
    for place in (0, num_rows // 2, num_rows - 1) if num_rows % block == 0 else (0,):
        assert (
            chi_square(np.bincount(epochs_of_rows[:, place], minlength=num_rows), len(epochs_of_rows) * share) < 5
        ), place
    if num_rows % block == 0:  # the first block does not tell the second, nor one epoch the next
        steps = (epochs_of_rows[:, block] // block - epochs_of_rows[:, 0] // block) % blocks
        counts = np.bincount(steps, minlength=blocks)
        assert counts[0] == 0
        assert chi_square(counts[1:], np.full(blocks - 1, len(epochs_of_rows) / (blocks - 1))) < 5
        steps = (epochs_of_rows[1:, 0] - epochs_of_rows[:-1, 0]) % num_rows
        counts = np.bincount(steps, minlength=num_rows)
        assert chi_square(counts, np.full(num_rows, (len(epochs_of_rows) - 1) / num_rows)) < 5


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """χ² less its mean, in standard deviations."""
    degrees = len(counts) - 1
    return float((np.sum((counts - expected) ** 2 / expected) - degrees) / np.sqrt(2 * degrees))


def test_a_billion_rows_take_no_memory() -> None:
    tracemalloc.start()
    try:
        order = BlockOrder(10**9 + 7, seed=2)
        batches = [order.rows_at(start, start + 256) for start in (0, 5 * 10**8, 10**9 - 100, 7 * 10**9 + 3)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20, "a bitmap of the rows alone would be 125 MB"
    for rows in batches:
        assert len(np.unique(rows)) == 256 or rows is batches[2]  # the third crosses an epoch
        assert 0 <= rows.min() <= rows.max() < 10**9 + 7
        assert len(runs_of_blocks(rows, 16)[0]) <= 19  # 17 runs, one more at the short block and at an epoch's end
    assert len(np.unique(batches[0] // 10**8)) >= 5, "16 blocks drawn from all over the corpus"


def test_the_order_of_blocks_is_the_same_on_every_machine() -> None:
    # Else a run resumed under another numpy would lose rows.
    for num_rows, seed, block in [(11, 42, 3), (50, 7, 4)]:
        expected = [row for epoch in (0, 1) for row in by_hand(num_rows, seed, block, epoch)]
        assert BlockOrder(num_rows, seed, block).rows_at(0, 2 * num_rows).tolist() == expected
    assert BlockOrder(11, 42, 3).rows_at(0, 22).tolist() == [
        10,
        9,
        3,
        5,
        4,
        6,
        7,
        8,
        1,
        0,
        2,
        2,
        0,
        1,
        9,
        10,
        4,
        5,
        3,
        8,
        7,
        6,
    ]


def by_hand(num_rows: int, seed: int, block: int, epoch: int) -> list[int]:
    """One epoch by the formulas of BlockOrder, in Python's integers, one block after the other."""
    word, odd = 2**64, 0x9E3779B97F4A7C15

    def mixed(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % word
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % word
        return x ^ (x >> 31)

    keys = [mixed((mixed(seed) + epoch * odd + number) % word) for number in range(1, 10)]
    num_blocks = -(-num_rows // block)
    m = next(m for m in range(1, num_rows + 1) if m * m >= num_blocks)
    n = -(-num_blocks // m)
    rows: list[int] = []
    for slot in range(num_blocks):
        number = slot
        while True:
            low, high = number % m, number // m
            for turn in range(8):
                if turn % 2 == 0:
                    low = (low + mixed((high * odd + keys[turn]) % word)) % m
                else:
                    high = (high + mixed((low * odd + keys[turn]) % word)) % n
            number = low + high * m
            if number < num_blocks:
                break
        own = range(number * block, min((number + 1) * block, num_rows))
        rows += sorted(own, key=lambda row: mixed((row * odd + keys[8]) % word))
    return rows
