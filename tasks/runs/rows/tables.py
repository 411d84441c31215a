"""Rows of tables: of CSV, TSV, JSON lines and Parquet files, of standard input, and of data sets of
the hub.

Files are not repaired: a row with too few or too many columns, a broken quote, or a byte that is
not UTF-8 is an error that names the line. pyarrow reads Parquet only: its readers of CSV and JSON
repair broken quotes, give numbers of rows instead of lines, take "2020-01-01" for a date, and
refuse labels of which some are numbers.
"""

import csv
import functools
import io
import itertools
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ringbase.errors import InputError, one_line
from ringbase.files import STANDARD_INPUT, lines_of, parse_json, read_standard_input, read_text
from ringbase.settings import shown

Rows = Iterator[tuple[str, dict[Any, Any]]]  # where each stands, "line 7", and cells by column
Lines = Iterator[tuple[str, list[str]]]  # the same, without the names of the columns

csv.field_size_limit(sys.maxsize)  # the default of 128 KiB is too small for some texts
TEXT_ENDINGS = (".csv", ".tsv", ".txt", ".jsonl", ".json")  # also with .gz
# A cell that another program has quoted as in CSV: with each quote doubled.
QUOTED = re.compile('"(?:[^"]|"")*""(?:[^"]|"")*"')
IN_QUOTES = "with quotes doubled as in CSV, which .tsv does not undo (save it as .csv)"
NO_QUOTES = ": quotes do not join lines or columns in .tsv: save it as .csv or .jsonl"
SHORT_ROWS = "rows with too few columns left out"
ROWS_AT_ONCE = 1000  # of a data set of the hub

# it can be read once, and the runs of all seeds need it
standard_input = functools.cache(read_standard_input)


class Table(NamedTuple):
    """The columns and the rows of a file or a data set. Rows are read once, as they are asked
    for."""

    where: str  # for messages: the flag that names it, and its name
    header: Sequence[str]
    rows: Rows  # without a column of the header where a line of JSON lacks it
    counts: Mapping[str, int] = {}  # of what the user may not expect in the rows read so far

    def find(self, column: str, flag: str = "", is_needed: bool = True) -> str | None:
        """The column's name in this table; of several names with | between them the first that it
        has. `flag` is the user's, which may name another. Raises InputError: the column is needed
        and not there, or it is there twice."""
        for name in names_in(column):
            if self.header.count(name) > 1:
                raise InputError(f"{self.where}: column {name!r} occurs twice in the header")
            if name in self.header:
                return name
        if is_needed:
            by_flag = flag and f" ({flag})"
            others = self._others(column)
            raise InputError(f"{self.where}: no column {column!r}{by_flag}, only {others}")
        return None

    def _others(self, column: str) -> str:
        """The columns that there are, and what may be wrong."""
        names = ", ".join(self.header) or "an empty line"
        for mark in ";|\t":
            if mark in names and len(self.header) == 1:
                return (
                    f"{names!r}; {mark!r} separates no columns here: save it with commas, or as"
                    " .tsv with tabs"
                )
        if "," in column:
            return f"{names}; several columns of labels need --multi_label"
        near = get_close_matches(column, self.header, 1)
        return names + (f"; did you mean {near[0]!r}?" if near else "")


def names_in(column: str) -> tuple[str, ...]:
    """The names that a column may have: its own, which may hold a |, or those between them."""
    return (column, *column.split("|"))


def ending_of(path: Path) -> str:
    """The end of a file's name in lower case, before a .gz: it decides how the file is read."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def open_table(
    path: Path,
    where: str,
    columns: Sequence[str | None],
    header: Sequence[str] = (),
    skips_short_rows: bool = False,
) -> Table:
    """The table in a file or standard input. Raises InputError, its message starting with `where`.

    .csv is quoted as in RFC 4180; .tsv, .txt and standard input have tabs and no quotes; .jsonl and
    .json have an object per line; of .parquet only these `columns` are read. `header` has the names
    of all columns of a text without such a line; the last cell of its lines may hold tabs.
    """
    is_file = str(path) != STANDARD_INPUT
    ending = ending_of(path) if is_file else ".tsv"
    if ending in BINARY_FORMATS:
        return BINARY_FORMATS[ending](path, where, columns)
    if ending not in TEXT_ENDINGS:
        binary = ", ".join(BINARY_FORMATS)
        endings = ", ".join((*TEXT_ENDINGS, *BINARY_FORMATS))
        raise InputError(
            f"{where}: the extension must be {endings} (all but {binary} also with .gz)"
        )
    text = read_text(path, where) if is_file else standard_input(where)
    nul = text.find("\0")
    if nul >= 0:  # UTF-16 has one in each letter
        line = text.count("\n", 0, nul) + 1
        raise InputError(f"{where}: line {line} holds a NUL, which is no text")
    if ending in (".jsonl", ".json"):
        return _of_json(text, where)
    counts = Counter[str]()
    if ending == ".csv":
        lines = _csv_lines(text, where, counts)
    else:
        lines = _tsv_lines(text, len(header), counts)
    if not header:
        _, header = next(lines, ("", ()))

    def rows() -> Rows:
        for place, cells in lines:
            if len(cells) == len(header):
                yield place, dict(zip(header, cells, strict=True))
            elif len(cells) < len(header) and skips_short_rows:
                counts[SHORT_ROWS] += 1
            else:
                size = f"{len(cells)} columns, {len(header)} are needed"
                is_open = any(cell.count('"') % 2 for cell in cells)
                advice = NO_QUOTES if is_open and ending != ".csv" else ""
                raise InputError(f"{where}: {place} has {size}{advice}")

    return Table(where, header, rows(), counts)


def _csv_lines(text: str, where: str, counts: Counter[str]) -> Lines:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for cells in reader:
            if cells:
                yield f"line {reader.line_num}", cells
            else:
                counts["blank lines left out"] += 1
    except csv.Error as error:
        raise InputError(f"{where}: line {reader.line_num}: broken quotes ({error})") from error


def _tsv_lines(text: str, most: int, counts: Counter[str]) -> Lines:
    """The cells of each line; the last of at most `most` may hold tabs. Blank lines are allowed at
    the end only, where a file has several columns."""
    lines = lines_of(text)
    if not lines[-1]:  # behind the last line's end
        lines.pop()
    has_columns = most != 1 and bool(lines) and "\t" in lines[0]
    while has_columns and not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        cells = line.split("\t", most - 1)
        if '""' in line and any(map(QUOTED.fullmatch, cells)):
            counts[IN_QUOTES] += 1
        yield f"line {number}", cells


def _of_json(text: str, where: str) -> Table:
    rows = {}
    for number, line in enumerate(lines_of(text), 1):
        if line.strip():
            try:
                value = parse_json(line)
                if not isinstance(value, dict):
                    raise InputError(f"it is {shown(value)}")
            except InputError as error:
                raise InputError(
                    f"{where}: line {number}: {error}; each line must be a JSON object"
                ) from error
            rows[f"line {number}"] = value
    header = dict.fromkeys(itertools.chain.from_iterable(rows.values()))
    return Table(where, list(header), iter(rows.items()))


def _of_parquet(path: Path, where: str, columns: Sequence[str | None]) -> Table:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            header = file.schema_arrow.names
            names = {name for column in columns if column for name in names_in(column)}
            table = file.read(columns=[name for name in header if name in names])
            table.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: cannot be read as Parquet ({one_line(error)})") from error
    return Table(where, header, _numbered(table.to_batches()))


# by their endings
BINARY_FORMATS = {".parquet": _of_parquet}


def of_data_set(data: Any, where: str, classes: Sequence[str] = ()) -> Table:
    """The table in a `datasets.Dataset`. The columns `classes` have names where it has the numbers
    of classes."""
    names_of = {}
    for column in classes:
        feature = data.features.get(column)
        of_item = getattr(feature, "feature", feature)  # of a list
        if hasattr(of_item, "names"):
            names_of[column] = of_item.names

    def rows() -> Rows:
        batches = data.with_format("arrow").iter(ROWS_AT_ONCE)
        for place, row in _numbered(batches):
            for column, names in names_of.items():
                row[column] = _named(row[column], names)
            yield place, row

    return Table(f"{where} ({data.split})", data.column_names, rows())


def _named(value: Any, names: Sequence[str]) -> Any:
    """The name of a class, or those in a list. -1, which stands for none, has no name."""
    if isinstance(value, list):
        return [_named(each, names) for each in value]
    return names[value] if value in range(len(names)) else value and str(value)


def number_in(cell: Any) -> float | None:
    """The finite number in a cell; None if it holds something else."""
    try:
        number = float(str(cell))  # "True" is no number
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _numbered(batches: Any) -> Rows:
    """The rows of batches of Arrow."""
    rows = (row for batch in batches for row in batch.to_pylist())
    return ((f"row {number}", row) for number, row in enumerate(rows, 1))
