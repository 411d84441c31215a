"""Google's TFRecord shards of pretraining examples, written without TensorFlow, which every worker would import.

A record of a TFRecord file is a length n (uint64), the masked CRC32C of those 8 bytes (uint32), n bytes, and their
masked CRC32C (uint32), all little-endian (tensorflow/core/lib/io/record_writer.h). The n bytes are a
`tf.train.Example` (tensorflow/core/example/*.proto, protobuf.dev/programming-guides/encoding), whose features are
those of google-research/bert `create_pretraining_data.py`.
"""

import functools
import itertools
import struct
from collections.abc import Iterable, Iterator

import google_crc32c
import pyarrow as pa

from bert.corpus.columns import values_and_offsets, values_of
from ringbase.hashing import HashingWriter


def write_records(
    sink: HashingWriter, batches: Iterable[pa.RecordBatch], max_seq_length: int, max_predictions_per_seq: int
) -> list[int]:
    """Writes examples, which have the columns of a shard with static masks, padded with 0 as in Google's files.
    Returns the number of rows in each batch."""
    sizes = []
    for batch in batches:
        lists = (_rows(batch.column(name)) for name in ("input_ids", "masked_lm_positions", "masked_lm_ids"))
        numbers = (values_of(batch.column(name)).tolist() for name in ("sentence_a_tokens", "is_random_next"))
        for ids, positions, originals, a_tokens, is_random in zip(*lists, *numbers, strict=True):
            padding, places = [0] * (max_seq_length - len(ids)), [0] * (max_predictions_per_seq - len(positions))
            features = (
                _integers("input_ids", ids + padding)
                + _runs("input_mask", (1, len(ids)), (0, len(padding)))
                + _runs("segment_ids", (0, a_tokens), (1, len(ids) - a_tokens), (0, len(padding)))
                + _integers("masked_lm_positions", positions + places)
                + _integers("masked_lm_ids", originals + places)
                + _weights(len(positions), len(places))
                + _runs("next_sentence_labels", (is_random, 1))
            )
            example = _field(1, features)
            length = len(example).to_bytes(8, "little")
            sink.write(b"".join((length, _checksum(length), example, _checksum(example))))
        sizes.append(len(batch))
    return sizes


def _rows(column: pa.Array) -> Iterator[list[int]]:
    values, offsets = (array.tolist() for array in values_and_offsets(column))
    return (values[start:stop] for start, stop in itertools.pairwise(offsets))


def _integers(name: str, values: list[int]) -> bytes:
    return _feature(name, _field(3, _field(1, b"".join(map(_varint, values)))))  # int64_list


@functools.lru_cache(1 << 16)
def _runs(name: str, *runs: tuple[int, int]) -> bytes:
    """A feature whose values are runs of equal numbers: (number, length)."""
    return _integers(name, [value for value, length in runs for _ in range(length)])


@functools.lru_cache(1 << 16)
def _weights(ones: int, zeros: int) -> bytes:
    packed = struct.pack(f"<{ones + zeros}f", *[1.0] * ones, *[0.0] * zeros)
    return _feature("masked_lm_weights", _field(2, _field(1, packed)))  # float_list


def _feature(name: str, value: bytes) -> bytes:
    """An entry of the map of features."""
    return _field(1, _field(1, name.encode()) + _field(2, value))


def _field(number: int, content: bytes) -> bytes:
    """A field of a protobuf message that is bytes, packed numbers or another message."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


@functools.lru_cache(1 << 17)
def _varint(number: int) -> bytes:
    """Groups of 7 bits, lowest first; every group except the last sets the top bit."""
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + _varint(number >> 7)


def _checksum(data: bytes) -> bytes:
    """TensorFlow's masked CRC32C: masked, because other checksums may cover data that contains checksums."""
    crc = google_crc32c.value(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")
