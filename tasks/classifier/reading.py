"""Texts and labels for the classifier: of a named task's files, of the hub, or of the user's own files."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bert.hub import load_data_set
from ringbase.errors import InputError
from ringbase.files import read_standard_input
from tasks.classifier.named_tasks import FILE_FLAGS, NamedTask, Split
from tasks.classifier.settings import TextSettings
from tasks.classifier.table import Columns, Name, Table, lines_table, read_table

LONGEST_NUMBER = 1000  # digits of a label that is compared as a number; Python converts 4300 at most


@dataclass(frozen=True)
class Texts:
    """The examples of a set, in its order. An example may have an empty text.

    Attributes:
      tables: where they come from, for messages.
      ids: the id of each example in the file, or its number from 0.
      first, second: the texts; `second` is None without pairs.
      labels: as written in the data (float for regression); None without labels.
    """

    tables: Sequence[Table]
    ids: list[str]
    first: list[str]
    second: list[str] | None
    labels: list[str] | list[float] | None

    def __len__(self) -> int:
        return len(self.first)

    def place(self, number: int) -> str:
        """Where example `number` (from 0) is, such as "--train_file train.tsv: line 7"."""
        for table in self.tables:
            if number < len(table.lines):
                break
            number -= len(table.lines)
        return table.place(number)


@dataclass(frozen=True)
class Source:
    """A set of a task ("train", "dev", "test" or one of `task.splits`), and where `settings` say that it is."""

    settings: TextSettings
    task: NamedTask
    split: str

    def __str__(self) -> str:
        """For messages: the flag that names the data, and the data."""
        if self.is_standard_input:
            return "standard input (--predict_file -)"
        if not self.task.name:
            return f"--{FILE_FLAGS[self.split]} {self.part.files[0]}"
        place = "--from_hub" if self.settings.from_hub else f"--data_dir {self.settings.data_dir}"
        return f"--task_name {self.task.name} {place} ({self.split})"

    @property
    def part(self) -> Split:
        return self.task.split(self.split)

    @property
    def is_standard_input(self) -> bool:
        return self.split == "test" and self.settings.reads_lines

    @property
    def needs_labels(self) -> bool:
        return not self.split.startswith("test")

    @property
    def limit(self) -> int | None:
        is_training = self.split == "train"
        return self.settings.max_train_examples if is_training else self.settings.max_predict_examples

    def key(self) -> list[object]:
        """What the examples depend on besides the bytes of the files."""
        facts = [self.task.name, self.task.is_regression, asdict(self.part.columns)]
        return [*facts, self.needs_labels, self.settings.language, self.limit]

    def files(self) -> list[Path]:
        """The files with the examples; none for standard input and the hub. Raises InputError: one is missing."""
        settings = self.settings
        if self.is_standard_input or settings.from_hub:
            return []
        if not settings.task_name:
            return [Path(self.part.files[0]).expanduser()]
        folder = Path(str(settings.data_dir)).expanduser()
        if (folder / self.task.folder).is_dir():  # --data_dir is the GLUE folder that contains the task's
            folder = folder / self.task.folder
        names = [(name, *self.part.instead) for name in self.part.files]
        return [_present(self.task, folder, either, settings.language) for either in names]

    def read(self) -> Texts:
        """The examples, at most as many as --max_train_examples or --max_predict_examples say.

        Raises InputError: a file is missing, damaged or empty; a column is missing, or a row has another number of
          columns; a text is not a string; a label is empty, or for regression not a finite number; nothing is in
          the language; the hub has no such data set, revision or split.
        """
        columns = self.part.columns
        if self.settings.from_hub:
            table, columns = _hub_table(self)
            tables = [table]
        elif self.is_standard_input:
            tables = [lines_table(_standard_input(str(self)), str(self), columns)]
        else:
            flag = "--data_dir" if self.task.name else f"--{FILE_FLAGS[self.split]}"
            tables = [read_table(path, f"{flag} {path}", columns) for path in self.files()]
        return _texts(self, [_in_language(table, columns, self.settings.language) for table in tables], columns)


@functools.cache
def _standard_input(where: str) -> str:
    """Kept, because it can be read only once, and the runs of several seeds all need it."""
    return read_standard_input(where)


def _present(task: NamedTask, folder: Path, names: Sequence[str], language: str) -> Path:
    """The first of these files that exists."""
    names = [name.format(language=language) for name in names]
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise InputError(
            f"--data_dir {folder}: no file {' or '.join(names)}, which --task_name {task.name} needs"
            + ("" if folder.is_dir() else "; the folder does not exist")
        )
    return path


def _in_language(table: Table, columns: Columns, language: str) -> Table:
    """The rows of a table that are in this language; all if no column says it."""
    if columns.language is None:
        return table
    values = table.column(columns.language)
    rows = [row for row, value in enumerate(values) if value == language]
    if not rows:
        raise InputError(f"{table.where}: no row in --language {language}, only {', '.join(sorted(set(values)))}")
    chosen = {name: [column[row] for row in rows] for name, column in table.columns.items()}
    return Table(table.where, table.header, chosen, [table.lines[row] for row in rows])


def _hub_table(source: Source) -> tuple[Table, Columns]:
    """A split of a hub data set, with labels as the task spells them, and its columns."""
    settings, task, hub, split = source.settings, source.task, source.task.hub, source.part.hub
    if hub is None or split is None:
        raise InputError(f"--task_name {task.name} has no known data set on the hub; give --data_dir")
    config = hub.config and hub.config.format(language=settings.language)
    where = f"--task_name {task.name}: {hub.name}{f' {config}' if config else ''}"
    try:
        data = load_data_set(hub.name, config, split, where, settings.dataset_revision, hub.revision)
    except InputError as error:
        raise InputError(f"{error}; or give --data_dir") from error
    columns: dict[Name, Sequence[Any]] = {name: data[name][:] for name in data.column_names}
    label = hub.columns.label
    if all(value in (-1, None) for value in columns.get(label, ())):
        columns.pop(label, None)  # GLUE's test sets
    elif not task.is_regression and task.labels != ("0", "1"):
        to_text = getattr(data.features[label], "int2str", str)
        columns[label] = [to_text(value) if isinstance(value, int) else value for value in columns[label]]
    return Table(f"{where} ({split})", tuple(columns), columns, range(1, len(data) + 1), "row"), hub.columns


# -- columns to texts ---------------------------------------------------------------------------------------------


def _texts(source: Source, tables: Sequence[Table], columns: Columns) -> Texts:
    """The examples in the rows of a set's tables."""
    for table in tables:
        if not table.lines:
            raise InputError(f"{table.where} has no row with a text")

    def joined(name: Name, convert: Callable[[Any], Any], expected: str) -> list[Any]:
        values = [table.values(name, convert, expected) for table in tables]
        return [*itertools.chain(*values)][: source.limit]

    def label(value: Any) -> str | None:
        """None for an empty label, NaN, and what is neither a string nor a number."""
        is_label = isinstance(value, str | int | float) and value != "" and value == value
        return source.task.spellings.get(str(value), str(value)) if is_label else None

    of_label = (_number, "a finite number for regression") if source.task.is_regression else (label, "a label")
    first = joined(columns.text, _text, "a string")
    return Texts(
        tables,
        joined(columns.id, str, "an id") if columns.id in tables[0].columns else [*map(str, range(len(first)))],
        first,
        None if columns.pair is None else joined(columns.pair, _text, "a string"),
        joined(columns.label, *of_label) if source.needs_labels or columns.label in tables[0].columns else None,
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def labels_in(texts: Texts) -> list[str]:
    """The labels that occur, sorted as numbers if all are whole numbers, else as texts."""
    labels = {str(label) for label in texts.labels or ()}
    if all(label.removeprefix("-").isdecimal() and len(label) < LONGEST_NUMBER for label in labels):
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)
