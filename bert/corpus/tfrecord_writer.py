"""Writes Google's TFRecord shards of pretraining examples; tfrecord.py has the format of the file.

The bytes of many `tf.train.Example` messages are laid out at once, as NumPy arrays: several times faster than a
message object for each. They are those of protobuf's deterministic serialization, keys in order of their names.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert.corpus.tfrecord import Columns, masked_crc32c
from bert.replacement import Replacement
from ringbert.errors import InputError

EXAMPLES_AT_ONCE = 2048


class RecordWriter:
    """Writes a TFRecord file under a temporary name, renamed when the `with` block ends well.

    The bytes are a function of the fields. `num_records` counts what was written.
    """

    def __init__(self, path: Path, *, max_seq_length: int, max_predictions_per_seq: int):
        self.max_seq_length, self.max_predictions_per_seq = max_seq_length, max_predictions_per_seq
        self.num_records = 0
        self._replacement = Replacement(path)

    def __enter__(self) -> "RecordWriter":
        self._file = self._replacement.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._replacement.__exit__(*error)

    def write(self, fields: Columns) -> None:
        """Appends examples: columns as `RecordRows.take` gives them, `input_ids` with masks applied.

        Padded with 0, as Google does. Without `is_random_next` (absent or None) next_sentence_labels is 0:
        Google's reader wants the key.
        Raises InputError: an example of more tokens or predictions than the file is for.
        """
        input_ids, inside = self._padded(fields, "input_ids", self.max_seq_length, "--max_seq_length")
        longest = (self.max_predictions_per_seq, "--max_predictions_per_seq")
        positions, predicted = self._padded(fields, "masked_lm_positions", *longest)
        original_ids, _ = self._padded(fields, "masked_lm_ids", *longest)
        first = np.asarray(fields["sentence_a_tokens"])[:, None]
        labels = fields.get("is_random_next")
        columns = {
            "input_ids": input_ids,
            "input_mask": inside,
            "masked_lm_ids": original_ids,
            "masked_lm_positions": positions,
            "masked_lm_weights": predicted.astype("<f4"),
            "next_sentence_labels": np.zeros_like(first) if labels is None else np.asarray(labels)[:, None] != 0,
            "segment_ids": (np.arange(self.max_seq_length) >= first) & inside,
        }
        for start in range(0, len(first), EXAMPLES_AT_ONCE):
            self._append({key: values[start : start + EXAMPLES_AT_ONCE] for key, values in columns.items()})

    def _append(self, columns: dict[str, np.ndarray]) -> None:
        content = _examples(columns)
        values, used = (np.concatenate(arrays, axis=1) for arrays in zip(*content.parts, strict=True))
        flat, ends = values[used].tobytes(), np.cumsum(content.lengths).tolist()
        parts: list[bytes] = []
        for start, stop in zip([0, *ends[:-1]], ends, strict=True):
            record = flat[start:stop]
            parts += (_header(stop - start), record, _checksum(record))
        self._file.write(b"".join(parts))
        self.num_records += len(ends)

    def _padded(self, fields: Columns, key: str, length: int, flag: str) -> tuple[np.ndarray, np.ndarray]:
        """[n, length] filled up with 0, and where it is filled."""
        values, offsets = fields[key]
        lengths = np.diff(offsets)
        if lengths.max(initial=0) > length:
            raise InputError(f"{key} of {lengths.max()} values do not fit into {flag} {length}")
        inside = np.arange(length) < lengths[:, None]
        padded = np.zeros(inside.shape, np.int32)
        padded[inside] = values
        return padded, inside


def write_records(path: Path, fields: Columns, *, max_seq_length: int, max_predictions_per_seq: int) -> None:
    """Writes examples as a TFRecord file, whole or not at all; `fields` as for `RecordWriter.write`."""
    lengths = {"max_seq_length": max_seq_length, "max_predictions_per_seq": max_predictions_per_seq}
    with RecordWriter(path, **lengths) as writer:
        writer.write(fields)


@functools.lru_cache(1 << 12)
def _header(length: int) -> bytes:
    data = length.to_bytes(8, "little")
    return data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    return masked_crc32c(data).to_bytes(4, "little")


# -- protobuf's encoding (protobuf.dev/programming-guides/encoding) -----------------------------------------------

LENGTH_DELIMITED, BITS = 2, 7


class _Bytes(NamedTuple):
    """A byte string of each of n messages: `parts` side by side, of whose values (uint8 [n, width]) only what is
    used counts (bool [n, width]); how many bytes that are, int64 [n]."""

    parts: tuple[tuple[np.ndarray, np.ndarray], ...]
    lengths: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, used: np.ndarray | None = None) -> "_Bytes":
        """One part; without `used` all of it."""
        if used is None:
            return cls(((values, np.ones_like(values, bool)),), np.full(len(values), values.shape[1]))
        return cls(((values, used),), np.count_nonzero(used, axis=1))


def _examples(columns: dict[str, np.ndarray]) -> _Bytes:
    """`tf.train.Example` messages of these features, [n, length] each (tensorflow/core/example/*.proto)."""
    n = len(next(iter(columns.values())))
    entries = []
    for key in sorted(columns):
        values = columns[key]
        if values.dtype == np.float32:
            packed, kind = _Bytes.of(np.ascontiguousarray(values, "<f4").view(np.uint8)), 2  # Feature.float_list
        else:
            packed, kind = _varints(values), 3  # Feature.int64_list
        feature = _field(kind, _field(1, packed))
        name = _Bytes.of(np.broadcast_to(np.frombuffer(key.encode(), np.uint8), (n, len(key))))
        entries.append(_field(1, _joined(_field(1, name), _field(2, feature))))
    return _field(1, _joined(*entries))


def _field(number: int, content: _Bytes) -> _Bytes:
    """A field of a message that holds bytes, packed numbers or another message."""
    tag = _Bytes.of(np.full((len(content.lengths), 1), number << 3 | LENGTH_DELIMITED, np.uint8))
    return _joined(tag, _varints(content.lengths[:, None]), content)


def _joined(*found: _Bytes) -> _Bytes:
    parts = tuple(part for one in found for part in one.parts)
    return _Bytes(parts, np.sum([one.lengths for one in found], axis=0))


def _varints(numbers: np.ndarray) -> _Bytes:
    """Numbers >= 0, [n, length], each as groups of 7 bits, the lowest first; all but the last have the top bit."""
    numbers = np.asarray(numbers, np.uint32)
    width = max(1, -(-int(numbers.max(initial=0)).bit_length() // BITS))
    if width == 1:
        return _Bytes.of(numbers.astype(np.uint8))
    values = np.empty((*numbers.shape, width), np.uint8)
    used = np.empty(values.shape, bool)
    for place in range(width):
        rest = numbers >> np.uint32(BITS * place)
        more = rest >> np.uint32(BITS)
        values[..., place] = (rest & np.uint32(0x7F)) | (more > 0) << np.uint32(BITS)
        used[..., place] = (rest > 0) | (place == 0)
    return _Bytes.of(values.reshape(len(numbers), -1), used.reshape(len(numbers), -1))
