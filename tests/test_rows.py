"""What `take` gives: the rows of a table in a file, of one chunk or many."""

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from distributed.order import BlockOrder
from distributed.rows import Rows, metadata_of, ragged, write_rows

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
        fields = rows.take(np.array(indices))
        dtypes = {"row": np.int64, "label": np.int8, "score": np.float32}
        for name, dtype in dtypes.items():
            assert fields[name].dtype == dtype, name
        np.testing.assert_array_equal(fields["row"], indices)
        np.testing.assert_array_equal(fields["score"], np.array(indices, np.float32) / 2)
        for name, dtype in {"ids": np.int32, "small": np.uint8}.items():
            values, offsets = fields[name]
            assert (values.dtype, offsets.dtype) == (dtype, np.int64), name
            assert (len(offsets), offsets[0], offsets[-1]) == (len(indices) + 1, 0, len(values)), name
            expected = [lists[row].astype(dtype) for row in indices]
            np.testing.assert_array_equal(values, np.concatenate(expected))
            np.testing.assert_array_equal(np.diff(offsets), [len(row) for row in expected])


def test_take_of_nothing() -> None:
    columns, _ = table(7)
    fields = Rows(pa.table(columns)).take(np.array([], np.int64))
    assert fields["label"].shape == (0,)
    values, offsets = fields["ids"]
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
    wanted = [order.rows_at(start, start + 32) for start in range(0, len(many), 320)]
    wanted += [chance.integers(0, len(many), size) for size in (1, 2, 32, 3000)] + [np.arange(len(many))[::-1]]
    for indices in wanted:
        fields, expected = many.take(indices), one.take(pa.array(indices))
        assert many.lengths_at("ids", indices).tolist() == [len(ids) for ids in expected.column("ids").to_pylist()]
        values, offsets = fields["ids"]
        parts = [values[start:stop].tolist() for start, stop in itertools.pairwise(offsets)]
        assert parts == expected.column("ids").to_pylist()
        assert fields["label"].tolist() == expected.column("label").to_pylist()
        assert (values.dtype, offsets.dtype, fields["label"].dtype) == (np.int32, np.int64, np.int8)
    for outside in (-1, len(many)):
        with pytest.raises(IndexError):
            many.take(np.array([3, outside]))


def test_metadata_comes_back(tmp_path: Path) -> None:
    metadata = {"questions": 3, "name": "한국어", "list": [1, 2], "none": None}
    write_rows(tmp_path / "rows.arrow", {"a": pa.array([1])}, metadata)
    assert metadata_of(Rows.open(tmp_path / "rows.arrow")) == metadata
    write_rows(tmp_path / "none.arrow", {"a": pa.array([1])})
    assert metadata_of(Rows.open(tmp_path / "none.arrow")) == {}
