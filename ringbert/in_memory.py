"""Data in memory as files: a data frame, a list of dicts or a data set becomes a Parquet file in
the cache, which all ranks read."""

import hashlib
import io
import itertools

import pyarrow as pa
import pyarrow.parquet as pq

from ringbase.errors import InputError, one_line
from ringbase.files import write_bytes
from ringbase.settings import shown
from tasks.runs.environment import cache_folder
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
    path = cache_folder() / "tables" / f"{hashlib.sha256(content).hexdigest()[:24]}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content)
    return str(path)


def _table_of(rows) -> pa.Table:
    if hasattr(rows, "itertuples"):  # of pandas, which programs need not import
        return pa.Table.from_pandas(rows, preserve_index=False)
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
        # NaN stands for nothing, as in a frame
        columns[name] = pa.array([row.get(name) for row in rows], from_pandas=True)
    return pa.table(columns)
