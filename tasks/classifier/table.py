"""Reads columns of CSV, TSV, JSON-lines and Parquet files, with the line of each row for messages.

Files are not repaired: a row with too few or too many columns, a broken quote, or a byte that is NUL or not UTF-8
is an error that names the line. pyarrow reads Parquet only: its readers of CSV and JSON repair broken quotes, give
numbers of rows instead of lines, take "2020-01-01" for a date, and refuse labels of which some are numbers.
"""

import csv
import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from ringbase.errors import InputError, one_line
from ringbase.files import read_text
from ringbase.json_files import kind_of, parse_json

T = TypeVar("T")
Name = str | int  # of a column: in the header, or its number from 0 in a file without one
Records = Iterator[tuple[int, list[str]]]  # lines and their fields

MAX_SHORT_ROWS_SHARE = 0.001
KINDS = {".csv": "csv", ".tsv": "tsv", ".txt": "tsv", ".jsonl": "json", ".json": "json", ".parquet": "parquet"}


@dataclass(frozen=True)
class Table:
    """The wanted columns of a file that it has, one value per row.

    Attributes:
      where: the flag and the file, for messages.
      header: the names of all columns.
      lines: of each row its line in a text file, or its number from 1 in other data.
      num_short_rows: how many rows were left out because they have too few columns.
    """

    where: str
    header: tuple[Name, ...]
    columns: Mapping[Name, Sequence[Any]]
    lines: Sequence[int]
    unit: str = "line"
    num_short_rows: int = 0

    def place(self, row: int) -> str:
        """Where a row (from 0) is, such as "--train_file train.tsv: line 7"."""
        return f"{self.where}: {self.unit} {self.lines[row]}"

    def column(self, name: Name) -> Sequence[Any]:
        """Raises InputError for a name that the file lacks."""
        if name not in self.columns:
            raise InputError(f"{self.where}: no column {name!r}, only {', '.join(map(str, self.header))}")
        return self.columns[name]

    def values(self, name: Name, convert: Callable[[Any], T | None], expected: str) -> list[T]:
        """The converted values of a column. Raises InputError for the first that `convert` makes None."""
        values = []
        for row, value in enumerate(self.column(name)):
            converted = convert(value)
            if converted is None:
                raise InputError(f"{self.place(row)}: {name} must be {expected}, got {value!r:.80}")
            values.append(converted)
        return values

    def take(self, rows: Sequence[int]) -> "Table":
        """The table with only these rows, numbered from 0."""
        columns = {name: [values[row] for row in rows] for name, values in self.columns.items()}
        return replace(self, columns=columns, lines=[self.lines[row] for row in rows])


def read_table(
    path: Path, where: str, wanted: Sequence[Name], num_columns: int | None = None, skips_short_rows: bool = False
) -> Table:
    """Those of the columns `wanted` that a file has.

    The extension decides how it is read: .csv (quoted as in RFC 4180), .tsv and .txt (separated by tabs, without
    quoting), .jsonl and .json (one object per line), each also with .gz, and .parquet.

    Args:
      where: the flag and the file, for messages.
      num_columns: of a .tsv or .txt file without a header; its columns are numbered from 0.
      skips_short_rows: leave out and count rows with too few columns, if they are few.
    Raises InputError: the file is missing, damaged, empty or has another extension; a row has too few or too many
      columns.
    """
    kind = file_kind(path, where)
    if kind == "parquet":
        return _parquet_table(path, where, wanted)
    text = read_text(path, where)
    if not text.strip():
        raise InputError(f"{where}: the file is empty")
    if (nul := text.find("\0")) >= 0:
        raise InputError(f"{where}: line {text.count(chr(10), 0, nul) + 1} holds a NUL, which is no text")
    if kind == "json":
        return _json_table(text, where, wanted)
    rows = _csv_rows(text, where) if kind == "csv" else _tsv_rows(text)
    header = list(range(num_columns)) if num_columns else next(rows)[1]
    return _table(where, header, rows, wanted, skips_short_rows)


def lines_table(text: str, where: str, columns: Sequence[Name]) -> Table:
    """A table of lines: one column has whole lines, two are separated by the first tab.

    Raises InputError: there is no line, or one without a tab between two columns.
    """
    if not text.strip():
        raise InputError(f"{where} is empty")
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    rows = [line.split("\t", len(columns) - 1) for line in lines]
    for number, row in enumerate(rows, 1):
        if len(row) < len(columns):
            raise InputError(f"{where}: line {number} has no tab: it must be a text, a tab and a second text")
    values = {name: [row[place] for row in rows] for place, name in enumerate(columns)}
    return Table(where, tuple(columns), values, range(1, len(rows) + 1))


def file_kind(path: Path, where: str) -> str:
    """How the extension says that a file is read. Raises InputError for another one."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    is_gzip = suffixes[-1:] == [".gz"]
    kind = KINDS.get("".join(suffixes[-2:-1] if is_gzip else suffixes[-1:]))
    if kind is None or (kind == "parquet" and is_gzip):
        raise InputError(f"{where}: the extension must be {', '.join(KINDS)} (all but .parquet also with .gz)")
    return kind


def _tsv_rows(text: str) -> Records:
    """Only a line feed ends a row, because texts hold characters such as U+2028 at which `str.splitlines` splits.
    Blank lines are allowed at the end only, where a file has several columns."""
    has_tabs = "\t" in text.split("\n", 1)[0]
    lines = (text.rstrip("\r\n") if has_tabs else text.removesuffix("\n")).split("\n")
    for number, line in enumerate(lines, 1):
        yield number, line.removesuffix("\r").split("\t")


def _csv_rows(text: str, where: str) -> Records:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    limit = csv.field_size_limit(sys.maxsize)  # the default of 128 KiB is too small for some texts
    try:
        for row in filter(None, reader):
            yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{where}: line {reader.line_num}: broken quotes ({error})") from error
    finally:
        csv.field_size_limit(limit)


def _table(
    where: str, header: Sequence[Name], rows: Records, wanted: Sequence[Name], skips_short_rows: bool
) -> Table:
    """The wanted columns of rows. Raises InputError: a row has too few or too many columns, or a column occurs
    twice."""
    places = [(header.index(name), name) for name in wanted if name in header]
    repeated = [str(name) for _, name in places if header.count(name) > 1]
    if repeated:
        raise InputError(f"{where}: column {', '.join(repeated)} occurs twice in the header")
    columns: dict[Name, list[str]] = {name: [] for _, name in places}
    lines, num_short = [], 0
    for line, row in rows:
        if len(row) < len(header) and skips_short_rows:
            num_short += 1
            continue
        if len(row) != len(header):
            raise InputError(
                f"{where}: line {line} has {len(row)} columns, but "
                f"{'the header' if header[0] != 0 else 'the published file'} has {len(header)}"
            )
        lines.append(line)
        for place, name in places:
            columns[name].append(row[place])
    if num_short > MAX_SHORT_ROWS_SHARE * len(lines):
        num_rows = num_short + len(lines)
        raise InputError(f"{where}: {num_short} of {num_rows} rows have fewer than {len(header)} columns")
    return Table(where, tuple(header), columns, lines, num_short_rows=num_short)


def _json_table(text: str, where: str, wanted: Sequence[Name]) -> Table:
    objects, lines = [], []
    for number, line in enumerate(text.split("\n"), 1):
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
    columns: dict[Name, list[Any]] = {name: [] for name in wanted if name in header}
    for value, number in zip(objects, lines, strict=True):
        for name, values in columns.items():
            if name not in value:
                raise InputError(f"{where}: line {number} has no {name!r}, although other lines have one")
            values.append(value[name])
    return Table(where, header, columns, lines)


def _parquet_table(path: Path, where: str, wanted: Sequence[Name]) -> Table:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            header = tuple(file.schema_arrow.names)
            table = file.read(columns=[name for name in wanted if name in header])
            columns = {name: table.column(name).to_pylist() for name in table.column_names}
            return Table(where, header, columns, range(1, file.metadata.num_rows + 1), "row")
    except FileNotFoundError:
        raise InputError(f"{where}: no such file") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: not a Parquet file, or damaged ({one_line(error)})") from error
