"""The sets of a command: examples and their rows, which each machine makes once. Without
TensorFlow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Generic, NamedTuple

from distributed.rows import Rows
from ringbase.errors import InputError
from tasks.runs.rows.cache import Recipe, RowTables, in_memory
from tasks.runs.rows.reader import Examples, Reader, Readings, Source, rows_key
from tasks.runs.rows.texts import Tokenization


@dataclass(frozen=True, eq=False)
class DataSet(Generic[Examples]):
    """The examples of a source, and their rows."""

    source: Source
    made: RowTables
    table: str  # the one whose rows the model reads
    examples: Callable[[], Examples]

    @property
    def rows(self) -> Rows:
        return self.made.tables[self.table]

    @property
    def tables(self) -> Mapping[str, Rows]:
        return self.made.tables

    @property
    def is_printed(self) -> bool:
        return self.source.is_printed

    @property
    def suffix(self) -> str:
        return self.source.suffix


class Sets(NamedTuple):
    """The sets that a command needs. Those of `predict` that are in `dev` too are computed once."""

    train: Sequence[DataSet] = ()  # one or none
    dev: Sequence[DataSet] = ()
    predict: Sequence[DataSet] = ()


def open_set(
    reader: Reader[Examples],
    source: Source,
    tokenization: Tokenization,
    readings: Readings | None = None,
) -> DataSet[Examples]:
    """The rows of a source on every rank; each machine makes them once and keeps them in its cache.
    Raises InputError as `Reader.read` and `Tokenization.row_tables`."""
    known = readings or Readings()

    def recipe() -> Recipe:
        key = rows_key(reader, source, tokenization.tokenizer, known)
        return key, lambda: reader.tables(known.of(reader, source), tokenization)

    made = tokenization.row_tables(recipe, source)

    @cache
    def examples() -> Examples:
        """Where the rows were not made, they are read when they are needed."""
        if rows_key(reader, source, tokenization.tokenizer, known) != made.key:
            raise InputError(f"{source}: the data changed while this program ran: run it again")
        return known.of(reader, source)

    return DataSet(source, made, reader.table, examples)


@dataclass(frozen=True)
class InMemory:
    """The source of examples that the caller has."""

    kind: str = "predict"
    commit: None = None
    suffix: str = ""
    is_printed: bool = False


def set_of(
    reader: Reader[Examples], examples: Examples, tokenization: Tokenization
) -> DataSet[Examples]:
    """The rows of examples that are in memory, without a cache."""
    tables = in_memory(reader.tables(examples, tokenization))
    return DataSet(InMemory(), tables, reader.table, lambda: examples)
