"""Arrow shards, read piece by piece. No byte is used before it was compared with the manifest.

A piece is a record batch, or the end of the file, and the manifest has its size and CRC32C. So a corpus of any
size is ready at once, and the check of a piece costs little when its first row is used. Shards from before pieces
had checksums are checked whole, by their SHA-256, before their first row is used.
"""

import contextlib
import functools
import json
import os
import socket
import weakref
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa

from ringbase.errors import InputError, one_line
from ringbase.hashing import digest, sha256

CHECKED = b"\1"
ID_TYPES = (pa.uint16(), pa.int32())


class CheckedPieces:
    """Which pieces of a corpus were found intact: one byte for each, in a file of the cache.

    All ranks of a machine and later runs share the file, so that each piece is checked once per machine. Its name
    is derived from the machine and from what identifies the shards. Where it cannot be written, every process
    checks for itself.
    """

    def __init__(self, path: Path | None, num_pieces: int):
        self._known = bytearray(num_pieces)
        self._descriptor: int | None = None
        if path is not None:
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
                weakref.finalize(self, os.close, self._descriptor)
                found = os.pread(self._descriptor, num_pieces, 0)
                self._known[: len(found)] = found

    def __contains__(self, piece: int) -> bool:
        if self._known[piece] != CHECKED[0] and self._descriptor is not None:
            with contextlib.suppress(OSError):  # another rank may have checked it
                self._known[piece : piece + 1] = os.pread(self._descriptor, 1, piece) or b"\0"
        return self._known[piece] == CHECKED[0]

    def add(self, piece: int) -> None:
        self._known[piece] = CHECKED[0]
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, CHECKED, piece)


class Shard:
    """The rows of an Arrow shard, in record batches that are checked and opened when they are first needed.

    Every use of a row can raise InputError, which names the shard: its bytes are not those of the manifest, or
    they do not hold the rows that the manifest says.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any], settings: Mapping[str, Any], flag: str):
        self.path, self.facts, self._settings, self._flag = path, facts, settings, flag
        self.num_rows: int = facts["examples"]
        self.num_pieces = len(facts.get("pieces", [None]))
        self._ends = list(accumulate(size for size, _ in facts.get("pieces", [])))
        self.record_in(CheckedPieces(None, self.num_pieces), 0)

    def record_in(self, checked: CheckedPieces, first: int) -> None:
        """Uses the record `checked`, in which this shard's pieces have the numbers `first`, `first` + 1, …."""
        self._checked, self._first = checked, first

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """The first row of each record batch, and the number of rows."""
        if self._ends:
            return np.append(np.arange(0, self.num_rows, self.facts["rows_per_piece"]), self.num_rows)
        reader = self._reader
        return np.cumsum([0, *(reader.get_batch(n).num_rows for n in range(reader.num_record_batches))])

    def batch(self, number: int) -> pa.RecordBatch:
        """A record batch, as a view of the file."""
        if self._ends:
            self._check(number)
        batch = self._reader.get_batch(number)
        expected = self.starts[number + 1] - self.starts[number]
        if batch.num_rows != expected:
            raise self._damaged(f"batch {number} has {batch.num_rows} rows, its manifest says {expected}")
        return batch

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All record batches, each checked when it is reached."""
        return map(self.batch, range(len(self.starts) - 1))

    @functools.cached_property
    def _reader(self) -> Any:
        self._check(self.num_pieces - 1)
        try:
            with pa.memory_map(str(self.path)) as source:
                reader = pa.ipc.open_file(source.read_buffer())
            num_batches = reader.num_record_batches
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(one_line(error)) from error
        try:
            stored = json.loads((reader.schema.metadata or {})[b"ringbert"])["settings"]
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise self._damaged("it does not hold its settings") from error
        if different := differences(dict(self._settings), stored):
            raise InputError(
                f"{self._flag}: {self.path} and the manifest of its folder differ in settings: {different}"
            )
        if problem := wrong_columns(reader.schema, self._settings):
            raise self._damaged(problem)
        if self._ends and num_batches != self.num_pieces - 1:
            raise self._damaged(f"{num_batches} batches, its manifest says {self.num_pieces - 1}")
        if not self._ends:
            num_rows = sum(reader.get_batch(n).num_rows for n in range(num_batches))
            if num_rows != self.num_rows:
                raise self._damaged(f"{num_rows:,} examples, its manifest says {self.num_rows:,}")
        return reader

    def _check(self, piece: int) -> None:
        """Compares a piece with the manifest unless that was done before on this machine. Raises InputError."""
        if self._first + piece in self._checked:
            return
        try:
            if self._ends:
                size, expected = self.facts["pieces"][piece]
                with self.path.open("rb", buffering=0) as file:
                    data = os.pread(file.fileno(), size, self._ends[piece] - size)
                is_intact = len(data) == size and google_crc32c.value(data) == expected
            else:
                is_intact = sha256(self.path) == self.facts["sha256"]
        except OSError as error:
            raise InputError(f"{self._flag}: {self.path}: {error.strerror or error}") from error
        if not is_intact:
            place = f", bytes {self._ends[piece] - size:,} to {self._ends[piece]:,}" if self._ends else ""
            raise self._damaged(f"it is not what the manifest of its folder says{place}")
        self._checked.add(self._first + piece)

    def _damaged(self, problem: str) -> InputError:
        return InputError(
            f"{self._flag}: {self.path} is damaged: {problem}: copy the corpus again or build it again "
            f"(bert-corpus verify --input_dir {self.path.parent} names all damaged shards)"
        )


def share_record(shards: Sequence[Shard], folder: Path) -> None:
    """Keeps in `folder` which pieces of these shards were found intact.

    The machine, and the path, size, inode, time of change and manifest entry of each shard make up the file's
    name: when any of them changes, all is checked again.
    """
    facts = []
    for shard in shards:
        status = shard.path.stat()
        identity = status.st_size, status.st_mtime_ns, status.st_ino
        facts.append((str(shard.path.resolve()), *identity, shard.facts))
    path = folder / f"{digest('checked pieces', socket.gethostname(), facts)}.checked"
    checked, first = CheckedPieces(path, sum(shard.num_pieces for shard in shards)), 0
    for shard in shards:
        shard.record_in(checked, first)
        first += shard.num_pieces


def wrong_columns(schema: pa.Schema, settings: Mapping[str, Any]) -> str:
    """What differs between the columns of a shard and those that its settings call for; "" if nothing."""
    lists = {kind: pa.large_list(kind) for kind in ID_TYPES}
    expected = {"input_ids": [*lists.values()], "sentence_a_tokens": [pa.int32()]}
    if settings["next_sentence"]:
        expected["is_random_next"] = [pa.int8()]
    if settings["masking"] == "static":
        expected |= {"masked_lm_positions": [lists[pa.int32()]], "masked_lm_ids": [*lists.values()]}
    if sorted(schema.names) == sorted(expected) and all(field.type in expected[field.name] for field in schema):
        return ""
    return f"its columns are {', '.join(f'{field.name} ({field.type})' for field in schema)}"


def differences(one: Any, other: Any) -> str:
    """The settings that differ, each with both values; "" if none differ."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return "" if one == other else f"{one} and {other}"
    names = [name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)]
    return ", ".join(f"{name} ({one.get(name)} and {other.get(name)})" for name in names)
