"""Texts and labels for the classifier: of a named task's files, of the hub, or of the user's own files.

Files are not repaired: a row with too few or too many columns, a broken quote, or a byte that is not UTF-8 is an
error that names the line. pyarrow reads Parquet only: its readers of CSV and JSON repair broken quotes, give
numbers of rows instead of lines, take "2020-01-01" for a date, and refuse labels of which some are numbers.
"""

import csv
import functools
import io
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bert.hub import load_data_set
from ringbase.errors import InputError, one_line
from ringbase.files import read_standard_input, read_text
from ringbase.json_files import parse_json
from ringbase.settings import shown
from tasks.classifier.named_tasks import FILE_FLAGS, Columns, Hub, Labels, Name, NamedTask, Split
from tasks.classifier.settings import STANDARD_INPUT, TextSettings

csv.field_size_limit(sys.maxsize)  # the default of 128 KiB is too small for some texts
KINDS = {".csv": "csv", ".tsv": "tsv", ".txt": "tsv", ".jsonl": "json", ".json": "json", ".parquet": "parquet"}
MAX_SHORT_ROWS_SHARE = 0.001

Cells = Iterator[tuple[str, list[str]]]  # "line 7" and its cells

standard_input = functools.cache(read_standard_input)  # it can be read once, and the runs of all seeds need it


@dataclass(frozen=True)
class Source:
    """A set of a task, by its name in `task.splits`, and where `settings` say that it is."""

    settings: TextSettings
    task: NamedTask
    split: str

    def __str__(self) -> str:
        """For messages: the flag that names the data, and the data."""
        if not self.task.name:
            return f"--{FILE_FLAGS[self.split]} {self.part.files[0]}"
        place = "--from_hub" if self.settings.from_hub else f"--data_dir {self.settings.data_dir}"
        return f"--task_name {self.task.name} {place} ({self.split})"

    @property
    def part(self) -> Split:
        return self.task.splits[self.split]

    @property
    def needs_labels(self) -> bool:
        return not self.split.startswith("test")

    @property
    def limit(self) -> int | None:
        return self.settings.max_train_examples if self.split == "train" else self.settings.max_predict_examples

    def files(self) -> list[Path]:
        """The files with the examples; none for the hub. Raises InputError: one is missing."""
        if self.settings.from_hub:
            return []
        if not self.task.name:
            return [Path(self.part.files[0]).expanduser()]
        folder, files = Path(str(self.settings.data_dir)).expanduser(), []
        if (folder / self.task.folder).is_dir():  # --data_dir is the GLUE folder that contains the task's
            folder = folder / self.task.folder
        for names in self.part.files:
            either = names.format(language=self.settings.language).split("|")
            present = [folder / name for name in either if (folder / name).is_file()]
            if not present:
                missing = f"no file {' or '.join(either)}, which --task_name {self.task.name} needs"
                raise InputError(f"--data_dir {folder}: {missing}")
            files.append(present[0])
        return files


def sources(settings: TextSettings, task: NamedTask, kind: str) -> list[Source]:
    """The "train", "dev" or "test" sets of a task: two for MNLI's "dev". Raises InputError if there is none."""
    names = [name for name in task.splits if name.split("_")[0] == kind]
    if not names:
        raise InputError(f"--task_name {task.name} has no {kind} set, only {', '.join(task.splits)}")
    return [Source(settings, task, name) for name in names]


# -- files to tables ----------------------------------------------------------------------------------------------


class Table(NamedTuple):
    """The wanted columns of a file."""

    where: str  # the flag and the file
    header: list[Any]  # the names of all its columns
    columns: Mapping[Any, list[Any]]
    places: Sequence[str]  # "line 7" for each row
    num_short_rows: int = 0  # rows with too few columns, which are left out


def read_table(path: Path, where: str, columns: Columns) -> Table:
    """The extension decides how a file is read: .csv (quoted as in RFC 4180), .tsv and .txt (separated by tabs,
    without quoting), .jsonl and .json (one object per line), each also with .gz, and .parquet."""
    is_standard_input = str(path) == STANDARD_INPUT
    kind = "tsv" if is_standard_input else KINDS.get(Path(path.name.lower().removesuffix(".gz")).suffix)
    if kind is None:
        raise InputError(f"{where}: the extension must be {', '.join(KINDS)} (all but .parquet also with .gz)")
    if kind == "parquet":
        return _parquet_table(path, where, columns)
    text = standard_input(where) if is_standard_input else read_text(path, where)
    if not text.strip():
        raise InputError(f"{where}: the file is empty")
    if (nul := text.find("\0")) >= 0:  # UTF-16 has one in each letter
        raise InputError(f"{where}: line {text.count(chr(10), 0, nul) + 1} holds a NUL, which is no text")
    if kind == "json":
        objects = dict(_json_objects(text, where))
        header = list(dict.fromkeys(itertools.chain.from_iterable(objects.values())))
        values = {n: [row.get(n) for row in objects.values()] for n in columns.names if n in header}
        return Table(where, header, values, [*objects])
    cells = _csv_cells(text, where) if kind == "csv" else _tsv_cells(text, columns.num_columns or 0)
    names: list[Any] = next(cells)[1] if columns.num_columns is None else [*range(columns.num_columns)]
    return _table(cells, where, names, columns)


def _tsv_cells(text: str, most: int) -> Cells:
    """The cells of each line; the last of at most `most` may hold tabs.

    Only a line feed ends a row, because texts hold characters such as U+2028 at which `str.splitlines` splits.
    Blank lines are allowed at the end only, where a file has several columns.
    """
    has_columns = most != 1 and "\t" in text.split("\n", 1)[0]
    lines = (text.rstrip("\r\n") if has_columns else text.removesuffix("\n")).split("\n")
    for number, line in enumerate(lines, 1):
        yield f"line {number}", line.removesuffix("\r").split("\t", most - 1)


def _csv_cells(text: str, where: str) -> Cells:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for cells in filter(None, reader):
            yield f"line {reader.line_num}", cells
    except csv.Error as error:
        raise InputError(f"{where}: line {reader.line_num}: broken quotes ({error})") from error


def _table(cells: Cells, where: str, header: list[Any], columns: Columns) -> Table:
    indices = {name: header.index(name) for name in columns.names if name in header}
    values: dict[Name, list[str]] = {name: [] for name in indices}
    places, num_short_rows = [], 0
    for place, row in cells:
        if len(row) == len(header):
            places.append(place)
            for name, index in indices.items():
                values[name].append(row[index])
        elif len(row) < len(header) and columns.skips_short_rows:
            num_short_rows += 1
        else:
            raise InputError(f"{where}: {place} has {len(row)} columns, {len(header)} are needed")
    return Table(where, header, values, places, num_short_rows)


def _json_objects(text: str, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                value = parse_json(line)  # in other columns; in ours it is refused
                if not isinstance(value, dict):
                    raise InputError(f"it is {shown(value)}")
            except InputError as error:
                raise InputError(f"{where}: line {number}: {error}; each line must be a JSON object") from error
            yield f"line {number}", value


def _parquet_table(path: Path, where: str, columns: Columns) -> Table:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            header = file.schema_arrow.names
            table = file.read(columns=[name for name in columns.names if name in header])
            table.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: cannot be read as Parquet ({one_line(error)})") from error
    return Table(where, header, table.to_pydict(), [f"row {row}" for row in range(1, table.num_rows + 1)])


def _hub_table(source: Source, hub: Hub | None) -> Table:
    """A split of a hub data set, with labels as the task spells them."""
    settings, task, split = source.settings, source.task, source.part.hub
    if hub is None:
        raise InputError(f"--task_name {task.name} has no known data set on the hub; give --data_dir")
    config = hub.config and hub.config.format(language=settings.language)
    where = f"--task_name {task.name}: {hub.name}{f' {config}' if config else ''}"
    try:
        data = load_data_set(hub.name, config, split, where, settings.dataset_revision, hub.revision)
    except InputError as error:
        raise InputError(f"{error}; or give --data_dir") from error
    columns: dict[Name, Any] = {name: data[name][:] for name in hub.columns.names if name in data.column_names}
    label = hub.columns.label
    if all(value in (-1, None) for value in columns.get(label, ())):
        columns.pop(label, None)  # GLUE's test sets
    elif task.labels not in (None, ("0", "1")) and hasattr(data.features[label], "names"):
        columns[label] = [data.features[label].names[value] for value in columns[label]]
    places = [f"row {row}" for row in range(1, len(data) + 1)]
    return Table(f"{where} ({split})", list(columns), columns, places)


# -- tables to texts ----------------------------------------------------------------------------------------------


class Texts(NamedTuple):
    """The examples of a set, in its order. An example may have an empty text."""

    first: list[str]
    second: list[str] | None  # None without pairs
    labels: list[str] | list[float] | None  # as the task spells them; numbers for regression; None without labels
    ids: list[str]  # those in the file, or the numbers from 0
    num_short_rows: int = 0  # rows with too few columns, which are left out


def read(source: Source, labels: Labels = ()) -> Texts:
    """The examples of a set, at most as many as --max_train_examples or --max_predict_examples say.

    Raises InputError for what cannot be read, has another number of columns or a wrong value. A label must be one
    of `labels`, if there are any, or for regression a finite number.
    """
    settings, spellings, hub = source.settings, source.task.spellings, source.task.hub
    columns = hub.columns if settings.from_hub and hub else source.part.columns
    tables = [_hub_table(source, hub)] if settings.from_hub else []
    for path in source.files():
        tables.append(read_table(path, f"--data_dir {path}" if source.task.name else str(source), columns))
    places = [f"{table.where}: {place}" for table in tables for place in table.places]
    where, header, num_short_rows = tables[0].where, tables[0].header, tables[0].num_short_rows
    if num_short_rows > MAX_SHORT_ROWS_SHARE * len(places):
        raise InputError(f"{where}: {num_short_rows} of {num_short_rows + len(places)} rows have too few columns")

    def values(name: Name | None, expected: str, convert: Callable[[Any], Any]) -> list[Any]:
        """A column. `convert` makes None of a value that is not as `expected`."""
        for table in tables:
            if name not in table.header:
                raise InputError(f"{table.where}: no column {name!r}, only {', '.join(map(str, table.header))}")
            if table.header.count(name) > 1:
                raise InputError(f"{table.where}: column {name} occurs twice in the header")
        raw = [*itertools.chain(*(table.columns[name] for table in tables))]
        converted = [convert(raw[row]) for row in rows]
        if None in converted:
            row = rows[converted.index(None)]
            raise InputError(f"{places[row]}: {name} must be {expected}, got {raw[row]!r:.80}")
        return converted

    def label(value: Any) -> str | None:
        is_label = isinstance(value, str | int | float) and value != "" and value == value
        name = spellings.get(str(value), str(value)) if is_label else None
        return name if not labels or name in labels else None

    rows: Sequence[int] = range(len(places))
    if columns.language:
        languages = values(columns.language, "a string", _string)
        rows = [row for row in rows if languages[row] == settings.language]
        if not rows:
            known = ", ".join(sorted(set(languages)))
            raise InputError(f"{where}: no row in --language {settings.language}, only {known}")
    if not rows:
        raise InputError(f"{where} has no row with a text")
    rows = rows[: source.limit]
    of_label: tuple[str, Callable] = (f"one of {', '.join(labels)}" if labels else "a label", label)
    if source.task.labels is None:
        of_label = "a finite number for regression", _number
    return Texts(
        first=values(columns.text, "a string", _string),
        second=None if columns.pair is None else values(columns.pair, "a string", _string),
        labels=values(columns.label, *of_label) if source.needs_labels or columns.label in header else None,
        ids=values(columns.id, "an id", str) if columns.id in header else [str(row) for row in range(len(rows))],
        num_short_rows=num_short_rows,
    )


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
