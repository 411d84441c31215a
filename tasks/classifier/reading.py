"""Texts and labels for the classifier: of a named task's files, of the hub, or of the user's own files."""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bert.hub import load_data_set
from ringbase.errors import InputError
from ringbase.files import read_standard_input
from tasks.classifier.settings import TextSettings
from tasks.classifier.table import Name, Table, lines_table, read_table
from tasks.classifier.tasks import FILE_FLAGS, Columns, Split, Task

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

    @property
    def num_short_rows(self) -> int:
        return sum(table.num_short_rows for table in self.tables)

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
    task: Task
    split: str

    def __str__(self) -> str:
        """For messages: the flag that names the data, and the data."""
        settings, part = self.settings, self.part
        if self.is_standard_input:
            return "standard input (--predict_file -)"
        if settings.from_hub:
            return f"--task_name {self.task.name} --from_hub ({part.hub})"
        if settings.task_name:
            return f"--data_dir {settings.data_dir} ({self.split})"
        return f"--{FILE_FLAGS[self.split]} {part.files[0]}"

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
        settings, task = self.settings, self.task
        facts = [task.name, task.is_regression, asdict(self.part.columns), self.needs_labels]
        return [*facts, settings.language, self.limit]

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
        task, columns = self.task, self.part.columns
        names = (columns.text, columns.pair, columns.label, columns.id, columns.language)
        wanted = list(dict.fromkeys(name for name in names if name is not None and name != ""))
        if self.settings.from_hub:
            table, columns = _hub_table(self)
            return _texts([table], task, columns, self.needs_labels, self.limit)
        if self.is_standard_input:
            pair = [] if columns.pair is None else [columns.pair]
            table = lines_table(_standard_input(str(self)), str(self), [columns.text, *pair])
            return _texts([table], task, columns, self.needs_labels, self.limit)
        tables = []
        for path in self.files():
            where = f"--data_dir {path}" if task.name else str(self)
            table = read_table(path, where, wanted, columns.num_columns, task.skips_short_rows)
            if columns.language is not None:
                table = _in_language(table, columns.language, self.settings.language)
            tables.append(table)
        return _texts(tables, task, columns, self.needs_labels, self.limit)


@functools.cache
def _standard_input(where: str) -> str:
    """Kept, because it can be read only once, and the runs of several seeds all need it."""
    return read_standard_input(where)


def _present(task: Task, folder: Path, names: Sequence[str], language: str) -> Path:
    """The first of these files that exists."""
    names = [name.format(language=language) for name in names]
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


def _hub_table(source: Source) -> tuple[Table, Columns]:
    """A split of a hub data set, with labels as the task spells them, and the names of its columns."""
    settings, task, part, hub = source.settings, source.task, source.part, source.task.hub
    if hub is None or part.hub is None:
        raise InputError(f"--task_name {task.name} has no known data set on the hub; give --data_dir")
    config = hub.config and hub.config.format(language=settings.language)
    where = f"--task_name {task.name}: {hub.name}{f' {config}' if config else ''}"
    try:
        data = load_data_set(hub.name, config, part.hub, where, settings.dataset_revision, hub.revision)
    except InputError as error:
        raise InputError(f"{error}; or give --data_dir") from error
    columns: dict[Name, Sequence[Any]] = {name: data[name][:] for name in data.column_names}
    if hub.label in columns:
        values = columns[hub.label]
        if all(value in (-1, None) for value in values):
            del columns[hub.label]  # GLUE's test sets
        elif not task.is_regression and task.labels != ("0", "1"):
            to_text = getattr(data.features[hub.label], "int2str", str)
            columns[hub.label] = [to_text(value) if isinstance(value, int) else value for value in values]
    table = Table(f"{where} ({part.hub})", tuple(columns), columns, range(1, len(data) + 1), "row")
    return table, Columns(hub.text, hub.pair, hub.label, hub.id)


# -- columns to texts ---------------------------------------------------------------------------------------------


def _texts(tables: Sequence[Table], task: Task, columns: Columns, needs_labels: bool, limit: int | None) -> Texts:
    """The examples in the rows of a split's tables."""
    for table in tables:
        if not table.lines:
            raise InputError(f"{table.where}: the file has no row after its header")

    def joined(name: Name, convert: Any, expected: str) -> list[Any]:
        return [*itertools.chain(*(table.values(name, convert, expected) for table in tables))][:limit]

    def label(value: Any) -> str | None:
        text = _label(value)
        return text and task.spellings.get(text, text)

    has_labels = needs_labels or columns.label in tables[0].columns
    of_label = (_number, "a finite number for regression") if task.is_regression else (label, "a label")
    first = joined(columns.text, _text, "a string")
    has_ids = all(columns.id in table.columns for table in tables)
    return Texts(
        tables,
        joined(columns.id, str, "an id") if has_ids else [str(number) for number in range(len(first))],
        first,
        None if columns.pair is None else joined(columns.pair, _text, "a string"),
        joined(columns.label, *of_label) if has_labels else None,
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _label(value: Any) -> str | None:
    """None for an empty label, NaN, and what is neither a string nor a number."""
    return str(value) if isinstance(value, str | int | float) and value != "" and value == value else None


def _number(value: Any) -> float | None:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


# -- labels -------------------------------------------------------------------------------------------------------


def labels_in(texts: Texts) -> list[str]:
    """The labels that occur, sorted as numbers if all are whole numbers, else as texts."""
    labels = {str(label) for label in texts.labels or ()}
    if all(label.removeprefix("-").isdecimal() and len(label) < LONGEST_NUMBER for label in labels):
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)


def check_labels(texts: Texts, labels: Sequence[str]) -> None:
    """Raises InputError for the first label that is not in `labels`."""
    known = set(labels)
    for number, label in enumerate(texts.labels or ()):
        if label not in known:
            raise InputError(f"{texts.place(number)}: label {label!r} is not one of {', '.join(labels)}")
