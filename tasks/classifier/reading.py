"""Texts and labels for the classifier: of a named task's files, of the hub, or of the user's own
files."""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bert.hub import cached_commit, load_data_set
from distributed.launcher import launched_size
from ringbase.errors import InputError
from tasks.classifier.named_tasks import FILE_FLAGS, Labels, NamedTask, Split
from tasks.classifier.settings import TextSettings
from tasks.classifier.several import FLAGS, labels_in
from tasks.runs.rows.tables import IN_QUOTES, SHORT_ROWS, Table, number_in, of_data_set, open_table

MAX_SHORT_ROWS_SHARE = 0.001
# what stands for a missing label in a set to predict
MISSING, NO_LABEL = object(), {"", "?", "-1", "-1.0", "nan"}


@dataclass(frozen=True)
class Source:
    """A set of a task, by its name in `task.splits`, and where `settings` say that it is."""

    settings: TextSettings
    task: NamedTask
    split: str

    def __str__(self) -> str:
        """For messages: the flag that names the data, and the data."""
        if not self.task.name:
            return f"--{FILE_FLAGS[self.split]} {self.part.files}"
        place = "--from_hub" if self.settings.from_hub else f"--data_dir {self.settings.data_dir}"
        return f"--task_name {self.task.name} {place} ({self.split})"

    @property
    def kind(self) -> str:
        kind = self.split.split("_")[0]
        return "predict" if kind == "test" else kind

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
    def is_printed(self) -> bool:
        """Whether predictions go to standard output only."""
        return self.settings.reads_lines and self.split == "test"

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
            return [Path(self.part.files).expanduser()]
        folder = Path(str(self.settings.data_dir)).expanduser()
        # --data_dir is the GLUE folder that contains the task's
        if (folder / self.task.folder).is_dir():
            folder /= self.task.folder
        files = []
        for names in self.part.files.format(language=self.settings.language).split("+"):
            either = [folder / name for name in names.split("|")]
            files.append(next(filter(Path.is_file, either), either[0]))
        return files


def sources_of(settings: TextSettings, task: NamedTask, kind: str) -> list[Source]:
    """The sets of a task to train on ("train"), to evaluate on ("dev") or to predict: two for
    MNLI's "dev". Raises InputError if there is none, or several ranks would read standard input."""
    kind = "test" if kind == "predict" else kind
    # Open MPI 5's mpirun delivers standard input without an end.
    is_launched = launched_size()[1] > 1 or "PRTE_LAUNCHED" in os.environ
    if kind == "test" and settings.reads_lines and is_launched:
        raise InputError("--predict_file -: standard input needs one rank, started without mpirun")
    names = [name for name in task.splits if name.split("_")[0] == kind]
    if not names:
        raise InputError(
            f"--task_name {task.name} has no {kind} set, only {', '.join(task.splits)}"
        )
    return [Source(settings, task, name) for name in names]


# -- files to tables -------------------------------------------------------------------------------


def _tables(source: Source) -> Iterator[Table]:
    """The table of each file, or of the data set of the hub."""
    if source.settings.from_hub:
        yield _hub_table(source)
    columns = source.task.columns
    names = (columns.text, columns.pair, columns.label, *columns.labels)
    for path in source.files():
        where = f"--data_dir {path}" if source.task.name else str(source)
        yield open_table(path, where, names, source.part.header, columns.skips_short_rows)


def _hub_table(source: Source) -> Table:
    """A split of a hub data set, with labels as the task spells them."""
    task, settings = source.task, source.settings
    if task.hub is None:
        raise InputError(
            f"--task_name {task.name} has no known data set on the hub; give --data_dir"
        )
    where = f"--task_name {task.name}: {task.hub}"
    config = task.hub_config
    if config:
        config = config.format(language=settings.language)
        where += f" {config}"
    label = task.columns.label.split("|")[-1]
    revision = settings.dataset_revision
    data = load_data_set(task.hub, config, source.part.hub, where, revision, task.hub_revision)
    are_numbers = task.labels in (None, ("0", "1"))
    return of_data_set(data, where, () if are_numbers else [label])


# -- tables to texts -------------------------------------------------------------------------------


class Texts(NamedTuple):
    """The examples of a set, in its order. An example may have an empty text."""

    first: list[str]
    second: Sequence[str | None] | None  # None without pairs
    # As the task spells them; tuples where a text has several; numbers for regression; None without
    # labels.
    labels: list | None
    ids: list[str]  # those in the file, or the numbers from 0
    counts: Mapping[str, int] = {}  # of what the user may not expect, by its description

    def rows(self) -> Iterator[dict]:
        """The examples as objects: "id", "text", "text_pair" and "label", if there are any."""
        columns: dict = {"id": self.ids, "text": self.first}
        if self.second:
            columns["text_pair"] = self.second
        if self.labels:
            columns["label"] = self.labels
        for row in zip(*columns.values(), strict=True):
            yield dict(zip(columns, row, strict=True))


FLAGS_OF_COLUMNS = "--text_column", "--text_pair_column", "--label_column"


@dataclass(frozen=True)
class Column:
    """A column that is read: its name, or several with | between them; None where a task has
    none."""

    name: str | None
    convert: Callable  # of a cell; None if it is not as `expected`
    expected: str
    flag: str = ""  # which names it, in files of the user's own
    is_needed: bool = True  # in each file, and in each row instead of a mark of `NO_LABEL`
    values: list = field(default_factory=list)

    def read(self, cell: Any, where: str, place: str) -> None:
        value = self.convert(cell)
        if value is None:
            text = "" if cell is None else str(cell).strip()
            if self.is_needed or text not in NO_LABEL:
                got = f"{self.name} must be {self.expected}, got {cell!r:.80}"
                raise InputError(f"{where}: {place}: {got}")
            value = MISSING
        self.values.append(value)


def read(source: Source, labels: Labels = ()) -> Texts:
    """The examples of a set, at most as many as the flags say. A label must be one of `labels`, if
    there are any, or for regression a finite number. In a set to predict it may be missing."""
    names = source.task.columns
    of_text, of_pair, of_label = [""] * 3 if source.task.name else FLAGS_OF_COLUMNS
    first = Column(names.text, _string, "a string", of_text)
    second = Column(names.pair, _string, "a string", of_pair)
    ids = Column(names.id, str, "", is_needed=False)
    convert, expected = _label_of(source.task, labels)
    label_columns = []
    for name in names.labels or (names.label,):
        label_columns.append(Column(name, convert, expected, of_label, source.needs_labels))
    counts = _fill([first, second, *label_columns, ids], source)
    labels_read = _labels_of_examples(label_columns, source, labels)
    num_missing = labels_read.count(MISSING)
    if num_missing:
        counts["without a label, so there are no scores"] = num_missing
        labels_read = []
    ids_read = ids.values or [*map(str, range(len(first.values)))]
    return Texts(first.values, second.values or None, labels_read or None, ids_read, dict(counts))


def _fill(columns: Sequence[Column], source: Source) -> Counter[str]:
    """Reads the rows of a source into its columns, and returns counts of what the user may not
    expect."""
    language = source.settings.language
    counts = Counter[str]()
    languages = set()
    num_rows = 0
    for table in _tables(source):
        names = [
            (column, table.find(column.name, column.flag, column.is_needed))
            for column in columns
            if column.name
        ]
        for place, row in table.rows:
            of_row = row.get(source.task.columns.language, language)
            languages.add(of_row)
            if of_row != language:
                continue
            for column, name in names:
                if name is not None:
                    column.read(row.get(name), table.where, place)
            num_rows += 1
            if num_rows == source.limit:
                break
        counts.update(table.counts)
        if num_rows == source.limit:
            break
    if not num_rows:
        others = f" in --language {language}, only {', '.join(sorted(languages))}"
        raise InputError(f"{table.where} has no row with a text{others if languages else ''}")
    if counts[SHORT_ROWS] > MAX_SHORT_ROWS_SHARE * num_rows:
        of_all = f"{counts[SHORT_ROWS]} of {counts[SHORT_ROWS] + num_rows}"
        raise InputError(f"{table.where}: {of_all} rows have too few columns")
    if source.task.name or source.part.header:
        del counts[IN_QUOTES]  # published files and standard input are as they are
    return counts


def _labels_of_examples(columns: Sequence[Column], source: Source, labels: Labels) -> list:
    """The label, or labels, of each example, MISSING where a set to predict has none; [] without a
    column."""
    names = source.task.columns.labels
    found = columns[0].values
    if names and found:
        for name in names:
            if labels and name not in labels:
                raise InputError(
                    f"{source}: the model has no label {name!r}, only {', '.join(labels)}"
                )
        rows = zip(*(column.values for column in columns), strict=True)
        found = [
            MISSING if MISSING in flags else tuple(itertools.compress(names, flags))
            for flags in rows
        ]
    # What stands for no label at all may also be read as one: no labels in a list, -1 as a number,
    # or where documents are ranked any number that makes none of them relevant.
    is_label = _is_marked
    if source.task.has_several:
        is_label = _has_labels
    elif source.settings.ranking:
        is_label = _is_relevant
    elif source.task.labels is None:
        is_label = _is_number
    if not source.needs_labels and not any(map(is_label, found)):
        return [MISSING] * len(found)
    ranks = source.settings.ranking and source.split == "dev"
    if ranks and not any(map(_is_relevant, found)):
        raise InputError(
            f"{source}: there is nothing to rank: the number of no document is above 0"
        )
    return found


def _is_marked(value: Any) -> bool:
    return value is not MISSING


def _has_labels(value: Any) -> bool:
    return value is not MISSING and value != ()


def _is_number(value: Any) -> bool:
    return value is not MISSING and value != -1


def _is_relevant(value: Any) -> bool:
    return value is not MISSING and value > 0


# Of a cell each makes the value, or None if it is not as expected.


def _label_of(task: NamedTask, labels: Labels) -> tuple[Callable, str]:
    """What makes a label of a cell, and what is expected there."""
    if task.labels is None:
        return number_in, "a finite number for regression"
    if task.columns.labels:
        return (lambda value: FLAGS.get(str(value))), "0 or 1"
    known = set(labels or ())
    of_known = ", ".join(labels or ())
    if task.has_several:
        expected = f"some of {of_known}" if known else "labels"
        expected += ", with commas between labels, or a JSON list"
        return partial(labels_in, known=known), expected

    def label(value: Any) -> str | None:
        text = str(value)
        is_label = isinstance(value, str | int | float) and text.strip() and value == value
        name = task.spellings.get(text, text)
        return name if is_label and (not known or name in known) else None

    return label, f"one of {of_known}" if known else "a label"


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None
