"""Google's TFRecord shards of pretraining examples (`create_pretraining_data.py`), read as rows.

tfrecord_writer.py writes them.

A record of a TFRecord file is a length n (uint64), the masked CRC32C of those 8 bytes (uint32), n bytes, and their
masked CRC32C (uint32), all little-endian (tensorflow/core/lib/io/record_writer.h); the n bytes are a
`tf.train.Example`. TensorFlow is not imported: the two messages are declared below for the protobuf library, so
workers start at once, and no TensorFlow operation runs before the collectives are set up.
"""

import functools
import glob
import hashlib
import os
import shlex
import struct
from array import array
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, text_format  # type: ignore[import-untyped]

from bert.replacement import Replacement
from ringbert.errors import InputError

INDEX_VERSION = 1  # bump when the form of an index changes: old ones are then not used
HEADER_BYTES, FOOTER_BYTES = 12, 4
AROUND_BYTES = HEADER_BYTES + FOOTER_BYTES
LONGEST_RECORD = 1 << 17  # bytes; 1,024 tokens make 40,000 at most
GZIP_MAGIC = b"\x1f\x8b\x08"  # as the start of a length it would be of a longer record
RECORDS_AT_ONCE = 1 << 16
TOKENS = ("input_ids", "input_mask", "segment_ids")
PREDICTIONS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
KEYS = (*TOKENS, *PREDICTIONS, "next_sentence_labels")

Columns = dict[str, np.ndarray | tuple[np.ndarray, np.ndarray]]


class RecordRows:
    """Pretraining examples in TFRecord files as numbered rows: `len(rows)`, `rows.take(indices)`.

    `patterns` are file names or globs, comma-separated; files come in the order of the patterns, those of one
    pattern sorted. The first run finds where each record begins and keeps that in `cache_dir`, one small file for
    each shard; the shards' folder is only read. `digest` names the content: names (without folder) and sizes of
    the files and the checksums of all their records, so hosts with copies of their own agree.

    Raises InputError: no such file; an empty, compressed, truncated or damaged one; a file whose first example
    does not fit the flags.
    """

    def __init__(
        self,
        patterns: str,
        cache_dir: Path,
        *,
        max_seq_length: int,
        max_predictions_per_seq: int,
        vocab_size: int,
        flag: str = "--input_file",
    ):
        self.max_seq_length, self.max_predictions_per_seq = max_seq_length, max_predictions_per_seq
        self.vocab_size, self.flag = vocab_size, flag
        self.files = _matching(patterns, flag)
        self._offsets = []  # of each file: int64 [records + 1]
        content = hashlib.sha256()
        for file in self.files:
            offsets, checksum = _index(file, cache_dir, flag)
            content.update(f"{file.name}\0{offsets[-1]}\0".encode() + checksum)
            self._offsets.append(offsets)
        self._starts = np.cumsum([0, *(len(offsets) - 1 for offsets in self._offsets)])
        self.digest = content.hexdigest()[:24]
        self.take(self._starts[:-1])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, indices: np.ndarray) -> Columns:
        """The examples without their padding.

        `input_ids` (int32 values, int64 offsets [n + 1]); `sentence_a_tokens` (int32 [n], leading tokens of
        segment 0); `masked_lm_positions` and `masked_lm_ids` (int32 values, int64 offsets), those of weight 1;
        `is_random_next` (int8 [n]).
        Raises InputError: a record is damaged, lacks a key or does not fit the flags.
        """
        indices = np.asarray(indices, np.int64)
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise IndexError(f"rows {indices.min()} to {indices.max()} of {len(self)}")
        return self._without_padding(self._parsed(self._read(indices), indices), indices)

    def _read(self, indices: np.ndarray) -> list[bytes]:
        """The records' contents. Files are opened for each call: no number of shards exhausts the descriptors."""
        files = np.searchsorted(self._starts, indices, side="right") - 1
        records = [b""] * len(indices)
        for number in np.unique(files):
            places = np.flatnonzero(files == number)
            within = indices[places] - self._starts[number]
            starts, stops = self._offsets[number][within], self._offsets[number][within + 1]
            try:
                with self.files[number].open("rb", buffering=0) as file:
                    for place, start, stop in zip(places.tolist(), starts.tolist(), stops.tolist(), strict=True):
                        record = records[place] = os.pread(file.fileno(), stop - start, start)
                        length = (stop - start - AROUND_BYTES).to_bytes(8, "little")
                        if len(record) != stop - start or record[:8] != length:
                            raise InputError(f"{self._where(indices[place])}: the file has changed meanwhile")
            except OSError as error:
                raise InputError(f"{self.flag} {self.files[number]}: {error.strerror or error}") from error
        contents = [record[HEADER_BYTES:-FOOTER_BYTES] for record in records]
        stored = np.frombuffer(b"".join(record[-FOOTER_BYTES:] for record in records), "<u4")
        computed = np.fromiter(map(masked_crc32c, contents), np.uint32, len(contents))
        self._check(stored != computed, indices, "the checksum of its content is wrong: the file is damaged")
        return contents

    def _parsed(self, contents: list[bytes], indices: np.ndarray) -> dict[str, np.ndarray]:
        """The padded features, [n, length]."""
        features = []
        for content, index in zip(contents, indices, strict=True):
            try:
                features.append(_example_class().FromString(content).features.feature)
            except message.DecodeError as error:
                raise InputError(f"{self._where(index)}: no tf.train.Example ({error})") from error
        return {key: self._column(key, features, indices) for key in KEYS}

    def _column(self, key: str, features: list[Any], indices: np.ndarray) -> np.ndarray:
        kind, dtype = _kind(key)
        length, flag = 1, ""
        if key in TOKENS:
            length, flag = self.max_seq_length, "--max_seq_length"
        elif key in PREDICTIONS:
            length, flag = self.max_predictions_per_seq, "--max_predictions_per_seq"
        flat: list = []
        for feature, index in zip(features, indices, strict=True):
            if key not in feature:
                raise InputError(f"{self._where(index)}: it has no {key}; it holds {', '.join(sorted(feature))}")
            came = feature[key].WhichOneof("kind")
            if came != kind:
                raise InputError(f"{self._where(index)}: {key} is a {came}, not a {kind}")
            values = getattr(feature[key], kind).value
            if len(values) != length:
                needed = f"{flag} is {length}: give {flag}={len(values)}" if flag else "1 was expected"
                raise InputError(f"{self._where(index)}: {key} holds {len(values)} values, {needed}")
            flat.extend(values)
        return np.array(flat, dtype).reshape(len(features), length)

    def _without_padding(self, columns: dict[str, np.ndarray], indices: np.ndarray) -> Columns:
        ids, segments, weights = (columns[key] for key in ("input_ids", "segment_ids", "masked_lm_weights"))
        lengths = np.count_nonzero(columns["input_mask"], axis=1)
        place = np.arange(self.max_seq_length)
        inside = place < lengths[:, None]
        self._check(
            (columns["input_mask"] != inside) | (lengths == 0)[:, None],
            indices,
            "input_mask is not ones followed by zeros",
        )
        sentence_a_tokens = np.count_nonzero((segments == 0) & inside, axis=1)
        second = (place >= sentence_a_tokens[:, None]) & inside
        self._check((segments != second) & inside, indices, "segment_ids are not zeros followed by ones")
        self._check((weights != 0) & (weights != 1), indices, "masked_lm_weights are not all 0 or 1")
        predicted = weights == 1
        positions, original_ids = columns["masked_lm_positions"], columns["masked_lm_ids"]
        beyond = ((positions < 0) | (positions >= lengths[:, None])) & predicted
        self._check(beyond, indices, "a masked_lm_position is beyond its tokens")
        for key, values, used in (("input_ids", ids, inside), ("masked_lm_ids", original_ids, predicted)):
            beyond = ((values < 0) | (values >= self.vocab_size)) & used
            came = values[beyond][0] if beyond.any() else 0
            told = f"id {came} in {key} is beyond the vocabulary of {self.vocab_size} entries (--vocab_file)"
            self._check(beyond, indices, told)
        labels = columns["next_sentence_labels"]
        self._check((labels != 0) & (labels != 1), indices, "next_sentence_labels is not 0 or 1")
        offsets = np.concatenate([[0], np.cumsum(predicted.sum(axis=1))]).astype(np.int64)
        return {
            "input_ids": (
                ids[inside].astype(np.int32),
                np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            ),
            "sentence_a_tokens": sentence_a_tokens.astype(np.int32),
            "masked_lm_positions": (positions[predicted].astype(np.int32), offsets),
            "masked_lm_ids": (original_ids[predicted].astype(np.int32), offsets),
            "is_random_next": labels[:, 0].astype(np.int8),
        }

    def _check(self, wrong: np.ndarray, indices: np.ndarray, what: str) -> None:
        if wrong.any():
            row = np.flatnonzero(wrong.reshape(len(indices), -1).any(axis=1))[0]
            raise InputError(f"{self._where(indices[row])}: {what}")

    def _where(self, index: int) -> str:
        """The place of a row, for messages."""
        number = int(np.searchsorted(self._starts, index, side="right")) - 1
        record = int(index - self._starts[number])
        return f"{self.flag} {self.files[number]}: record {record} at byte {self._offsets[number][record]}"


# -- the index ----------------------------------------------------------------------------------------------------


def _matching(patterns: str, flag: str) -> list[Path]:
    files: list[Path] = []
    for pattern in patterns.split(","):
        found = sorted(glob.glob(os.path.expanduser(pattern.strip())))
        if not found:
            raise InputError(f"{flag} {pattern}: no such file")
        files += map(Path, found)
    twice = {str(file) for file in files if files.count(file) > 1} if len(set(files)) < len(files) else set()
    if twice:
        raise InputError(f"{flag} {patterns}: {min(twice)} is matched twice")
    return files


def _index(file: Path, cache_dir: Path, flag: str) -> tuple[np.ndarray, bytes]:
    """Where each record of a file begins and where the last one ends (int64 [records + 1], memory-mapped), and a
    digest of all the records' checksums.

    The index is a .npy file of int64 numbers, the last four of which are the digest; its name stands for
    the file's path, size and time of change.
    """
    try:
        told = file.stat()
        name = f"{INDEX_VERSION}\0{file.resolve()}\0{told.st_size}\0{told.st_mtime_ns}"
        index = cache_dir / f"tfrecord-{hashlib.sha256(name.encode()).hexdigest()[:24]}.npy"
        if not index.exists():
            offsets, checksum = _find_records(file, f"{flag} {file}")
            index.parent.mkdir(parents=True, exist_ok=True)
            with Replacement(index) as temporary:
                np.save(temporary, np.concatenate([offsets, np.frombuffer(checksum, np.int64)]))
    except OSError as error:
        raise InputError(f"{flag} {file}: {error.strerror or error}: {error.filename}") from error
    numbers = np.load(index, mmap_mode="r")
    return numbers[:-4], numbers[-4:].tobytes()


def _find_records(file: Path, where: str) -> tuple[np.ndarray, bytes]:
    """Follows the lengths through a file (2 µs a record) and checks each against its checksum."""
    size = file.stat().st_size
    if size == 0:
        raise InputError(f"{where}: the file is empty")
    with file.open("rb") as opened:
        if opened.read(len(GZIP_MAGIC)) == GZIP_MAGIC:
            plain = file.with_suffix("") if file.suffix == ".gz" else file.with_name(f"{file.name}.plain")
            command = f"gzip -dc {shlex.quote(str(file))} > {shlex.quote(str(plain))}"
            raise InputError(
                f"{where}: it is compressed, which cannot be read at any place; convert it: {command}"
            )
    data = np.memmap(file, np.uint8, mode="r")
    view, length_at = data.data, struct.Struct("<Q").unpack_from
    blocks, end = [np.empty(0, np.int64)], 0
    while end <= size - HEADER_BYTES:
        starts = array("q")
        while end <= size - HEADER_BYTES and len(starts) < RECORDS_AT_ONCE:
            starts.append(end)
            end += length_at(view, end)[0] + AROUND_BYTES
        _check_lengths(data, np.array(starts), (len(blocks) - 1) * RECORDS_AT_ONCE, where)
        blocks.append(np.array(starts))
    offsets = np.concatenate(blocks)
    if end != size:
        cut = len(offsets) - 1 if end > size else len(offsets)
        start, stop = (offsets[cut], end) if end > size else (end, f"{end + AROUND_BYTES} or later")
        raise InputError(
            f"{where}: truncated: record {cut} at byte {start} ends at byte {stop}, the file at {size}"
        )
    offsets = np.append(offsets, end)
    checksums = hashlib.sha256()
    for first in range(1, len(offsets), RECORDS_AT_ONCE):
        stops = offsets[first : first + RECORDS_AT_ONCE]
        checksums.update(data[stops[:, None] + np.arange(-FOOTER_BYTES, 0)])
    return offsets, checksums.digest()


def _check_lengths(data: np.ndarray, starts: np.ndarray, first: int, where: str) -> None:
    headers = data[starts[:, None] + np.arange(HEADER_BYTES)]
    lengths = np.ascontiguousarray(headers[:, :8]).view("<u8")[:, 0]
    stored = np.ascontiguousarray(headers[:, 8:]).view("<u4")[:, 0]
    computed = np.fromiter((masked_crc32c(header[:8].tobytes()) for header in headers), np.uint32, len(starts))
    wrong = np.flatnonzero(stored != computed)
    if len(wrong):
        record = first + wrong[0]
        what = "the file is damaged" if record else "no TFRecord file, or a damaged one"
        told = f"record {record} at byte {starts[wrong[0]]}: the checksum of its length is wrong"
        raise InputError(f"{where}: {told}: {what}")
    if lengths.max() > LONGEST_RECORD:
        long = int(lengths.argmax())
        told = f"of {lengths[long]:,} bytes is no pretraining example"
        raise InputError(f"{where}: record {first + long} at byte {starts[long]} {told}")


# -- the format ---------------------------------------------------------------------------------------------------


def masked_crc32c(data: bytes) -> int:
    """TensorFlow's CRC32C, masked because the sums stand among the bytes that they are sums of."""
    found = google_crc32c.value(data)
    return ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF


_PROTO = """
name: "example.proto" package: "tensorflow" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".tensorflow.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".tensorflow.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".tensorflow.Int64List" oneof_index: 0 } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE
    type_name: ".tensorflow.Features.FeatureEntry" }
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".tensorflow.Feature" } } }
message_type { name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".tensorflow.Features" } }
"""  # tensorflow/core/example/{example,feature}.proto


@functools.cache
def _example_class() -> Any:
    """`tf.train.Example`, in a pool of its own: TensorFlow declares the same names in the common one."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_PROTO, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


def _kind(key: str) -> tuple[str, type]:
    return ("float_list", np.float32) if key == "masked_lm_weights" else ("int64_list", np.int64)
