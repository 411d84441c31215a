"""Rows that are made once: tables in a folder of the cache of each machine, memory-mapped by every
rank.

The folder's name is a digest of all that its rows depend on. A damaged folder is named, and made
again.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from distributed.rows import Rows, write_rows
from distributed.run import Run
from distributed.world import World
from ringbase import manifest
from ringbase.errors import InputError, Unreadable
from ringbase.files import build_folder, cache_folder, remove_folder
from tasks.runs.environment import writing_cache

Tables = dict[str, pa.Table]
# The digest that names the folder, and what makes its tables.
Recipe = tuple[str, Callable[[], Tables]]


@dataclass(frozen=True)
class RowTables:
    """Rows by the name of their table."""

    tables: Mapping[str, Rows]
    key: str = ""  # a digest of all that the rows depend on; "" if nobody needs it
    is_new: bool = True  # this start made them

    @property
    def facts(self) -> dict:
        """What `with_facts` stored."""
        rows = next(iter(self.tables.values()))
        return json.loads(rows.table.schema.metadata[b"ringbert"])


def cached_tables(recipe: Callable[[], Recipe], name: str, world: World, run: Run) -> RowTables:
    """The rows of a recipe on every rank. Only the first rank of each machine calls `recipe`, in
    the order of `World.on_each_machine`. `name` is that of the data in messages.

    Raises InputError: the recipe does, or the ranks have different data.
    """
    folder, is_new = world.on_each_machine(build, recipe, run)
    tables = {}
    for path in sorted(folder.glob("*.arrow")):
        tables[path.stem] = Rows.open(path)
    world.agree({f"the content of {name}": folder.name})
    return RowTables(tables, folder.name, is_new)


def build(recipe: Callable[[], Recipe], run: Run) -> tuple[Path, bool]:
    """The folder of a recipe's tables, and whether this call wrote it: an intact one stays."""
    key, make = recipe()
    folder = cache_folder() / key

    def fill(into):
        for name, table in make().items():
            write_rows(into / f"{name}.arrow", table)
        manifest.seal(into, 0)

    if folder.is_dir():
        try:
            manifest.check_intact(folder)
            return folder, False
        except Unreadable as error:
            raise InputError(
                f"{folder} in the cache {error}: another user's? Their umask, or the file system,"
                " keeps it from you: set RINGBERT_CACHE to a folder of your own"
            ) from None
        except InputError as error:
            run.say(f"warning: {folder} in the cache is damaged ({error}): it is built again")
            remove_folder(folder)
    with writing_cache():
        return folder, build_folder(folder, fill)


def cached_rows(key: str, table: str) -> int | None:
    """How many rows a table in the cache has; None if it is not there."""
    folder = cache_folder() / key
    if manifest.position_of(folder) is None:
        return None
    return len(Rows.open(folder / f"{table}.arrow"))


def in_memory(tables: Tables) -> RowTables:
    """The tables without a cache, for data that are used once."""
    return RowTables({name: Rows(table) for name, table in tables.items()})


def with_facts(tables: Mapping[str, Mapping[str, pa.Array]], facts: Mapping) -> Tables:
    """The tables of these columns; each carries the facts."""
    metadata = {"ringbert": json.dumps(facts)}
    return {name: pa.table(dict(columns), metadata=metadata) for name, columns in tables.items()}
