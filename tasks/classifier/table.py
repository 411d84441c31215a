"""Reads columns of CSV, TSV, JSON-lines and Parquet files, with the line of each row for messages.

Files are not repaired: a row with too few or too many columns, a broken quote, or a byte that is not UTF-8 is an
error that names the line. pyarrow reads Parquet only: its readers of CSV and JSON repair broken quotes, give
numbers of rows instead of lines, take "2020-01-01" for a date, and refuse labels of which some are numbers.
"""

import csv
import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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

csv.field_size_limit(sys.maxsize)  # the default of 128 KiB is too small for some texts
MAX_SHORT_ROWS_SHARE = 0.001
KINDS = {".csv": "csv", ".tsv": "tsv", ".txt": "tsv", ".jsonl": "json", ".json": "json", ".parquet": "parquet"}


@dataclass(frozen=True)
class Columns:
    """Which columns of a file hold what: by name in its header, or by number from 0 in a file without one."""

    text: Name
    pair: Name | None = None  # the second text of a pair
    label: Name = "label"
    id: str = "index"  # for the submission; a file without it gets the row numbers from 0
    language: str | None = None  # what --language filters by
    num_columns: int | None = None  # of a file without a header
    skips_short_rows: bool = False  # rows with too few columns are left out and counted, if they are few

    @property
    def wanted(self) -> list[Name]:
        names = (self.text, self.pair, self.label, self.id, self.language)
        return list(dict.fromkeys(name for name in names if name is not None and name != ""))


@dataclass(frozen=True)
class Table:
    """The wanted columns of a file that it has, one value per row.

    `where` is the flag and the file, `header` has the names of all columns. `lines` has the line of each row, or
    its number from 1 where the `unit` is "row".
    """

    where: str
    header: Sequence[Name]
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


def read_table(path: Path, where: str, columns: Columns) -> Table:
    """Those of the columns that a file has. `where` is the flag and the file, for messages.

    The extension decides how it is read: .csv (quoted as in RFC 4180), .tsv and .txt (separated by tabs, without
    quoting), .jsonl and .json (one object per line), each also with .gz, and .parquet.

    Raises InputError: the file is missing, damaged, empty or has another extension; a row has too few or too many
      columns.
    """
    kind = file_kind(path, where)
    if kind == "parquet":
        return _parquet_table(path, where, columns)
    text = read_text(path, where)
    if not text.strip():
        raise InputError(f"{where}: the file is empty")
    if (nul := text.find("\0")) >= 0:  # UTF-16 has one in each letter
        raise InputError(f"{where}: line {text.count(chr(10), 0, nul) + 1} holds a NUL, which is no text")
    if kind == "json":
        return _json_table(text, where, columns)
    return _table(_csv_rows(text, where) if kind == "csv" else _tsv_rows(text), where, columns)


def lines_table(text: str, where: str, columns: Columns) -> Table:
    """A table of lines: each a text, or a text, a tab and a second text. Raises InputError: a line has no tab."""
    names = [name for name in (columns.text, columns.pair) if name is not None]
    lines = text.removesuffix("\n").split("\n") if text.strip() else []
    rows = [line.removesuffix("\r").split("\t", len(names) - 1) for line in lines]
    for number, row in enumerate(rows, 1):
        if len(row) < len(names):
            raise InputError(f"{where}: line {number} has no tab: it must be a text, a tab and a second text")
    return Table(
        where, names, dict(zip(names, zip(*rows, strict=True), strict=bool(rows))), range(1, len(rows) + 1)
    )


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
    try:
        for row in filter(None, reader):
            yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{where}: line {reader.line_num}: broken quotes ({error})") from error


def _table(rows: Records, where: str, wanted: Columns) -> Table:
    """The wanted columns of rows. Raises InputError: a row has too few or too many columns, or a column occurs
    twice."""
    header: list[Name] = [*next(rows)[1]] if wanted.num_columns is None else [*range(wanted.num_columns)]
    places = [(header.index(name), name) for name in wanted.wanted if name in header]
    if repeated := [str(name) for _, name in places if header.count(name) > 1]:
        raise InputError(f"{where}: column {', '.join(repeated)} occurs twice in the header")
    columns: dict[Name, list[str]] = {name: [] for _, name in places}
    lines, num_short = [], 0
    for line, row in rows:
        if len(row) < len(header) and wanted.skips_short_rows:
            num_short += 1
            continue
        if len(row) != len(header):
            expected = "the header" if wanted.num_columns is None else "the published file"
            raise InputError(f"{where}: line {line} has {len(row)} columns, but {expected} has {len(header)}")
        lines.append(line)
        for place, name in places:
            columns[name].append(row[place])
    if num_short > MAX_SHORT_ROWS_SHARE * len(lines):
        num_rows = num_short + len(lines)
        raise InputError(f"{where}: {num_short} of {num_rows} rows have fewer than {len(header)} columns")
    return Table(where, header, columns, lines, num_short_rows=num_short)


def _json_table(text: str, where: str, wanted: Columns) -> Table:
    objects: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                objects[number] = parse_json(line)  # in other columns; in ours it is refused
            except InputError as error:
                raise InputError(f"{where}: line {number}: {error}; each line must be a JSON object") from error
            if not isinstance(objects[number], dict):
                kind = kind_of(objects[number])
                raise InputError(f"{where}: line {number} is {kind}: each line must be a JSON object")
    header = list(dict.fromkeys(name for value in objects.values() for name in value))
    columns: dict[Name, list[Any]] = {name: [] for name in wanted.wanted if name in header}
    for number, value in objects.items():
        for name, values in columns.items():
            if name not in value:
                raise InputError(f"{where}: line {number} has no {name!r}, although other lines have one")
            values.append(value[name])
    return Table(where, header, columns, list(objects))


def _parquet_table(path: Path, where: str, wanted: Columns) -> Table:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            header = file.schema_arrow.names
            table = file.read(columns=[name for name in wanted.wanted if name in header])
            columns = {name: table.column(name).to_pylist() for name in table.column_names}
            return Table(where, header, columns, range(1, file.metadata.num_rows + 1), "row")
    except FileNotFoundError:
        raise InputError(f"{where}: no such file") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: not a Parquet file, or damaged ({one_line(error)})") from error
