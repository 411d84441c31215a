"""Rows of a table in a file, the batches that ranks make of them, and batches made ahead in a
thread."""

import threading
import time

import numpy as np
import pyarrow as pa
import pytest

from distributed.order import BlockOrder, Order
from distributed.plan import PlanSettings, make_plan
from distributed.rows import Feed, Rows, prefetched, ragged, write_rows


def table_of(num_rows, seed=0):
    chance = np.random.default_rng(seed)
    lists = [
        chance.integers(0, 99, size).astype(np.int32) for size in chance.integers(0, 6, num_rows)
    ]
    columns = {
        "ids": ragged(lists, pa.int32()),
        "small": ragged([values.astype(np.uint8) for values in lists], pa.uint8()),
        "label": pa.array(chance.integers(-9, 9, num_rows), pa.int8()),
        "score": chance.random(num_rows, np.float32),
    }
    return pa.table(columns)


@pytest.mark.parametrize("in_file", [False, True])
def test_rows_are_those_that_pyarrow_takes_in_their_stored_types(in_file, tmp_path):
    chance = np.random.default_rng(1)
    lengths = [*np.random.default_rng(0).integers(0, 40, 200), 0, 1, 500]
    if in_file:
        write_rows(tmp_path / "rows.arrow", table_of(20_000))
        rows = Rows.open(tmp_path / "rows.arrow")
    else:  # with empty chunks among them
        rows = Rows(
            pa.concat_tables([table_of(length, seed) for seed, length in enumerate(lengths)])
        )
    n, one = len(rows), rows.table.combine_chunks()
    assert rows.table.column("ids").num_chunks > 1, "the case is about chunk boundaries"
    wanted = [[], [3], [n - 1, 0, 0, n - 1], np.arange(n)[::-1], chance.integers(0, n, 3000)]
    wanted += [BlockOrder(n, seed=0).rows_at(start, start + 32) for start in range(0, n, n // 9)]
    for indices in wanted:
        indices = np.array(indices, np.int64)
        fields, expected = rows.take(indices), one.take(pa.array(indices))
        for name, dtype in {"label": np.int8, "score": np.float32}.items():
            assert fields[name].dtype == dtype
            np.testing.assert_array_equal(fields[name], expected[name].to_numpy())
        for name, dtype in {"ids": np.int32, "small": np.uint8}.items():
            (values, offsets), lists = fields[name], expected[name].to_pylist()
            assert (values.dtype, offsets.dtype) == (dtype, np.int64)
            assert values.tolist() == [value for values in lists for value in values]
            assert offsets.tolist() == np.cumsum([0, *map(len, lists)]).tolist()
        lengths_of_ids = [len(ids) for ids in expected["ids"].to_pylist()]
        assert rows.lengths_at("ids", indices).tolist() == lengths_of_ids
    np.testing.assert_array_equal(rows.column("label"), one["label"].to_numpy())
    assert np.diff(rows.column("ids")[1]).tolist() == [len(ids) for ids in one["ids"].to_pylist()]
    for outside in (-1, n):
        with pytest.raises(IndexError):
            rows.take(np.array([3, outside]))


@pytest.mark.parametrize("has_lengths", [False, True])
@pytest.mark.parametrize(("size", "accumulation"), [(1, 1), (3, 2), (4, 3)])
def test_ranks_and_micro_batches_share_a_step_out(has_lengths, size, accumulation):
    """Each row of the step once, with the epoch of its position, and in equal parts of like
    work."""
    lengths = np.random.default_rng(1).integers(1, 30, 50)
    lists, order = [np.ones(length, np.int32) for length in lengths], Order(50, 3)
    rows = Rows(pa.table({"input_ids": ragged(lists, pa.int32())}))
    more = {"lengths": lengths.__getitem__} if has_lengths else {}
    feed = Feed(rows=rows, order=order, collate=dict, **more)
    flags = {"global_batch_size": 14, "num_train_steps": 9}
    settings = PlanSettings(**flags, gradient_accumulation_steps=accumulation)
    plan = make_plan(settings, 50, size)
    # position 42 begins the step with the end of the first epoch
    for position in range(0, 9 * 14, 14):
        ranks = [feed.micro_batches(plan, rank, position) for rank in range(size)]
        assert [len(batches) for batches in ranks] == [accumulation] * size
        batches = [batch for of_rank in ranks for batch in of_rank]
        found = [
            pair for batch in batches for pair in zip(batch["row"], batch["epoch"], strict=True)
        ]
        epochs = np.arange(position, position + 14) // 50
        expected = zip(order.rows_at(position, position + 14), epochs, strict=True)
        assert sorted(found) == sorted(expected)
        for batch in batches:
            assert np.diff(batch["input_ids"][1]).tolist() == lengths[batch["row"]].tolist()
        assert np.ptp([sum(len(batch["row"]) for batch in of_rank) for of_rank in ranks]) <= 1
        tokens = [sum(lengths[batch["row"]].sum() for batch in of_rank) for of_rank in ranks]
        assert not has_lengths or np.ptp(tokens) <= lengths.max()


def test_prefetched_keeps_order_and_works_ahead_but_not_further():
    made, before = [], set(threading.enumerate())
    numbers = prefetched(
        lambda item: made.append(item) or (None if item == 2 else item), range(100), ahead=2
    )
    assert [next(numbers) for _ in range(4)] == [0, 1, None, 3]
    while len(made) < 6:  # the four taken, and two ahead
        time.sleep(0.01)
    time.sleep(0.1)
    assert made == list(range(6))
    numbers.close()
    while set(threading.enumerate()) != before:
        time.sleep(0.01)
