"""What `take` gives, and the cache of prepared data."""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from mpi import ROOT

from distributed.order import BlockOrder
from distributed.rows import Rows, cached, digest, metadata_of, pad, ragged, write_rows

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


def test_rows_of_a_table_of_many_chunks_are_those_of_one_chunk() -> None:
    """`Rows.take` of random rows and of blocks against `pyarrow.Table.take` on the same rows in one chunk."""
    chance = np.random.default_rng(0)
    tables = []
    for length in [*chance.integers(0, 40, 200), 0, 1, 500]:  # empty chunks among them
        lists = [chance.integers(0, 9, size).astype(np.int32) for size in chance.integers(0, 5, length)]
        numbers = pa.array(chance.integers(-9, 9, length), pa.int8())
        tables.append(pa.table({"ids": ragged(lists, pa.int32()), "label": numbers}))
    many = Rows(pa.concat_tables(tables))
    one = many.table.combine_chunks()
    assert (many.table.column("ids").num_chunks, one.column("ids").num_chunks) == (203, 1)
    order = BlockOrder(len(many), seed=0)
    asked = [order.rows_at(start, start + 32) for start in range(0, len(many), 320)]
    asked += [chance.integers(0, len(many), size) for size in (1, 2, 32, 3000)] + [np.arange(len(many))[::-1]]
    for indices in asked:
        found, expected = many.take(indices), one.take(pa.array(indices))
        assert many.lengths_at("ids", indices).tolist() == [len(ids) for ids in expected.column("ids").to_pylist()]
        values, offsets = found["ids"]
        parts = [values[start:stop].tolist() for start, stop in itertools.pairwise(offsets)]
        assert parts == expected.column("ids").to_pylist()
        assert found["label"].tolist() == expected.column("label").to_pylist()
        assert (values.dtype, offsets.dtype, found["label"].dtype) == (np.int32, np.int64, np.int8)
    for outside in (-1, len(many)):
        with pytest.raises(IndexError):
            many.take(np.array([3, outside]))


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
