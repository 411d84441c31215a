"""Texts and labels for the classifier: of a named task's files, of the hub, or of the user's own
files.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bert.hub import cached_commit, load_data_set
from ringbase.errors import InputError, one_line
from ringbase.files import lines_of, read_standard_input, read_text
from tasks.classifier.named_tasks import FILE_FLAGS, Columns, Labels, NamedTask, Split
from tasks.classifier.settings import STANDARD_INPUT, TextSettings
from tasks.classifier.several import FLAGS, labels_in
from tasks.texts import json_lines

Rows = Iterator[tuple[str, Sequence[Any]]]  # the place of each row, such as "line 7", and its cells

csv.field_size_limit(sys.maxsize)  # the default of 128 KiB is too small for some texts
# A cell that another program has quoted as in CSV: with each quote doubled.
QUOTED = re.compile('"(?:[^"]|"")*""(?:[^"]|"")*"')
IN_QUOTES = "with quotes doubled as in CSV, which .tsv does not undo (save it as .csv)"
SHORT_ROWS = "rows with too few columns left out"
KINDS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "tsv",
    ".jsonl": "json",
    ".json": "json",
    ".parquet": "parquet",
}
MAX_SHORT_ROWS_SHARE = 0.001
# what stands for it in a set to predict
MISSING, NO_LABEL = object(), {"", "?", "-1", "-1.0", "nan"}

# it can be read once, and the runs of all seeds need it
standard_input = functools.cache(read_standard_input)


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
        return (
            self.settings.max_train_examples
            if self.split == "train"
            else self.settings.max_predict_examples
        )

    @property
    def suffix(self) -> str:
        """Of scores and file names: empty but for MNLI's second sets, which run_classifier.py
        lacks."""
        return "_mismatched" if self.split.endswith("_mismatched") else ""

    @property
    def commit(self) -> str | None:
        """The hub's, of the task's data set."""
        if not (self.settings.from_hub and self.task.hub):
            return None
        return cached_commit(
            self.task.hub, self.settings.dataset_revision or self.task.hub_revision
        )

    def files(self) -> list[Path]:
        """The files with the examples; none for the hub."""
        if self.settings.from_hub:
            return []
        if not self.task.name:
            return [Path(self.part.files[0]).expanduser()]
        folder, files = Path(str(self.settings.data_dir)).expanduser(), []
        # --data_dir is the GLUE folder that contains the task's
        if (folder / self.task.folder).is_dir():
            folder = folder / self.task.folder
        for names in self.part.files:
            either = [
                folder / name for name in names.format(language=self.settings.language).split("|")
            ]
            files.append(next(filter(Path.is_file, either), either[0]))
        return files


def sources(settings: TextSettings, task: NamedTask, kind: str) -> list[Source]:
    """The "train", "dev" or "test" sets of a task: two for MNLI's "dev". Raises InputError if there
    is none."""
    names = [name for name in task.splits if name.split("_")[0] == kind]
    if not names:
        raise InputError(
            f"--task_name {task.name} has no {kind} set, only {', '.join(task.splits)}"
        )
    return [Source(settings, task, name) for name in names]


# -- files to rows ---------------------------------------------------------------------------------


def _named(header: Sequence[str], column: str) -> str:
    """The columns of a file that lacks one, and what may be wrong."""
    names, near = ", ".join(header) or "an empty line", get_close_matches(column, header, 1)
    if mark := next((mark for mark in ";|\t" if len(header) == 1 and mark in names), None):
        return (
            f"{names!r}; {mark!r} separates no columns here: save it with commas, or as .tsv with"
            " tabs"
        )
    if "," in column:
        return f"{names}; several columns of labels need --multi_label"
    return names + (f"; did you mean {near[0]!r}?" if near else "")


def _opened(source: Source, counts: Counter[str]) -> Iterator[tuple[str, Sequence[str], Rows]]:
    """For each file, or the data set of the hub, the flag that names it, the header and the rows.
    Counts what the user may not expect.

    The extension decides how a file is read: .csv (quoted as in RFC 4180), .tsv and .txt (separated
    by tabs, without quoting), .jsonl and .json (one object per line), each also with .gz, and
    .parquet."""
    if source.settings.from_hub:
        yield _hub_rows(source)
    for path in source.files():
        where, header = (
            f"--data_dir {path}" if source.task.name else str(source),
            source.part.header,
        )
        is_standard_input = str(path) == STANDARD_INPUT
        kind = (
            "tsv"
            if is_standard_input
            else KINDS.get(Path(path.name.lower().removesuffix(".gz")).suffix)
        )
        if kind is None:
            raise InputError(
                f"{where}: the extension must be {', '.join(KINDS)} (all but .parquet also with"
                " .gz)"
            )
        if kind == "parquet":
            yield where, *_parquet_rows(path, where, source.task.columns)
            continue
        text = standard_input(where) if is_standard_input else read_text(path, where)
        if (nul := text.find("\0")) >= 0:  # UTF-16 has one in each letter
            raise InputError(
                f"{where}: line {text.count(chr(10), 0, nul) + 1} holds a NUL, which is no text"
            )
        if kind == "json":
            yield where, *_json_rows(text, where)
        else:
            # Published files are as they are.
            counts_of_tsv = Counter() if source.task.name or is_standard_input else counts
            rows = (
                _csv_rows(text, where, counts)
                if kind == "csv"
                else _tsv_rows(text, len(header), counts_of_tsv)
            )
            yield where, header or next(rows, ("", ()))[1], rows


def _tsv_rows(text: str, most: int, counts: Counter[str]) -> Rows:
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


def _csv_rows(text: str, where: str, counts: Counter[str]) -> Rows:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for cells in reader:
            if cells:
                yield f"line {reader.line_num}", cells
            else:
                counts["blank lines left out"] += 1
    except csv.Error as error:
        raise InputError(f"{where}: line {reader.line_num}: broken quotes ({error})") from error


def _json_rows(text: str, where: str) -> tuple[Sequence[str], Rows]:
    objects = dict(json_lines(text, where))
    header = list(dict.fromkeys(itertools.chain.from_iterable(objects.values())))
    return header, ((place, [*map(row.get, header)]) for place, row in objects.items())


def _parquet_rows(path: Path, where: str, columns: Columns) -> tuple[Sequence[str], Rows]:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            header = file.schema_arrow.names
            wanted = {columns.text, columns.pair, columns.label, *columns.labels}
            table = file.read(columns=[name for name in header if name in wanted])
            table.validate(full=True)
            values = table.to_pydict()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: cannot be read as Parquet ({one_line(error)})") from error
    return header, _numbered([values.get(name, itertools.repeat(None)) for name in header])


def _hub_rows(source: Source) -> tuple[str, Sequence[str], Rows]:
    """A split of a hub data set, with labels as the task spells them."""
    task, settings, split = source.task, source.settings, source.part.hub
    if task.hub is None:
        raise InputError(
            f"--task_name {task.name} has no known data set on the hub; give --data_dir"
        )
    config = task.hub_config and task.hub_config.format(language=settings.language)
    where = f"--task_name {task.name}: {task.hub}{f' {config}' if config else ''}"
    data = load_data_set(
        task.hub, config, split, where, settings.dataset_revision, task.hub_revision
    )
    columns = {name: data[name][:] for name in data.column_names}
    label = task.columns.label.split("|")[-1]
    if all(value in (-1, None) for value in columns.get(label, ())):
        columns.pop(label, None)  # GLUE's test sets
    elif task.labels not in (None, ("0", "1")) and hasattr(data.features[label], "names"):
        columns[label] = [data.features[label].names[value] for value in columns[label]]
    return f"{where} ({split})", list(columns), _numbered([*columns.values()])


def _numbered(columns: Sequence[Iterable[Any]]) -> Rows:
    return ((f"row {number}", cells) for number, cells in enumerate(zip(*columns, strict=False), 1))


# -- rows to texts ---------------------------------------------------------------------------------


class Texts(NamedTuple):
    """The examples of a set, in its order. An example may have an empty text."""

    first: list[str]
    second: list[str] | None  # None without pairs
    # As the task spells them; tuples where a text has several; numbers for regression; None without
    # labels.
    labels: list[Any] | None
    ids: list[str]  # those in the file, or the numbers from 0
    counts: Mapping[str, int] = {}  # of what the user may not expect, by its description


@dataclass(frozen=True)
class Column:
    """A column that is read: its name, or several with | between them; None where a task has
    none."""

    name: str | None
    convert: Callable[[Any], Any]  # of a cell; None if it is not as `expected`
    expected: str
    is_needed: bool = True
    values: list[Any] = field(default_factory=list)

    def index_in(self, header: Sequence[str], where: str) -> int | None:
        """Where it is in a file. Raises InputError: it is needed and not there, or it is there
        twice."""
        if not self.name:
            return None
        present = [name for name in (self.name, *self.name.split("|")) if name in header]
        if present and header.count(present[0]) > 1:
            raise InputError(f"{where}: column {present[0]!r} occurs twice in the header")
        if not present and self.is_needed:
            raise InputError(f"{where}: no column {self.name!r}, only {_named(header, self.name)}")
        return header.index(present[0]) if present else None

    def read(self, cell: Any, place: str) -> None:
        value = self.convert(cell)
        if value is None:
            raise InputError(f"{place}: {self.name} must be {self.expected}, got {cell!r:.80}")
        self.values.append(value)


def read(source: Source, labels: Labels = ()) -> Texts:
    """The examples of a set, at most as many as the flags say. A label must be one of `labels`, if
    there are any, or for regression a finite number. In a set to predict it may be missing."""
    columns, language, counts = source.task.columns, source.settings.language, Counter[str]()
    first, second = (
        Column(columns.text, _string, "a string"),
        Column(columns.pair, _string, "a string"),
    )
    ids = Column(columns.id, str, "", is_needed=False)
    label, a_label = _label_of(source, labels)
    names = columns.labels or (columns.label,)
    of_labels = [Column(name, label, a_label, source.needs_labels) for name in names]
    num_rows, languages = 0, set[str]()
    for where, header, rows in _opened(source, counts):
        indices = [
            (column, column.index_in(header, where)) for column in (first, second, *of_labels, ids)
        ]
        used = [(column, index) for column, index in indices if index is not None]
        of_language = header.index(columns.language) if columns.language in header else None
        for place, cells in rows:
            if num_rows == source.limit:
                break
            if len(cells) < len(header) and columns.skips_short_rows:
                counts[SHORT_ROWS] += 1
            elif len(cells) != len(header):
                size = f"{len(cells)} columns, {len(header)} are needed"
                raise InputError(f"{where}: {place} has {size}{_open_quote(cells, where)}")
            elif of_language is not None and cells[of_language] != language:
                languages.add(cells[of_language])
            else:
                num_rows += 1
                for column, index in used:
                    column.read(cells[index], f"{where}: {place}")
    if not num_rows:
        others = (
            f" in --language {language}, only {', '.join(sorted(languages))}" if languages else ""
        )
        raise InputError(f"{where} has no row with a text{others}")
    if counts[SHORT_ROWS] > MAX_SHORT_ROWS_SHARE * num_rows:
        of_all = f"{counts[SHORT_ROWS]} of {counts[SHORT_ROWS] + num_rows}"
        raise InputError(f"{where}: {of_all} rows have too few columns")
    found = _labels_of_examples(of_labels, source, labels)
    if missing := sum(value is MISSING for value in found):
        counts["without a label, so there are no scores"] = missing
        found = []
    numbers = [*map(str, range(num_rows))]
    return Texts(
        first.values, second.values or None, found or None, ids.values or numbers, dict(counts)
    )


def _labels_of_examples(columns: Sequence[Column], source: Source, labels: Labels) -> list[Any]:
    """The label, or labels, of each example, MISSING where a set to predict has none; [] without a
    column."""
    names, found = source.task.columns.labels, columns[0].values
    if names and found:
        if labels and (unknown := [name for name in names if name not in labels]):
            raise InputError(
                f"{source}: the model has no label {unknown[0]!r}, only {', '.join(labels)}"
            )
        rows = zip(*(column.values for column in columns), strict=True)
        return [
            MISSING if MISSING in flags else tuple(itertools.compress(names, flags))
            for flags in rows
        ]
    # What stands for no label at all may also be read as one: no labels in a list, -1 as a number.
    nothing = () if source.task.has_several else -1.0 if source.task.labels is None else MISSING
    if not source.needs_labels and all(value in (nothing, MISSING) for value in found):
        return [MISSING] * len(found)
    return found


def _open_quote(cells: Sequence[str], where: str) -> str:
    """What may be wrong with a row that has another number of columns than the header."""
    is_open = any(cell.count('"') % 2 for cell in cells)
    if not is_open or where.removesuffix(".gz").endswith(".csv"):
        return ""
    return ": quotes do not join lines or columns in .tsv: save it as .csv or .jsonl"


# Of a cell each makes the value, or None if it is not as expected.


def _label_of(source: Source, labels: Labels) -> tuple[Callable[[Any], Any], str]:
    """What makes a label of a cell, and what is expected there."""
    convert, expected = _needed_label_of(source.task, labels)

    def label_or_missing(value: Any) -> Any:
        found = convert(value)
        text = "" if value is None else str(value).strip()
        return MISSING if found is None and text in NO_LABEL else found

    return (convert if source.needs_labels else label_or_missing), expected


def _needed_label_of(task: NamedTask, labels: Labels) -> tuple[Callable[[Any], Any], str]:
    if task.labels is None:
        return _number, "a finite number for regression"
    if task.columns.labels:
        return (lambda value: FLAGS.get(str(value))), "0 or 1"
    known, of_known = set(labels or ()), ", ".join(labels or ())
    if task.has_several:
        a_list = "with commas between labels, or a JSON list"
        return partial(labels_in, known=known), (
            f"some of {of_known}, {a_list}" if known else f"labels, {a_list}"
        )

    def label(value: Any) -> str | None:
        is_label = (
            isinstance(value, str | int | float) and str(value).strip() != "" and value == value
        )
        name = task.spellings.get(str(value), str(value)) if is_label else None
        return name if not known or name in known else None

    return label, f"one of {of_known}" if known else "a label"


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    try:
        number = float(str(value))  # "True" is no number
    except ValueError:
        return None
    return number if math.isfinite(number) else None
