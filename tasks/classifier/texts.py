"""Texts and labels for the classifier, read and checked.

The files of named tasks are read as published: tab-separated, without quoting. The user's own files are CSV
(quoted as in RFC 4180), TSV (without quoting: a quotation mark is text), JSON lines or Parquet, with a header or
keys.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bert.hub import load_data_set
from ringbase.errors import InputError
from tasks.classifier.files import Table, lines_of_standard_input, read_table, read_tsv, unit
from tasks.classifier.tasks import Columns, Task
from tasks.texts import is_unicode

LONGEST_NUMBER = 1000  # digits of a label that is compared as a number; Python converts 4300 at most


@dataclass(frozen=True)
class Texts:
    """The examples of a file or split, in its order. An example may have an empty text.

    Attributes:
      source: the file or data set, for messages.
      ids: the id of each example in the file, or its number from 0.
      first, second: the texts; `second` is None without pairs.
      labels: as written in the data (float for regression); None without labels.
      places: for each file its name and the line or row numbers (from 1) of its examples.
      num_short_rows: how many rows were left out because they have too few columns (`Task.skips_short_rows`).
    """

    source: str
    ids: list[str]
    first: list[str]
    second: list[str] | None
    labels: list[str] | list[float] | None
    places: tuple[tuple[str, Sequence[int]], ...] = ()
    num_short_rows: int = 0

    def __len__(self) -> int:
        return len(self.first)

    def place(self, number: int) -> str:
        """Where example `number` (from 0) is in the files, such as "train.tsv: line 7"."""
        for file, lines in self.places:
            if number < len(lines):
                return f"{file}: {unit(file)} {lines[number]}"
            number -= len(lines)
        return f"{self.source}: row {number + 1}"

    def head(self, limit: int | None) -> "Texts":
        """The first `limit` examples; all if `limit` is None."""
        second, labels = self.second and self.second[:limit], self.labels and self.labels[:limit]
        return replace(self, ids=self.ids[:limit], first=self.first[:limit], second=second, labels=labels)


# -- named tasks --------------------------------------------------------------------------------------------------


def read_task(task: Task, data_dir: str, split: str, language: str = "en") -> Texts:
    """Reads a split ("train", "dev", "test" or one of `task.splits`) from the folder of a named task.

    `data_dir` is the task's folder or the GLUE folder that contains it. Labels are None if the files have none.

    Raises InputError: a file or column is missing, a row has another number of columns, a score is not a number,
      the text is not UTF-8, or the file has no examples in the language.
    """
    part = task.split(split)
    folder = Path(data_dir).expanduser()
    if (folder / task.folder).is_dir():
        folder = folder / task.folder
    columns, is_labelled, read = part.columns, not split.startswith("test"), []
    for name in part.files:
        path = _present(task, folder, [spelling.format(language=language) for spelling in (name, *part.instead)])
        table = read_tsv(
            path,
            f"--data_dir {path}",
            _wanted(columns),
            columns.num_columns,
            task.skips_short_rows,
            columns.is_quoted,
        )
        if columns.language is not None:
            table = _in_language(table, columns.language, language)
        read.append(_texts(table, str(path), columns, task.is_regression, is_labelled, task.spellings))
    return _joined(read)


def read_task_hub(task: Task, split: str, language: str = "en", revision: str | None = None) -> Texts:
    """Reads a split from the hub with `datasets`. Raises InputError: there is no such data set, revision, split or
    column."""
    part, hub = task.split(split), task.hub
    if hub is None or part.hub is None:
        raise InputError(f"--task_name {task.name} has no known data set on the hub; give --data_dir")
    config = hub.config and hub.config.format(language=language)
    where = f"{hub.name}{f' {config}' if config else ''}"
    flags = f"--task_name {task.name}: {where}"
    try:
        data = load_data_set(hub.name, config, part.hub, flags, revision, hub.revision)
    except InputError as error:
        raise InputError(f"{error}; or give --data_dir") from error
    where += f" ({part.hub})"
    columns: dict[str | int, Sequence[Any]] = {name: data[name][:] for name in data.column_names}
    if hub.label in columns:
        values = columns[hub.label]
        if all(value in (-1, None) for value in values):
            del columns[hub.label]  # GLUE's test sets
        elif not task.is_regression and task.labels != ("0", "1"):
            to_text = getattr(data.features[hub.label], "int2str", str)
            columns[hub.label] = [to_text(value) if isinstance(value, int) else value for value in values]
    table = Table(f"--task_name {task.name}: {where}", tuple(columns), columns, range(1, len(data) + 1))
    names = Columns(hub.text, hub.pair, hub.label, hub.id)
    return _texts(table, where, names, task.is_regression, not split.startswith("test"), task.spellings)


def _present(task: Task, folder: Path, names: Sequence[str]) -> Path:
    """The first of these files that exists."""
    for name in names:
        if (folder / name).is_file():
            if name == "msr_paraphrase_train.txt" and (folder / "dev.tsv").is_file():
                raise InputError(
                    f"--data_dir {folder}: {name} holds the examples of dev.tsv too; train.tsv is needed"
                )
            return folder / name
    raise InputError(
        f"--data_dir {folder}: no file {' or '.join(names)}, which --task_name {task.name} needs"
        + ("" if folder.is_dir() else "; the folder does not exist")
    )


def _in_language(table: Table, column: str, language: str) -> Table:
    """The rows of a table that are in this language."""
    values = table.column(column)
    rows = [row for row, value in enumerate(values) if value == language]
    if not rows:
        raise InputError(f"{table.where}: no row in --language {language}, only {', '.join(sorted(set(values)))}")
    return table.take(rows)


def _joined(read: Sequence[Texts]) -> Texts:
    """The examples of several files as one."""
    if len(read) == 1:
        return read[0]
    unlabelled = [texts.source for texts in read if texts.labels is None]
    if 0 < len(unlabelled) < len(read):
        raise InputError(f"--data_dir {unlabelled[0]}: no labels, although the split's other files have some")

    def all_of(name: str) -> Any:
        return None if getattr(read[0], name) is None else [value for t in read for value in getattr(t, name)]

    return Texts(
        " + ".join(texts.source for texts in read),
        [str(number) for number in range(sum(map(len, read)))],
        all_of("first"),
        all_of("second"),
        all_of("labels"),
        tuple(place for texts in read for place in texts.places),
        sum(texts.num_short_rows for texts in read),
    )


# -- the user's own files -----------------------------------------------------------------------------------------


def read_file(
    path: str, flag: str, columns: Columns, *, numeric_labels: bool = False, needs_labels: bool = False
) -> Texts:
    """Reads a file with named columns. The extension decides how: .csv, .tsv, .txt (read as .tsv), .jsonl, .json
    (one object per line), each also with .gz, and .parquet. `flag` is the flag that named the file. Labels are
    None if the file has no column of labels, unless `needs_labels`.

    Raises InputError: the file is missing, damaged, empty or has another extension; a column is missing; a row has
      too few or too many columns; a label is empty; a text is not a string; with `numeric_labels`, a label is not
      a finite number.
    """
    table = read_table(Path(path).expanduser(), f"{flag} {path}", _wanted(columns))
    return _texts(table, path, columns, numeric_labels, needs_labels)


def read_standard_input(columns: Columns) -> Texts:
    """The lines of standard input; raises InputError as `read_file`. They can be read once."""
    pair = [] if columns.pair is None else [columns.pair]
    table = lines_of_standard_input("standard input (--predict_file -)", [columns.text, *pair])
    return _texts(table, "standard input", columns, is_regression=False, needs_labels=False)


def _wanted(columns: Columns) -> list[str | int]:
    """The columns to read."""
    names = (columns.text, columns.pair, columns.label, columns.id, columns.language)
    return list(dict.fromkeys(name for name in names if name not in (None, "")))


# -- columns to texts ---------------------------------------------------------------------------------------------


def _texts(
    table: Table,
    source: str,
    columns: Columns,
    is_regression: bool,
    needs_labels: bool,
    spellings: Mapping[str, str] | None = None,
) -> Texts:
    """The examples in the rows of a table."""
    if not table.lines:
        raise InputError(f"{table.where}: the file has no row after its header")
    first = _checked_texts(table, columns.text)
    second = None if columns.pair is None else _checked_texts(table, columns.pair)
    labels: list[str] | list[float] | None = None
    if needs_labels or columns.label in table.columns:
        values = table.column(columns.label)
        places = [f"{table.where}: {unit(source)} {line}: {columns.label}" for line in table.lines]
        if is_regression:
            labels = list(map(_number, values, places))
        else:
            labels = [(spellings or {}).get(text, text) for text in map(_label, values, places)]
    has_ids = columns.id in table.columns
    ids = [str(name) for name in (table.column(columns.id) if has_ids else range(len(first)))]
    return Texts(source, ids, first, second, labels, ((source, table.lines),), table.num_short_rows)


def _checked_texts(table: Table, column: str | int) -> list[str]:
    """The values of a column. Raises InputError if one is not a string of valid Unicode."""
    values = table.column(column)
    for value, line in zip(values, table.lines, strict=True):
        if isinstance(value, str) and (value.isascii() or is_unicode(value)):
            continue
        place = f"{table.where}: {unit(table.where)} {line}: {column}"
        if isinstance(value, str):
            raise InputError(f"{place} holds half a surrogate pair, which is not Unicode")
        raise InputError(f"{place} must be a string, got {value!r}"[:300])
    return list(values)


def _label(value: Any, where: str) -> str:
    if value in (None, "") or not isinstance(value, str | int | float) or value != value:  # the last: NaN
        raise InputError(f"{where} must be a label, got {value!r:.80}")
    return str(value)


def _number(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or isinstance(value, bool):
        raise InputError(f"{where} must be a finite number for regression, got {value!r:.80}")
    return number


# -- labels -------------------------------------------------------------------------------------------------------


def labels_of(texts: Texts) -> list[str]:
    """The labels that occur, sorted as numbers if all are whole numbers, else as texts."""
    labels = {str(label) for label in texts.labels or ()}
    if all(label.removeprefix("-").isdecimal() and len(label) < LONGEST_NUMBER for label in labels):
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)


def check_labels(texts: Texts, labels: Sequence[str], flag: str = "") -> None:
    """Raises InputError for the first label that is not in `labels`; `flag` is the flag that named the data."""
    known = set(labels)
    for number, label in enumerate(texts.labels or ()):
        if label not in known:
            raise InputError(
                f"{flag} {texts.place(number)}: label {label!r} is not one of {', '.join(labels)}".strip()
            )
