"""The text of a corpus: files or a data set, cut into units of 4 to 8 MiB that are read independently.

The unit of a document depends only on the input, never on the worker that reads it.
"""

import functools
import glob
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet

from bert import hub
from bert.corpus.settings import TextSettings
from ringbase.errors import InputError, one_line

LARGEST_UNIT_BYTES, SMALLEST_UNIT_BYTES = 8 << 20, 4 << 20  # of text
NUM_UNITS = 64  # if their size is then between these limits, so that all workers end at about the same time
COMPRESSION_RATIO = 4  # assumed: bytes of text per byte of a compressed file
JSON_LINES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True)
class Piece:
    """A part of a file: bytes [start, stop) of text or JSON lines, row groups of Parquet, rows of a data set.

    A compressed file is one piece, with `stop` None. `size`: its bytes of text, about.
    """

    path: str
    kind: Literal["text", "json", "parquet", "hub"]
    start: int
    stop: int | None
    size: int


Unit = tuple[Piece, ...]  # neighbours, read one after the other by one worker


def find_files(patterns: str, flag: str = "--input_file") -> list[str]:
    """The files that comma-separated globs match, each once, sorted within each glob.

    Raises InputError, which names the glob, if a glob matches no file.
    """
    files: dict[str, None] = {}
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        name = os.path.expanduser(pattern)
        matches = [path for path in sorted(glob.glob(name, recursive=True)) if os.path.isfile(path)]
        if not matches and os.path.isfile(name):  # a file name with brackets
            matches = [name]
        if not matches:
            reason = f"this is a folder: give '{pattern}/*'" if os.path.isdir(name) else "no file matches"
            raise InputError(f"{flag} {pattern}: {reason}")
        files.update(dict.fromkeys(matches))
    if not files:
        raise InputError(f"{flag} '{patterns}' names no file")
    return list(files)


def find_units(text: TextSettings) -> tuple[list[Unit], list[str]]:
    """The units of the input, in order and of similar size, and the empty files, which are left out.

    Raises InputError: no file matches, all files are empty, a Parquet file or data set cannot be read.
    """
    empty: list[str] = []
    if text.dataset_name is not None:
        pieces, unit_bytes = _pieces_of_data_set(text), LARGEST_UNIT_BYTES
    else:
        sizes = {path: os.path.getsize(path) for path in find_files(text.input_file or "")}
        empty = [path for path, size in sizes.items() if size == 0]
        total = sum(size * (COMPRESSION_RATIO if _compression(path) else 1) for path, size in sizes.items())
        unit_bytes = min(LARGEST_UNIT_BYTES, max(SMALLEST_UNIT_BYTES, total // NUM_UNITS))
        pieces = [
            piece
            for path, size in sizes.items()
            if size
            for piece in _pieces_of_file(path, size, text, unit_bytes)
        ]
    if not pieces:
        raise InputError(f"--input_file {text.input_file}: every matching file is empty")
    total = sum(piece.size for piece in pieces)
    units: list[list[Piece]] = [[] for _ in range(-(-total // unit_bytes) or 1)]
    before = 0
    for piece in pieces:
        middle = (2 * before + piece.size) * len(units) // (2 * total or 1)
        units[min(middle, len(units) - 1)].append(piece)
        before += piece.size
    return [tuple(unit) for unit in units if unit], empty


def input_facts(text: TextSettings) -> list[tuple[str, int, int]]:
    """Path, size in bytes and time of last change of every input file, to notice when the input changes.

    For a data set: its name, number of rows and a number derived from its fingerprint.
    """
    if text.dataset_name is not None:
        table = load_data_set(text)
        return [(text.dataset_name, len(table), int(table._fingerprint, 16) % (1 << 62))]
    stats = [(path, os.stat(path)) for path in find_files(text.input_file or "")]
    return [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]


@functools.lru_cache(maxsize=1)
def load_data_set(text: TextSettings) -> Any:
    """The split "train" of `--dataset_name` as a `datasets.Dataset`. Raises InputError if it cannot be loaded."""
    name, config = str(text.dataset_name), text.dataset_config
    where = f"--dataset_name {name}{f' --dataset_config {config}' if config else ''}"
    return hub.load_data_set(name, config, "train", where, text.dataset_revision)


def _compression(path: str) -> str:
    """The ending .gz or .zst of a file's name, if it has one."""
    return next((ending for ending in (".gz", ".zst") if path.lower().endswith(ending)), "")


def _pieces_of_file(path: str, size: int, text: TextSettings, unit_bytes: int) -> list[Piece]:
    compression = _compression(path)
    name = path.lower().removesuffix(compression)
    if name.endswith(".parquet"):
        if compression:
            raise InputError(f"--input_file {path}: unpack it first (Parquet files are compressed inside anyway)")
        return _pieces_of_parquet(path, text)
    kind: Literal["text", "json"] = "json" if name.endswith(JSON_LINES) else "text"
    if compression:
        return [Piece(path, kind, 0, None, COMPRESSION_RATIO * size)]
    number = -(-size // unit_bytes)
    edges = [part * size // number for part in range(number + 1)]
    return [Piece(path, kind, start, stop, stop - start) for start, stop in itertools.pairwise(edges)]


def _pieces_of_parquet(path: str, text: TextSettings) -> list[Piece]:
    try:
        with pa.parquet.ParquetFile(path) as file:
            metadata, columns = file.metadata, file.schema_arrow.names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"--input_file {path}: not a Parquet file: {one_line(error)}") from error
    _check_column(text.text_column, columns, f"--input_file {path}")
    sizes = [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]
    return [Piece(path, "parquet", group, group + 1, size) for group, size in enumerate(sizes)]


def _pieces_of_data_set(text: TextSettings) -> list[Piece]:
    name, where = text.dataset_name or "", f"--dataset_name {text.dataset_name}"
    table = load_data_set(text)
    _check_column(text.text_column, table.column_names, where)
    if not len(table):
        raise InputError(f"{where}: the data set has no rows")
    step = max(1, LARGEST_UNIT_BYTES * len(table) // max(1, table.data.nbytes))
    starts = range(0, len(table), step)
    return [Piece(name, "hub", start, min(start + step, len(table)), LARGEST_UNIT_BYTES) for start in starts]


def _check_column(column: str, columns: Sequence[str], where: str) -> None:
    if column not in columns:
        raise InputError(f"{where}: no column {column}; its columns are {', '.join(columns)} (--text_column)")
