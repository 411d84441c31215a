"""The text of a corpus, files or a data set, cut into units of 4 to 8 MiB that are read
independently.

They depend only on the input, never on the worker that reads them.
"""

import functools
import glob
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet

from bert import hub
from bert.corpus.settings import TextSettings
from ringbase.errors import InputError, one_line, unread

LARGEST_UNIT_BYTES, SMALLEST_UNIT_BYTES = 8 << 20, 4 << 20  # of text
# if their size is then between these limits, so that all workers end at about the same time
NUM_UNITS = 64
PACKED_RATIO = 4  # assumed: bytes of text per byte of a compressed file
JSON_LINES = (".jsonl", ".ndjson", ".json")


class Piece(NamedTuple):
    """A part of a file: bytes [start, stop) of text or JSON lines, row groups of Parquet, rows of a
    data set."""

    path: str
    kind: Literal["text", "json", "parquet", "hub"]
    start: int
    stop: int | None  # None for a compressed file, which is one piece
    size: int  # bytes of text, about


Unit = tuple[Piece, ...]  # neighbours, read one after the other by one worker


def find_files(patterns: str, flag: str = "--input_file") -> list[str]:
    """The files that comma-separated globs match, each once, sorted within each glob. Raises
    InputError if one matches no file."""
    files: dict[str, None] = {}
    for pattern in filter(None, map(str.strip, patterns.split(","))):
        name = os.path.expanduser(pattern)
        # A file name may have brackets.
        paths = [*sorted(glob.glob(name, recursive=True)), name]
        matches = list(filter(os.path.isfile, paths))
        if not matches:
            reason = "no file matches"
            if os.path.isdir(name):
                reason = f"this is a folder: give '{pattern}/*'"
            raise InputError(f"{flag} {pattern}: {reason}")
        files.update(dict.fromkeys(matches))
    return list(files)


def find_units(text: TextSettings) -> list[Unit]:
    """The units of the input, in order and of similar size. Raises InputError: no file matches, all
    are empty, a Parquet file or data set cannot be read."""
    unit_bytes = LARGEST_UNIT_BYTES
    if text.dataset_name is not None:
        pieces = list(_pieces_of_data_set(text))
    else:
        sizes = {}
        for path, size in input_sizes(text):
            if size:
                sizes[path] = size * PACKED_RATIO if packing_of(path) else size
        even_bytes = sum(sizes.values()) // NUM_UNITS
        unit_bytes = min(unit_bytes, max(SMALLEST_UNIT_BYTES, even_bytes))
        pieces = []
        for path, size in sizes.items():
            pieces += _pieces_of_file(path, size, text, unit_bytes)
    if not pieces:
        raise InputError(f"{text.source}: all of it is empty")
    ends = list(itertools.accumulate(piece.size for piece in pieces))
    total = max(ends[-1], 1)
    count = -(-ends[-1] // unit_bytes) or 1
    units: dict[int, list[Piece]] = {}
    for piece, end in zip(pieces, ends, strict=True):
        number = (2 * end - piece.size) * count // (2 * total)  # by the middle of the piece
        units.setdefault(min(number, count - 1), []).append(piece)
    return list(map(tuple, units.values()))


def input_sizes(text: TextSettings) -> list[tuple[str, int]]:
    """Path and size in bytes of every input file, or name and number of rows of the data set."""
    if text.dataset_name is not None:
        return [(text.dataset_name, len(load_data_set(text)))]
    files = find_files(text.input_file or "")
    return [(path, os.path.getsize(path)) for path in files]


@functools.lru_cache(maxsize=1)
def load_data_set(text: TextSettings) -> Any:
    """The split "train" of `--dataset_name` as a `datasets.Dataset`. Raises InputError if it cannot
    be loaded."""
    config = text.dataset_config
    where = f"{text.source}{f' --dataset_config {config}' if config else ''}"
    return hub.load_data_set(str(text.dataset_name), config, "train", where, text.dataset_revision)


def packing_of(path: str) -> str | None:
    """How a file is compressed, by its name; None if it is not."""
    return {".gz": "gzip", ".zst": "zstd"}.get(os.path.splitext(path.lower())[1])


def _pieces_of_file(path: str, size: int, text: TextSettings, unit_bytes: int) -> Iterator[Piece]:
    name = path.lower().removesuffix(".gz").removesuffix(".zst")
    kind: Literal["text", "json"] = "json" if name.endswith(JSON_LINES) else "text"
    if name.endswith(".parquet"):
        try:
            with pa.parquet.ParquetFile(path) as file:
                metadata, columns = file.metadata, file.schema_arrow.names
        except (pa.ArrowException, OSError, ValueError) as error:
            where = f"--input_file {path}"
            raise unread(error, where, f"{where}: not a Parquet file: {one_line(error)}") from error
        _check_column(text.text_column, columns, f"--input_file {path}")
        for group in range(metadata.num_row_groups):
            size = metadata.row_group(group).total_byte_size
            yield Piece(path, "parquet", group, group + 1, size)
    elif packing_of(path):
        yield Piece(path, kind, 0, None, size)
    else:
        number = -(-size // unit_bytes)
        for part in range(number):
            start, stop = part * size // number, (part + 1) * size // number
            yield Piece(path, kind, start, stop, stop - start)


def _pieces_of_data_set(text: TextSettings) -> Iterator[Piece]:
    table = load_data_set(text)
    _check_column(text.text_column, table.column_names, text.source)
    num_rows = len(table)
    num_bytes = max(1, table.data.nbytes)
    step = max(1, LARGEST_UNIT_BYTES * num_rows // num_bytes)
    for start in range(0, num_rows, step):
        stop = min(start + step, num_rows)
        yield Piece(str(text.dataset_name), "hub", start, stop, LARGEST_UNIT_BYTES)


def _check_column(column: str, columns: Sequence[str], where: str) -> None:
    if column not in columns:
        raise InputError(
            f"{where}: no column {column}; its columns are {', '.join(columns)} (--text_column)"
        )
