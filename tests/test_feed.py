"""A rank's batches of each step, and batches made ahead in a thread."""

import threading
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from distributed.feed import Feed, prefetched
from distributed.order import Order
from distributed.plan import PlanSettings, make_plan
from distributed.rows import Rows, ragged


@pytest.mark.parametrize(("has_lengths", "is_fixed"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(("size", "accumulation"), [(1, 1), (2, 1), (3, 2), (5, 4)])
def test_ranks_and_micro_batches_share_a_step_out(has_lengths, is_fixed, size, accumulation) -> None:
    """Each row of the step once, with the epoch of its position; 14 rows are fewer than 20 micro-batches."""
    lengths = np.random.default_rng(1).integers(1, 30, 50)
    rows = Rows(pa.table({"input_ids": ragged([np.ones(length, np.int32) for length in lengths], pa.int32())}))
    order = Order(50, 3)
    feed = Feed(
        rows=rows,
        order=order,
        collate=lambda fields: fields | {"fixed": False},
        weights=dict,
        lengths=lengths.__getitem__ if has_lengths else None,
        collate_fixed=lambda fields: fields | {"fixed": True},
    )
    settings = PlanSettings(global_batch_size=20, num_train_steps=9)
    plan = replace(make_plan(settings, 50, size), global_batch_size=14, accumulation=accumulation)
    for position in range(0, 9 * 14, 14):  # position 42 begins the step with the end of the first epoch
        batches = [batch for rank in range(size) for batch in feed.micro_batches(plan, rank, position, is_fixed)]
        found = [
            (row, epoch) for batch in batches for row, epoch in zip(batch["row"], batch["epoch"], strict=True)
        ]
        places = np.arange(position, position + 14)
        assert sorted(found) == sorted(zip(order.rows_at(position, position + 14), places // 50, strict=True))
        assert all(batch["fixed"] == is_fixed for batch in batches)
        for batch in batches:
            assert np.diff(batch["input_ids"][1]).tolist() == lengths[batch["row"]].tolist()


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def wait_until_none_is_left() -> None:
    give_up = time.monotonic() + 5
    while prefetch_threads():
        assert time.monotonic() < give_up, "the prefetch thread is still there"
        time.sleep(0.01)


def test_prefetched_keeps_order_and_makes_each_item_once_in_another_thread() -> None:
    made, threads = [], set()

    def make(item: int) -> int | None:
        made.append(item)
        threads.add(threading.current_thread().name)
        return None if item == 2 else item * item  # None is a value like any other

    assert list(prefetched(make, range(5))) == [0, 1, None, 9, 16]
    assert made == [0, 1, 2, 3, 4]
    assert threads == {"prefetch"}
    assert list(prefetched(make, [])) == []
    wait_until_none_is_left()


def test_prefetched_works_ahead_but_not_further() -> None:
    made = []
    numbers = prefetched(made.append, range(100), ahead=2)
    next(numbers)
    give_up = time.monotonic() + 5
    while len(made) < 4 and time.monotonic() < give_up:
        time.sleep(0.01)
    time.sleep(0.15)
    assert len(made) == 4  # the one taken, two in the queue, and one that waits for a place
    numbers.close()
    wait_until_none_is_left()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_in_the_thread_is_raised_where_the_values_are_used(error: type[BaseException]) -> None:
    def make(item: int) -> int:
        if item == 3:
            raise error("row 3 is broken")
        return item

    numbers = prefetched(make, range(10))
    assert [next(numbers) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(error, match="row 3 is broken"):
        next(numbers)
    wait_until_none_is_left()


def test_a_stop_iteration_of_the_maker_is_no_end() -> None:
    def make(item: int) -> int:
        return next(iter([])) if item == 3 else item

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(prefetched(make, range(10)))


def test_whoever_stops_early_leaves_no_thread() -> None:
    for number in prefetched(lambda item: item, range(1_000_000)):
        if number == 2:
            break
    wait_until_none_is_left()
