"""The order of rows, what `take` gives, prefetching, and the cache of prepared data."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from mpi import ROOT

from distributed.rows import (
    Order,
    Rows,
    cached,
    digest,
    fixed_batches,
    metadata_of,
    pad,
    prefetched,
    ragged,
    write_rows,
)

# -- order --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_rows", [1, 2, 7, 1000])
def test_each_epoch_is_a_permutation(num_rows: int) -> None:
    order = Order(num_rows, seed=3)
    for epoch in range(4):
        found = order.rows_at(epoch * num_rows, (epoch + 1) * num_rows)
        assert found.dtype == np.int64
        assert sorted(found) == list(range(num_rows))


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


# -- rows ---------------------------------------------------------------------------------------------------------

LENGTHS = [3, 0, 1, 5, 0, 0, 2]


def table(num_rows: int) -> tuple[dict[str, pa.Array], list[np.ndarray]]:
    lists = [np.arange(row, row + LENGTHS[row % len(LENGTHS)], dtype=np.int32) for row in range(num_rows)]
    columns = {
        "ids": ragged(lists, pa.int32()),
        "small": ragged([values.astype(np.uint8) for values in lists], pa.uint8()),
        "row": pa.array(np.arange(num_rows, dtype=np.int64)),
        "label": pa.array((np.arange(num_rows) % 120).astype(np.int8)),
        "score": pa.array(np.arange(num_rows, dtype=np.float32) / 2),
    }
    return columns, lists


@pytest.fixture(params=[7, 40_000], ids=["one chunk", "three chunks"])
def rows_and_lists(request, tmp_path: Path) -> tuple[Rows, list[np.ndarray]]:
    columns, lists = table(request.param)
    write_rows(tmp_path / "rows.arrow", columns)
    rows = Rows.open(tmp_path / "rows.arrow")
    chunks = rows.table.column("ids").num_chunks
    assert chunks == (1 if request.param == 7 else 3), "the case is about chunk boundaries"
    return rows, lists


def test_take_gives_the_rows_asked_for_in_their_stored_types(
    rows_and_lists: tuple[Rows, list[np.ndarray]],
) -> None:
    rows, lists = rows_and_lists
    n = len(rows)
    assert n == len(lists)
    edges = [0, 16_383, 16_384, 16_385, 32_767, 32_768, n - 1]
    chance = np.random.default_rng(0).integers(0, n, 200)
    for indices in ([i for i in edges if i < n], [n - 1, 0, 0, n - 1], [3], [1], [1, 4, 5], chance, np.arange(n)):
        found = rows.take(np.array(indices))
        dtypes = {"row": np.int64, "label": np.int8, "score": np.float32}
        for name, dtype in dtypes.items():
            assert found[name].dtype == dtype, name
        np.testing.assert_array_equal(found["row"], indices)
        np.testing.assert_array_equal(found["score"], np.array(indices, np.float32) / 2)
        for name, dtype in {"ids": np.int32, "small": np.uint8}.items():
            values, offsets = found[name]
            assert (values.dtype, offsets.dtype) == (dtype, np.int64), name
            assert (len(offsets), offsets[0], offsets[-1]) == (len(indices) + 1, 0, len(values)), name
            for place, row in enumerate(indices):
                expected = lists[row].astype(dtype)
                np.testing.assert_array_equal(values[offsets[place] : offsets[place + 1]], expected)


def test_take_of_nothing() -> None:
    columns, _ = table(7)
    found = Rows(pa.table(columns)).take(np.array([], np.int64))
    assert found["label"].shape == (0,)
    values, offsets = found["ids"]
    assert values.shape == (0,)
    assert offsets.tolist() == [0]


def test_a_whole_column(rows_and_lists: tuple[Rows, list[np.ndarray]]) -> None:
    rows, lists = rows_and_lists
    values, offsets = rows.column("ids")
    np.testing.assert_array_equal(values, np.concatenate(lists))
    np.testing.assert_array_equal(np.diff(offsets), [len(values) for values in lists])
    np.testing.assert_array_equal(rows.column("row"), np.arange(len(lists)))


def test_a_slice_of_a_table_starts_at_zero() -> None:
    columns, lists = table(7)
    values, offsets = Rows(pa.table(columns).slice(3, 2)).column("ids")
    assert values.tolist() == lists[3].tolist()
    assert offsets.tolist() == [0, 5, 5]


def test_metadata_comes_back(tmp_path: Path) -> None:
    told = {"questions": 3, "name": "한국어", "list": [1, 2], "none": None}
    write_rows(tmp_path / "rows.arrow", {"a": pa.array([1])}, told)
    assert metadata_of(Rows.open(tmp_path / "rows.arrow")) == told
    write_rows(tmp_path / "none.arrow", {"a": pa.array([1])})
    assert metadata_of(Rows.open(tmp_path / "none.arrow")) == {}


def test_pad() -> None:
    values, offsets = np.array([1, 2, 3, 4, 5, 6], np.uint8), np.array([0, 3, 3, 6])
    padded = pad((values, offsets), 4, value=9)
    assert padded.dtype == np.int32
    assert padded.tolist() == [[1, 2, 3, 9], [9, 9, 9, 9], [4, 5, 6, 9]]
    assert pad((values, offsets), 3).tolist() == [[1, 2, 3], [0, 0, 0], [4, 5, 6]]
    with pytest.raises(ValueError, match="6 input values"):  # never cut off in silence
        pad((values, offsets), 2)


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_fixed_batches_hold_every_row_once_beside_rows_of_like_length(batch_size: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 50, 30)
    batches = fixed_batches(lengths, batch_size)
    assert sorted(np.concatenate(batches)) == list(range(30))
    assert all(len(batch) == batch_size for batch in batches[:-1])
    in_order = lengths[np.concatenate(batches)]
    assert np.all(np.diff(in_order) <= 0)


# -- prefetching --------------------------------------------------------------------------------------------------


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


# -- cache --------------------------------------------------------------------------------------------------------

BUILDER = """
import os, signal, sys, time
from pathlib import Path
from distributed.rows import cached
folder, name, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
def build(into):
    (into / "first").write_text(name)
    (folder / f"{name} builds").touch()
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    while len(list(folder.glob("* builds"))) < int(how):
        time.sleep(0.01)
    (into / "second").write_text(name)
path, built = cached(folder / "cache", "key", build)
print(built, (path / "first").read_text(), (path / "second").read_text())
"""


def builder(folder: Path, name: str, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(folder), name, how],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_the_cache_builds_once(tmp_path: Path) -> None:
    calls = []

    def build(folder: Path) -> None:
        calls.append(folder)
        (folder / "data").write_text("rows")

    first, built = cached(tmp_path / "new" / "cache", "key", build)
    assert built
    assert cached(tmp_path / "new" / "cache", "key", build) == (first, False)
    assert len(calls) == 1
    assert calls[0] != first, "it was built in place"
    assert [(path.name, path.read_text()) for path in first.iterdir()] == [("data", "rows")]
    assert os.listdir(first.parent) == ["key"]


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        cached(tmp_path, "key", build)
    assert os.listdir(tmp_path) == []


def test_a_killed_build_is_not_taken_for_data_and_goes_with_the_next(tmp_path: Path) -> None:
    killed = builder(tmp_path, "killed", "killed")
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "cache" / "key").exists()
    assert len(os.listdir(tmp_path / "cache")) == 1, "the case is about what is left over"
    again = builder(tmp_path, "again", "1")
    assert again.communicate(timeout=60)[0].split() == ["True", "again", "again"]
    assert os.listdir(tmp_path / "cache") == ["key"]


def test_jobs_that_build_the_same_at_the_same_time_all_get_one_whole_folder(tmp_path: Path) -> None:
    jobs = [builder(tmp_path, f"job{number}", "3") for number in range(3)]  # each waits for all three
    told = [job.communicate(timeout=60)[0].split() for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0, 0]
    writers = {name for line in told for name in line[1:]}
    assert len(writers) == 1, f"files of several builds are mixed: {told}"
    assert os.listdir(tmp_path / "cache") == ["key"]


def test_a_digest_tells_files_by_their_bytes_and_the_rest_by_its_value(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    (tmp_path / "b").write_text("one")
    assert digest(tmp_path / "a", 1) == digest(tmp_path / "b", 1)
    (tmp_path / "b").write_text("two")
    different = [
        digest(tmp_path / "a", 1),
        digest(tmp_path / "b", 1),
        digest(tmp_path / "a", 2),
        digest("a", "b"),
        digest("ab"),
        digest({"x": 1}),
        digest(["x", 1]),
    ]
    assert len(set(different)) == len(different)
    assert digest({"x": 1, "y": 2}) == digest({"y": 2, "x": 1})
