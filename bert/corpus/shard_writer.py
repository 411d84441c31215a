"""The third pass of a corpus: shards, in Arrow's or Google's format."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import google_crc32c
import numpy as np
import pyarrow as pa

from bert.corpus.example_files import ExampleFiles
from bert.corpus.examples import Examples, concatenated
from bert.corpus.manifest import FORMAT_VERSION
from bert.corpus.settings import ExampleSettings
from bert.corpus.tfrecord_format import Columns
from ringbase.files import sync_file
from ringbase.hashing import HashingWriter

BATCH_TOKENS = 1 << 20
PIECE_TOKENS = 1 << 17  # of a record batch: pieces of about 256 KiB, the unit that training reads and checks


def shard_name(number: int, num_shards: int, format: str) -> str:
    return f"shard-{number:05d}-of-{num_shards:05d}.{format}"


def shard_range(number: int, num_shards: int, num_examples: int) -> tuple[int, int]:
    """The places of a shard's examples in the order of the whole corpus; shard sizes differ by at most one."""
    return number * num_examples // num_shards, (number + 1) * num_examples // num_shards


def shard_batches(files: ExampleFiles, sizes: np.ndarray, start: int, stop: int) -> Iterator[Examples]:
    """The examples at the places start, …, stop - 1 in the order of the whole corpus, in bounded batches.

    Args:
      sizes: the number of examples in each bucket of `files`.
    """
    ends = np.cumsum(sizes)
    pending: list[Examples] = []
    for bucket in range(int(np.searchsorted(ends, start, "right")), len(ends)):
        first = int(ends[bucket] - sizes[bucket])
        if first >= stop:
            break
        rows = np.arange(max(start, first), min(stop, int(ends[bucket]))) - first
        if len(rows):
            pending.append(files.bucket(bucket).take(rows))
        if sum(len(part.values) for part in pending) >= BATCH_TOKENS:
            yield concatenated(pending)
            pending = []
    if pending:
        yield concatenated(pending)


def write_shard(
    path: Path,
    batches: Iterator[Examples],
    settings: ExampleSettings,
    dtype: np.dtype,
    recorded: Mapping[str, object],
) -> dict[str, object]:
    """Writes a shard and syncs it to disk; returns its entry for the manifest.

    Args:
      dtype: the type of token ids in Arrow's format.
      recorded: the settings in the manifest, which are also stored in an Arrow shard.
    """
    num_examples = num_tokens = 0
    rows_per_piece = max(1, PIECE_TOKENS // settings.max_seq_length)
    with path.open("wb") as file:
        sink = PieceWriter(file)
        if settings.format == "tfrecord":  # its records have checksums of their own
            writer = _tfrecord(sink, settings)
        else:
            writer, batches = _arrow(sink, _schema(dtype, settings, recorded)), in_pieces(batches, rows_per_piece)
        with writer as write:
            for batch in batches:
                write(batch)
                num_examples += len(batch)
                num_tokens += len(batch.values)
    sync_file(path)
    facts = {
        "file": path.name, "examples": num_examples, "tokens": num_tokens, "bytes": sink.size,
        "sha256": sink.sha256(),
    }  # fmt: skip
    return facts | ({"rows_per_piece": rows_per_piece, "pieces": sink.pieces} if sink.pieces else {})


class PieceWriter(HashingWriter):
    """Also keeps the size and the CRC32C of each piece."""

    def __init__(self, file: BinaryIO):
        super().__init__(file)
        self.pieces: list[tuple[int, int]] = []
        self._start = self._crc = 0

    def write(self, data) -> int:
        self._crc = google_crc32c.extend(self._crc, bytes(data))
        return super().write(data)

    def end_piece(self) -> None:
        self.pieces.append((self.size - self._start, self._crc))
        self._start, self._crc = self.size, 0


def in_pieces(batches: Iterable[Examples], rows: int) -> Iterator[Examples]:
    """The same examples in batches of exactly this many rows; the last one may be shorter."""
    rest: list[Examples] = []
    for batch in batches:
        whole = concatenated([*rest, batch])
        full = len(whole) - len(whole) % rows
        for start in range(0, full, rows):
            yield whole.take(np.arange(start, start + rows))
        rest = [whole.take(np.arange(full, len(whole)))]
    if rest and len(rest[0]):
        yield rest[0]


@contextlib.contextmanager
def _tfrecord(sink: HashingWriter, settings: ExampleSettings) -> Iterator[Callable[[Examples], None]]:
    from bert.corpus.tfrecord_writer import serialized

    limits = {
        "max_seq_length": settings.max_seq_length,
        "max_predictions_per_seq": settings.max_predictions_per_seq,
    }

    def write(batch: Examples) -> None:
        columns: Columns = {
            "input_ids": (batch.values, batch.offsets),
            "sentence_a_tokens": batch.sentence_a_tokens,
            "is_random_next": batch.is_random_next,
            "masked_lm_positions": (batch.masked_positions, batch.masked_offsets),
            "masked_lm_ids": (batch.masked_values, batch.masked_offsets),
        }
        for data in serialized(columns, **limits):
            sink.write(data)

    yield write


@contextlib.contextmanager
def _arrow(sink: PieceWriter, schema: pa.Schema) -> Iterator[Callable[[Examples], None]]:
    """Each batch is a piece, the first with the beginning of the file, and so is the end of the file."""
    with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema) as writer:

        def write(batch: Examples) -> None:
            writer.write_batch(_record_batch(batch, schema))
            sink.end_piece()

        yield write
    sink.end_piece()


def _schema(dtype: np.dtype, settings: ExampleSettings, recorded: Mapping[str, object]) -> pa.Schema:
    ids = pa.large_list(pa.from_numpy_dtype(dtype))
    fields = [("input_ids", ids), ("sentence_a_tokens", pa.int32())]
    if settings.next_sentence:
        fields.append(("is_random_next", pa.int8()))
    if settings.has_static_masks:
        fields += [("masked_lm_positions", pa.large_list(pa.int32())), ("masked_lm_ids", ids)]
    metadata = {"ringbert": json.dumps({"format_version": FORMAT_VERSION, "settings": dict(recorded)})}
    return pa.schema(fields, metadata)


def _record_batch(batch: Examples, schema: pa.Schema) -> pa.RecordBatch:
    def lists(values: np.ndarray, offsets: np.ndarray) -> pa.Array:
        return pa.LargeListArray.from_arrays(_array(offsets), _array(values))

    columns = {
        "input_ids": lists(batch.values, batch.offsets),
        "sentence_a_tokens": _array(batch.sentence_a_tokens),
        "is_random_next": _array(batch.is_random_next),
        "masked_lm_positions": lists(batch.masked_positions, batch.masked_offsets),
        "masked_lm_ids": lists(batch.masked_values, batch.masked_offsets),
    }
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)


def _array(values: np.ndarray) -> pa.Array:
    """Like `pa.array`, but without importing pandas, which takes 0.3 s in every worker."""
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, data])
