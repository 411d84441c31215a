"""The bytes of Google's TFRecord shards of pretraining examples.

Many `tf.train.Example` messages are encoded at once, as NumPy arrays, which is several times faster than one
message object for each. The bytes are those of protobuf's deterministic serialization, with keys sorted by name.
"""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from bert.corpus.tfrecord_format import Columns, masked_crc32c
from ringbase.errors import InputError

EXAMPLES_AT_ONCE = 2048


def serialized(examples: Columns, *, max_seq_length: int, max_predictions_per_seq: int) -> Iterator[bytes]:
    """Yields the records of these examples, many at a time; concatenated, they are a TFRecord file.

    `examples` are columns as `RecordRows.take` gives them, with masks applied to `input_ids`. They are padded with
    0, as in Google's files. Without `is_random_next` (absent or None) next_sentence_labels is 0, because Google's
    reader needs the key. Raises InputError: an example has too many tokens or predictions.
    """
    input_ids, inside = _padded(examples, "input_ids", max_seq_length, "--max_seq_length")
    limit = (max_predictions_per_seq, "--max_predictions_per_seq")
    positions, predicted = _padded(examples, "masked_lm_positions", *limit)
    original_ids, _ = _padded(examples, "masked_lm_ids", *limit)
    first = np.asarray(examples["sentence_a_tokens"])[:, None]
    labels = examples.get("is_random_next")
    columns = {
        "input_ids": input_ids,
        "input_mask": inside,
        "masked_lm_ids": original_ids,
        "masked_lm_positions": positions,
        "masked_lm_weights": predicted.astype("<f4"),
        "next_sentence_labels": np.zeros_like(first) if labels is None else np.asarray(labels)[:, None] != 0,
        "segment_ids": (np.arange(max_seq_length) >= first) & inside,
    }
    for start in range(0, len(first), EXAMPLES_AT_ONCE):
        yield _records({key: values[start : start + EXAMPLES_AT_ONCE] for key, values in columns.items()})


def _padded(examples: Columns, key: str, length: int, flag: str) -> tuple[np.ndarray, np.ndarray]:
    """A ragged column as [n, length], padded with 0, and a mask of the values that are not padding."""
    values, offsets = examples[key]
    lengths = np.diff(offsets)
    if lengths.max(initial=0) > length:
        raise InputError(f"{key} of {lengths.max()} values does not fit into {flag} {length}")
    inside = np.arange(length) < lengths[:, None]
    padded = np.zeros(inside.shape, np.int32)
    padded[inside] = values
    return padded, inside


def _records(columns: dict[str, np.ndarray]) -> bytes:
    content = _examples(columns)
    values, used = (np.concatenate(arrays, axis=1) for arrays in zip(*content.parts, strict=True))
    flat, ends = values[used].tobytes(), np.cumsum(content.lengths).tolist()
    parts: list[bytes] = []
    for start, stop in zip([0, *ends[:-1]], ends, strict=True):
        record = flat[start:stop]
        parts += (_header(stop - start), record, _checksum(record))
    return b"".join(parts)


@functools.lru_cache(1 << 12)
def _header(length: int) -> bytes:
    data = length.to_bytes(8, "little")
    return data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    return masked_crc32c(data).to_bytes(4, "little")


# -- protobuf's encoding (protobuf.dev/programming-guides/encoding) -----------------------------------------------

LENGTH_DELIMITED, BITS = 2, 7


class _Bytes(NamedTuple):
    """A byte string for each of n messages.

    Attributes:
      parts: pairs of values (uint8 [n, width]) and a mask of the used ones (bool [n, width]); the byte strings are
        the used values of all parts, part by part.
      lengths: int64 [n], the lengths of the byte strings.
    """

    parts: tuple[tuple[np.ndarray, np.ndarray], ...]
    lengths: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, used: np.ndarray | None = None) -> "_Bytes":
        """Byte strings of one part; by default all values are used."""
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
    """A field of a message whose content is bytes, packed numbers or another message."""
    tag = _Bytes.of(np.full((len(content.lengths), 1), number << 3 | LENGTH_DELIMITED, np.uint8))
    return _joined(tag, _varints(content.lengths[:, None]), content)


def _joined(*strings: _Bytes) -> _Bytes:
    parts = tuple(part for string in strings for part in string.parts)
    return _Bytes(parts, np.sum([string.lengths for string in strings], axis=0))


def _varints(numbers: np.ndarray) -> _Bytes:
    """Numbers >= 0, [n, length], each as groups of 7 bits, lowest first; every group except the last sets the top
    bit."""
    numbers = np.asarray(numbers, np.uint32)
    width = max(1, -(-int(numbers.max(initial=0)).bit_length() // BITS))
    if width == 1:
        return _Bytes.of(numbers.astype(np.uint8))
    values = np.empty((*numbers.shape, width), np.uint8)
    used = np.empty(values.shape, bool)
    for place in range(width):
        rest = numbers >> np.uint32(BITS * place)
        next_groups = rest >> np.uint32(BITS)
        values[..., place] = (rest & np.uint32(0x7F)) | (next_groups > 0) << np.uint32(BITS)
        used[..., place] = (rest > 0) | (place == 0)
    return _Bytes.of(values.reshape(len(numbers), -1), used.reshape(len(numbers), -1))
