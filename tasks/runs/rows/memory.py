"""Data in memory, for people: `ringbert/in_memory.py` makes a file in the cache of it, whose name
says nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

NAME = "rows_in_memory.parquet"  # in a folder with the digest of its content
SHOWN_DIGITS = 12


def described(flags: Mapping[str, Any]) -> dict[str, str]:
    """What to say of the data in memory among the values of flags, by the paths of their files."""
    found = {}
    for value in flags.values():
        if isinstance(value, str) and Path(value).name == NAME and Path(value).is_file():
            found[value] = _description(Path(value))
    return found


def _description(file: Path) -> str:

    parquet = pq.ParquetFile(file)
    columns = ", ".join(parquet.schema_arrow.names)
    count, digest = parquet.metadata.num_rows, file.parent.name[:SHOWN_DIGITS]
    return f"{count:,} rows in memory (columns {columns}; sha256 {digest})"


def in_words(text: str, data: Mapping[str, str]) -> str:
    """A text with descriptions of data in memory instead of their files."""
    for path, words in data.items():
        text = text.replace(path, words)
    return text
