"""Google's TFRecord shards of pretraining examples, written without TensorFlow, which every worker would import.

A record of a TFRecord file is a length n (uint64), the masked CRC32C of those 8 bytes (uint32), n bytes, and their
masked CRC32C (uint32), all little-endian (tensorflow/core/lib/io/record_writer.h). The n bytes are a
`tf.train.Example` (tensorflow/core/example/*.proto, protobuf.dev/programming-guides/encoding), whose features are
those of google-research/bert `create_pretraining_data.py`.
"""

import functools
import itertools
from collections.abc import Iterator
from typing import BinaryIO

import google_crc32c
import numpy as np
import pyarrow as pa

from ringbase.ragged import offsets_of

FLOATS, INTEGERS = 2, 3  # the lists of a Feature
ONE = np.float32(1).tobytes()


def write_records(
    file: BinaryIO, batch: pa.RecordBatch, max_seq_length: int, max_predictions_per_seq: int
) -> None:
    """Writes examples, which have the columns of a shard with static masks, padded with 0 as in Google's files."""
    records: list[bytes] = []
    lists = (_packed(batch.column(name)) for name in ("input_ids", "masked_lm_positions", "masked_lm_ids"))
    numbers = (np.from_dlpack(batch.column(name)).tolist() for name in ("sentence_a_tokens", "is_random_next"))
    for (ids, tokens), (positions, used), (originals, _), first, label in zip(*lists, *numbers, strict=True):
        padding, unused = bytes(max_seq_length - tokens), bytes(max_predictions_per_seq - used)
        features = (
            _feature("input_ids", ids + padding)
            + _feature("input_mask", b"\1" * tokens + padding)
            + _feature("segment_ids", bytes(first) + b"\1" * (tokens - first) + padding)
            + _feature("masked_lm_positions", positions + unused)
            + _feature("masked_lm_ids", originals + unused)
            + _feature("masked_lm_weights", ONE * used + 4 * unused, FLOATS)
            + _feature("next_sentence_labels", bytes([label]))
        )
        example = _tag(1, len(features)) + features
        length = len(example).to_bytes(8, "little")
        records += (length, _checksum(length), example, _checksum(example))
    file.write(b"".join(records))


def _packed(column: pa.Array) -> Iterator[tuple[bytes, int]]:
    """The values of each row as varints, and their number. A varint is groups of 7 bits, lowest first; all but the
    last group set the top bit."""
    offsets = np.from_dlpack(column.offsets)
    values = np.from_dlpack(column.flatten()).astype(np.int32)[:, None]
    places = np.arange(-(-int(values.max(initial=1)).bit_length() // 7))
    rest = values >> (7 * places).astype(np.int32)
    used = (rest > 0) | (places == 0)
    groups = (rest & 127).astype(np.uint8) | (rest > 127).astype(np.uint8) << np.uint8(7)
    packed, ends = groups[used].tobytes(), offsets_of(used.sum(axis=1))[offsets - offsets[0]].tolist()
    rows = (packed[start:stop] for start, stop in itertools.pairwise(ends))
    return zip(rows, np.diff(offsets).tolist(), strict=True)


def _feature(name: str, packed: bytes, kind: int = INTEGERS) -> bytes:
    return _head(name, kind, len(packed)) + packed


@functools.cache
def _head(name: str, kind: int, size: int) -> bytes:
    """What comes before `size` bytes of packed numbers: the sizes of the messages around them, and the name."""
    head = _tag(1, size)
    for number in (kind, 2):  # Int64List or FloatList in a Feature in an entry
        head = _tag(number, len(head) + size) + head
    head = _tag(1, len(name)) + name.encode() + head
    return _tag(1, len(head) + size) + head


def _tag(number: int, size: int) -> bytes:
    """The beginning of a field of `size` bytes: packed numbers, text or another message."""
    return bytes([number << 3 | 2]) + _varint(size)


def _varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + _varint(number >> 7)


def _checksum(data: bytes) -> bytes:
    """TensorFlow's masked CRC32C: masked, because other checksums may cover data that contains checksums."""
    crc = google_crc32c.value(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")
