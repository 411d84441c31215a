"""Reads chosen columns of tab-separated, CSV, JSON-lines and Parquet files, with the line number of each row.

Files are not repaired: a row with too few or too many columns, a broken quote, or a byte that is not UTF-8 is an
error that names the line.
"""

import csv
import functools
import io
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from ringbase.errors import InputError, one_line
from ringbase.files import read_standard_input, read_text
from ringbase.json_files import kind_of, parse_json
from tasks.classifier.settings import STANDARD_INPUT
from tasks.classifier.tasks import SECOND_TEXT

MAX_SHORT_ROWS_SHARE = 0.001
EXTENSIONS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "tsv",
    ".jsonl": "json",
    ".json": "json",
    ".parquet": "parquet",
}


@dataclass(frozen=True)
class Table:
    """The wanted columns of a file by name or index, one value per row; all column names; the line of each row."""

    where: str
    header: tuple[str | int, ...]
    columns: Mapping[str | int, Sequence[Any]]
    lines: Sequence[int]
    num_short_rows: int = 0

    def column(self, name: str | int) -> Sequence[Any]:
        """Raises InputError for a name that the file lacks."""
        if name not in self.columns:
            existing = ", ".join(str(column) for column in self.header)
            raise InputError(f"{self.where}: no column {name!r}, only {existing}")
        return self.columns[name]

    def take(self, rows: Sequence[int]) -> "Table":
        """The table with only these rows, numbered from 0."""
        columns = {name: [values[row] for row in rows] for name, values in self.columns.items()}
        return replace(self, columns=columns, lines=[self.lines[row] for row in rows])


def read_table(path: Path, where: str, wanted: Sequence[str | int], extension: str = "") -> Table:
    """Those of the columns `wanted` that a file has. The extension decides how it is read: .csv (quoted as in RFC
    4180), .tsv and .txt (no quoting), .jsonl and .json (one object per line), each also with .gz, and .parquet.
    The file `-` is standard input, which is read as if it had the extension given here.

    Raises InputError: the file is missing, damaged, empty or has another extension; a row has too few or too many
      columns.
    """
    suffixes = [extension] if extension else [suffix.lower() for suffix in path.suffixes]
    is_gzip = suffixes[-1:] == [".gz"]
    kind = EXTENSIONS.get("".join(suffixes[-2:-1] if is_gzip else suffixes[-1:]))
    if kind is None or (kind == "parquet" and is_gzip):
        raise InputError(
            f"{where}: the extension must be {', '.join(EXTENSIONS)} (all but .parquet also with .gz)"
        )
    readers: dict[str, Callable[..., Table]] = {
        "tsv": read_tsv,
        "csv": _read_csv,
        "json": _read_json_lines,
        "parquet": _read_parquet,
    }
    return readers[kind](path, where, wanted)


def lines_of_standard_input(where: str, columns: Sequence[str | int]) -> Table:
    """A table of the lines of standard input: one column has whole lines, two are separated by the first tab.

    Raises InputError: it is empty, or a line has no tab between two columns, or more than one if the second is
      `SECOND_TEXT`.
    """
    lines = [
        line.removesuffix("\r") for line in _read_text(Path(STANDARD_INPUT), where).removesuffix("\n").split("\n")
    ]
    rows = [line.split("\t", len(columns) - 1) for line in lines]
    for number, (line, row) in enumerate(zip(lines, rows, strict=True), 1):
        if SECOND_TEXT in columns and (num_tabs := line.count("\t")) != 1:
            raise InputError(
                f"{where}: line {number} has {num_tabs or 'no'} tab{'s' * (num_tabs > 1)}: the model was trained "
                "on pairs, so a line must be a text, a tab and a second text (with --text_pair_column NAME the "
                "second text may hold tabs)"
            )
        if len(row) < len(columns):
            raise InputError(f"{where}: line {number} has no tab between {' and '.join(map(str, columns))}")
    values = {name: [row[place] for row in rows] for place, name in enumerate(columns)}
    return Table(where, tuple(columns), values, range(1, len(rows) + 1))


def unit(source: str) -> str:
    """ "line" for text files and standard input, "row" for Parquet files and data sets of the hub."""
    name = source.lower().removesuffix(".gz")
    is_text = Path(name).suffix in EXTENSIONS and not name.endswith(".parquet")
    return "line" if is_text or source.startswith("standard input") else "row"


def _read_text(path: Path, where: str) -> str:
    text = _standard_input(where) if path == Path(STANDARD_INPUT) else read_text(path, where)
    if not text.strip():
        raise InputError(f"{where}: the file is empty")
    return text


@functools.cache
def _standard_input(where: str) -> str:
    """Kept, because it can be read only once, and the runs of several seeds all need it."""
    return read_standard_input(where)


def read_tsv(
    path: Path,
    where: str,
    wanted: Sequence[str | int],
    num_columns: int | None = None,
    skips_short_rows: bool = False,
    is_quoted: bool = False,
) -> Table:
    """Reads tab-separated text, without quoting unless `is_quoted`. With `num_columns` the file has no header, and
    its columns are numbered from 0.

    Without quoting only a line feed ends a row, because texts contain characters such as U+2028 at which
    `str.splitlines` would split.
    """
    if is_quoted:
        return _read_csv(path, where, wanted, "\t", num_columns, skips_short_rows)
    lines = _read_text(path, where).removesuffix("\n").split("\n")
    header: list[str | int] = list(range(num_columns or 0))
    if num_columns is None:
        header = [*lines.pop(0).removesuffix("\r").split("\t")]
    while len(header) > 1 and lines and not lines[-1].strip("\r"):
        lines.pop()  # blank lines are allowed at the end only
    first = 2 if num_columns is None else 1
    rows = ((number, line.removesuffix("\r").split("\t")) for number, line in enumerate(lines, first))
    return _table(where, header, rows, wanted, skips_short_rows)


def _read_csv(
    path: Path,
    where: str,
    wanted: Sequence[str | int],
    delimiter: str = ",",
    num_columns: int | None = None,
    skips_short_rows: bool = False,
) -> Table:
    reader = csv.reader(io.StringIO(_read_text(path, where), newline=""), delimiter=delimiter, strict=True)
    limit = csv.field_size_limit(sys.maxsize)  # the default of 128 KiB is too small for some texts
    try:
        header: Sequence[str | int] = next(reader, []) if num_columns is None else range(num_columns)
        rows = ((reader.line_num, row) for row in reader if row)
        return _table(where, header, rows, wanted, skips_short_rows)
    except csv.Error as error:
        raise InputError(f"{where}: line {reader.line_num}: broken quotes ({error})") from error
    finally:
        csv.field_size_limit(limit)


def _table(
    where: str,
    header: Sequence[str | int],
    rows: Iterable[tuple[int, list[str]]],
    wanted: Sequence[str | int],
    skips_short_rows: bool = False,
) -> Table:
    """The wanted columns of rows (line, fields). Raises InputError: a row has too few or too many columns, or a
    column occurs twice."""
    if not header:
        raise InputError(f"{where}: line 1 is empty, expected the names of the columns")
    repeated = sorted({str(name) for name in header if header.count(name) > 1 and name in wanted})
    if repeated:
        raise InputError(f"{where}: column {', '.join(repeated)} occurs twice in the header")
    places = [(header.index(name), name) for name in wanted if name in header]
    columns: dict[str | int, list[str]] = {name: [] for _, name in places}
    lines, num_short = [], 0
    for line, row in rows:
        if len(row) != len(header):
            if skips_short_rows and len(row) < len(header):
                num_short += 1
                continue
            raise InputError(
                f"{where}: line {line} has {len(row)} columns, but "
                f"{'the header' if header[0] != 0 else 'the published file'} has {len(header)}"
            )
        lines.append(line)
        for place, name in places:
            columns[name].append(row[place])
    if num_short > MAX_SHORT_ROWS_SHARE * len(lines):
        raise InputError(
            f"{where}: {num_short} of {num_short + len(lines)} rows have fewer than {len(header)} columns"
        )
    return Table(where, tuple(header), columns, lines, num_short)


def _read_json_lines(path: Path, where: str, wanted: Sequence[str | int]) -> Table:
    objects, lines = [], []
    for number, line in enumerate(_read_text(path, where).split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = parse_json(line, allow_nan=True)  # in other columns; in ours it is refused
        except InputError as error:
            raise InputError(f"{where}: line {number}: {error}; each line must be a JSON object") from error
        if not isinstance(value, dict):
            raise InputError(f"{where}: line {number} is {kind_of(value)}: each line must be a JSON object")
        objects.append(value)
        lines.append(number)
    header = tuple(dict.fromkeys(name for value in objects for name in value))
    columns = {}
    for name in (name for name in wanted if name in header):
        for value, number in zip(objects, lines, strict=True):
            if name not in value:
                raise InputError(f"{where}: line {number} has no {name!r}, although other lines have one")
        columns[name] = [value[name] for value in objects]
    return Table(where, header, columns, lines)


def _read_parquet(path: Path, where: str, wanted: Sequence[str | int]) -> Table:
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            header = tuple(file.schema_arrow.names)
            table = file.read(columns=[name for name in wanted if name in header])
            columns = {name: table.column(name).to_pylist() for name in table.column_names}
            return Table(where, header, columns, range(1, file.metadata.num_rows + 1))
    except FileNotFoundError:
        raise InputError(f"{where}: no such file") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: not a Parquet file, or damaged ({one_line(error)})") from error
