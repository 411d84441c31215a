"""The sets of a command: examples and their rows, which each machine makes once. Without
TensorFlow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Generic, NamedTuple

from distributed.rows import Rows
from ringbase.errors import InputError
from tasks.runs.rows.cache import Prepared, Recipe, in_memory
from tasks.runs.rows.reader import Examples, Reader, Readings, Source, rows_key
from tasks.runs.rows.texts import Preparation


@dataclass(frozen=True, eq=False)
class DataSet(Generic[Examples]):
    """The examples of a source, and their rows."""

    source: Source
    prepared: Prepared
    table: str  # the one whose rows the model reads
    examples: Callable[[], Examples]

    @property
    def rows(self) -> Rows:
        return self.prepared.tables[self.table]

    @property
    def tables(self) -> Mapping[str, Rows]:
        return self.prepared.tables

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
    preparation: Preparation,
    readings: Readings | None = None,
) -> DataSet[Examples]:
    """The rows of a source on every rank; each machine makes them once and keeps them in its cache.
    Raises InputError as `Reader.read` and `Preparation.rows`."""
    known = readings or Readings()

    def recipe() -> Recipe:
        key = rows_key(reader, source, preparation.tokenizer, known)
        return key, lambda: reader.tables(known.of(reader, source), preparation)

    prepared = preparation.rows(recipe, source)

    @cache
    def examples() -> Examples:
        """Where the rows were not made, they are read when they are needed."""
        if rows_key(reader, source, preparation.tokenizer, known) != prepared.key:
            raise InputError(f"{source}: the data changed while this program ran: run it again")
        return known.of(reader, source)

    return DataSet(source, prepared, reader.table, examples)


@dataclass(frozen=True)
class InMemory:
    """The source of examples that the caller has."""

    kind: str = "predict"
    commit: None = None
    suffix: str = ""
    is_printed: bool = False


def set_of(
    reader: Reader[Examples], examples: Examples, preparation: Preparation
) -> DataSet[Examples]:
    """The rows of examples that are in memory, without a cache."""
    tables = in_memory(reader.tables(examples, preparation))
    return DataSet(InMemory(), tables, reader.table, lambda: examples)
