"""Data in memory as files: a data frame, a list of dicts or a data set becomes a Parquet file in
the cache, which all ranks read."""

import hashlib
import io
import itertools
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ringbase.errors import InputError, one_line
from ringbase.files import cache_folder, write_bytes
from ringbase.settings import shown
from tasks.runs.environment import writing_cache
from tasks.runs.rows.memory import NAME
from tasks.runs.rows.tables import of_data_set


def file_of(value, name: str) -> str:
    """The file of what the argument `name` holds, named by its content. Raises
    InputError: it is no table, has no rows, or holds what a Parquet file cannot."""
    file = io.BytesIO()
    try:
        table = _table_of(value)
        if not table.num_rows:
            raise InputError("there are no rows")
        pq.write_table(table, file)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InputError(f"{name}: {one_line(error)}") from error
    content = file.getvalue()
    folder = cache_folder() / "tables" / hashlib.sha256(content).hexdigest()[:24]
    with writing_cache():
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / NAME, content)
    return str(folder / NAME)


def _table_of(rows) -> pa.Table:
    if hasattr(rows, "itertuples"):  # of pandas, which programs need not import
        names = [*map(str, rows.columns)]
        if len(set(names)) < len(names):
            raise InputError(f"two columns have the same name, of {', '.join(names)}")
        return _of_columns({str(name): _column(name, rows[name]) for name in rows.columns})
    if hasattr(rows, "features"):  # a Dataset or an IterableDataset, but no DatasetDict
        rows = [row for _, row in of_data_set(rows, "", rows.column_names or ()).rows]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(
            "it must be the name of a file, a data frame, a list of dicts or a datasets.Dataset,"
            f" got {shown(rows)}"
        )
    columns = {}
    # of all rows: pyarrow's from_pylist takes those of the first
    for name in dict.fromkeys(itertools.chain.from_iterable(rows)):
        columns[name] = _column(name, [row.get(name) for row in rows])
    return _of_columns(columns)


def _column(name: object, values: Any) -> pa.Array:
    """NaN stands for nothing."""
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError) as error:
        kinds = sorted({type(value).__name__ for value in values if value is not None})
        raise InputError(
            f"column {name!r} holds values of several types ({', '.join(kinds)}), or of one that"
            f" Parquet does not have: make them all texts or all numbers ({one_line(error)})"
        ) from None


def _of_columns(columns: dict[str, pa.Array]) -> pa.Table:
    """A text that is missing is an empty one, as an empty cell of a CSV file is."""
    for name, column in columns.items():
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            columns[name] = column.fill_null("")
    return pa.table(columns)
