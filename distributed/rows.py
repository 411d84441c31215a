"""Data as rows: an Arrow table in a file, mapped into memory, and the order in which ranks read it.

Position p of the endless stream of rows -> row number is a pure function of (seed, p): a checkpoint stores p and
no iterator state, and any number of ranks can go on from it.
"""

import hashlib
import json
import os
import queue
import shutil
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from distributed.run import sync_folder

T = TypeVar("T")


class Rows:
    """A memory-mapped Arrow table. `rows.take(indices)` gives the columns as numpy arrays.

    A column of numbers becomes an array [n]; a column of lists becomes (values, offsets): the concatenated
    values, and int64 offsets [n + 1] into them; both in their stored type.
    """

    def __init__(self, table: pa.Table):
        self.table = table

    @classmethod
    def open(cls, path: Path) -> "Rows":
        with pa.memory_map(str(path)) as source:
            return cls(pa.ipc.open_file(source).read_all())

    def __len__(self) -> int:
        return self.table.num_rows

    def take(self, indices: np.ndarray) -> dict[str, np.ndarray | tuple[np.ndarray, np.ndarray]]:
        chosen = self.table.take(pa.array(indices, pa.int64()))
        return {name: _to_numpy(chosen.column(name)) for name in self.table.column_names}

    def column(self, name: str) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """A whole column, in the same form."""
        return _to_numpy(self.table.column(name))


def write_rows(path: Path, columns: Mapping[str, pa.Array], metadata: Mapping[str, object] | None = None) -> None:
    """Writes a table as an Arrow file; `metadata` is stored as JSON in its schema."""
    table = pa.table(dict(columns))
    table = table.replace_schema_metadata({"ringbert": json.dumps(dict(metadata or {}))})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1 << 14)


def metadata_of(rows: Rows) -> dict:
    """The `metadata` that the table was written with."""
    return json.loads(rows.table.schema.metadata[b"ringbert"])


def ragged(arrays: Iterable[np.ndarray], kind: pa.DataType) -> pa.Array:
    """A list column from one array per row."""
    arrays = list(arrays)
    lengths = np.fromiter((len(array) for array in arrays), np.int64, len(arrays))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = np.concatenate(arrays) if arrays else np.empty(0, np.int32)
    return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(values, kind))


def pad(values_and_offsets: tuple[np.ndarray, np.ndarray], length: int, value: int = 0) -> np.ndarray:
    """(values, offsets) -> int32 [n, length], filled up with `value`."""
    values, offsets = values_and_offsets
    lengths = np.diff(offsets)
    padded = np.full((len(lengths), length), value, np.int32)
    padded[np.arange(length) < lengths[:, None]] = values
    return padded


def _to_numpy(column: pa.ChunkedArray) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    if not isinstance(column.type, pa.LargeListType):
        return column.to_numpy()
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    offsets = array.offsets.to_numpy(zero_copy_only=False)
    values = array.values.to_numpy(zero_copy_only=False)[offsets[0] : offsets[-1]]
    return values, offsets - offsets[0]


# -- order --------------------------------------------------------------------------------------------------------


class Order:
    """A seeded permutation of all rows for each epoch: each row once per epoch, in a new order each time."""

    def __init__(self, num_rows: int, seed: int):
        self.num_rows, self.seed = num_rows, seed
        self._permutations: dict[int, np.ndarray] = {}

    def rows_at(self, start: int, stop: int) -> np.ndarray:
        """Row numbers (int64) of the positions start, …, stop - 1 of the endless stream."""
        positions = np.arange(start, stop, dtype=np.int64)
        epochs, within = np.divmod(positions, self.num_rows)
        found = np.empty_like(positions)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            found[chosen] = self._permutation(int(epoch))[within[chosen]]
        self._permutations = {e: p for e, p in self._permutations.items() if e >= stop // self.num_rows - 1}
        return found

    def _permutation(self, epoch: int) -> np.ndarray:
        if epoch not in self._permutations:
            generator = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
            self._permutations[epoch] = generator.permutation(self.num_rows)
        return self._permutations[epoch]


def fixed_batches(lengths: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Row numbers in batches of rows of like length, for prediction: the same whatever the number of ranks."""
    by_length = np.argsort(-lengths, kind="stable")
    return [by_length[start : start + batch_size] for start in range(0, len(lengths), batch_size)]


def prefetched(make: Callable[[int], T], items: Iterable[int], ahead: int = 2) -> Iterator[T]:
    """`make(item)` for each item, computed in a thread up to `ahead` items early.

    An exception in the thread is raised here, where it can end the job.
    """
    ready: queue.Queue = queue.Queue(maxsize=ahead)
    stopped = threading.Event()

    def put(entry) -> bool:
        while not stopped.is_set():
            try:
                ready.put(entry, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            for item in items:
                if not put(([make(item)], None)):
                    return
            put((None, None))
        except BaseException as error:
            put((None, error))

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            made, error = ready.get()
            if error is not None:
                raise error
            if made is None:
                return
            yield made[0]
    finally:
        stopped.set()


# -- cache --------------------------------------------------------------------------------------------------------


def digest(*parts: object) -> str:
    """A short digest of files (Path: their bytes) and of anything else (its JSON)."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            with part.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        else:
            total.update(json.dumps(part, sort_keys=True, default=str).encode())
        total.update(b"\0")
    return total.hexdigest()[:24]


def cached(cache_dir: Path, key: str, build: Callable[[Path], None]) -> tuple[Path, bool]:
    """The folder `cache_dir/key`, made by `build(folder)` under a temporary name unless it is there.

    Returns the folder and whether it was built now. A failed build leaves nothing; what a killed one left is
    removed by the next on the same host.
    """
    final = cache_dir / key
    if final.is_dir():
        return final, False
    cache_dir.mkdir(parents=True, exist_ok=True)
    for left in cache_dir.glob(f".{key}.{socket.gethostname()}.*.tmp"):
        if not _is_running(int(left.name.split(".")[-2])):
            shutil.rmtree(left, ignore_errors=True)
    temporary = cache_dir / f".{key}.{socket.gethostname()}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        build(temporary)
        for file in temporary.iterdir():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        try:
            temporary.rename(final)
            sync_folder(cache_dir)
        except OSError:
            if not final.is_dir():  # else another job built the same at the same time
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final, True


def _is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return process_id != os.getpid()
