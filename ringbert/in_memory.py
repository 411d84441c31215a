"""Data in memory as files: a data frame, a list of dicts or a data set becomes a Parquet file in
the cache, which all ranks read."""

import hashlib
import io
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ringbase.errors import InputError, one_line
from ringbase.files import replacing
from ringbase.settings import shown
from tasks.runs.environment import cache_folder
from tasks.runs.tables import of_data_set

FORMS = "the name of a file, a data frame, a list of dicts or a datasets.Dataset"


def file_of(value: Any, name: str) -> Path:
    """The file of what the argument `name` holds, named by its content. Raises InputError: it is no
    table, has no rows, or holds what a Parquet file cannot."""
    try:
        table = _table_of(value, name)
        if not table.num_rows:
            raise InputError(f"{name} has no rows")
        file = io.BytesIO()
        # the metadata would have the names of a frame's rows
        pq.write_table(table.replace_schema_metadata(), file)
    except InputError:
        raise
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InputError(f"{name} cannot be written as Parquet: {one_line(error)}") from error
    content = file.getvalue()
    path = cache_folder() / "tables" / f"{hashlib.sha256(content).hexdigest()[:24]}.parquet"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as new:
            new.write(content)
    return path


def _table_of(value: Any, name: str) -> pa.Table:
    if hasattr(value, "iloc") and hasattr(value, "columns"):  # of pandas, which may be missing
        return pa.Table.from_pandas(value, preserve_index=False)
    if hasattr(value, "__arrow_c_stream__") and hasattr(value, "columns"):  # of others
        return pa.table(value)
    rows = value
    # a `datasets.Dataset`, but neither several splits nor a stream
    if hasattr(value, "features") and hasattr(value, "num_rows"):
        rows = [row for _, row in of_data_set(value, name, value.column_names).rows]
    is_list = isinstance(rows, list | tuple)
    if not is_list or not all(isinstance(row, Mapping) for row in rows):
        raise InputError(f"{name} must be {FORMS}, got {shown(value)}")
    # of all rows: pyarrow's from_pylist takes those of the first
    columns = dict.fromkeys(itertools.chain.from_iterable(rows))
    return pa.table({column: [row.get(column) for row in rows] for column in columns})
