"""Finds the records of a TFRecord file, so that they can be read in any order."""

import collections
import glob
import hashlib
import os
import shlex
import struct
from array import array
from pathlib import Path

import google_crc32c
import numpy as np

from bert.corpus.tfrecord_format import FOOTER_BYTES, FRAME_BYTES, HEADER_BYTES, masked_crc32c
from ringbase.errors import InputError
from ringbase.files import replacing

INDEX_VERSION = 2  # bump when the format of the index changes, so that old ones are not used
LONGEST_RECORD_BYTES = 1 << 17  # an example of 1,024 tokens has at most 40,000
GZIP_MAGIC = b"\x1f\x8b\x08"  # as the start of a length, it would mean a longer record
RECORDS_AT_ONCE = 1 << 16


def matching_files(patterns: str, flag: str) -> list[Path]:
    """The files that comma-separated globs match, sorted within each glob. Raises InputError for none or a
    repeated one."""
    files: list[Path] = []
    for pattern in patterns.split(","):
        matches = sorted(glob.glob(os.path.expanduser(pattern.strip())))
        if not matches:
            raise InputError(f"{flag} {pattern}: no such file")
        files += map(Path, matches)
    file, count = collections.Counter(files).most_common(1)[0]
    if count > 1:
        raise InputError(f"{flag} {patterns}: {file} is matched twice")
    return files


def record_offsets(file: Path, cache_dir: Path, flag: str) -> tuple[np.ndarray, bytes]:
    """The start of each record of a file and the end of the last one (int64 [records + 1], memory-mapped), and a
    digest of the checksums of all records.

    They are cached in `cache_dir` in a file of int64 numbers, the last five of which are the digest and a CRC32C
    of all the others; if that is wrong, the file is made again. Its name is derived from the path, size and
    modification time of `file`. Raises InputError: the file is empty, compressed or damaged.
    """
    try:
        stat = file.stat()
        name = f"{INDEX_VERSION}\0{file.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}"
        index = cache_dir / f"tfrecord-{hashlib.sha256(name.encode()).hexdigest()[:24]}.index"
        numbers = _stored(index)
        if numbers is None:
            offsets, checksum = _find_records(file, f"{flag} {file}")
            numbers = np.concatenate([offsets, np.frombuffer(checksum, np.int64)])
            index.parent.mkdir(parents=True, exist_ok=True)
            with replacing(index) as temporary:
                np.append(numbers, google_crc32c.value(numbers)).tofile(temporary)
            numbers = np.memmap(index, np.int64, mode="r")[:-1]
    except OSError as error:
        raise InputError(f"{flag} {file}: {error.strerror or error}: {error.filename}") from error
    return numbers[:-4], numbers[-4:].tobytes()


def _stored(index: Path) -> np.ndarray | None:
    """The numbers in an index without their CRC32C; None if there is no index or it is damaged."""
    if not index.exists():
        return None
    try:
        numbers = np.memmap(index, np.int64, mode="r")
    except ValueError:  # it is empty, or cut within a number
        return None
    is_intact = len(numbers) > 5 and google_crc32c.value(numbers[:-1]) == numbers[-1]
    return numbers[:-1] if is_intact else None


def _find_records(file: Path, where: str) -> tuple[np.ndarray, bytes]:
    """Follows the lengths of records through a file (2 µs a record) and compares each with its checksum."""
    size = file.stat().st_size
    if size == 0:
        raise InputError(f"{where}: the file is empty")
    with file.open("rb") as opened:
        if opened.read(len(GZIP_MAGIC)) == GZIP_MAGIC:
            plain = file.with_suffix("") if file.suffix == ".gz" else file.with_name(f"{file.name}.plain")
            command = f"gzip -dc {shlex.quote(str(file))} > {shlex.quote(str(plain))}"
            raise InputError(
                f"{where}: the file is compressed, so it cannot be read at random places; convert it: {command}"
            )
    data = np.memmap(file, np.uint8, mode="r")
    view, length_at = data.data, struct.Struct("<Q").unpack_from
    blocks, end = [np.empty(0, np.int64)], 0
    while end <= size - HEADER_BYTES:
        starts = array("q")
        while end <= size - HEADER_BYTES and len(starts) < RECORDS_AT_ONCE:
            starts.append(end)
            end += length_at(view, end)[0] + FRAME_BYTES
        _check_lengths(data, np.array(starts), (len(blocks) - 1) * RECORDS_AT_ONCE, where)
        blocks.append(np.array(starts))
    offsets = np.concatenate(blocks)
    if end != size:
        cut = len(offsets) - 1 if end > size else len(offsets)
        start, stop = (offsets[cut], end) if end > size else (end, f"{end + FRAME_BYTES} or later")
        raise InputError(
            f"{where}: truncated: record {cut} at byte {start} ends at byte {stop}, but the file has {size} bytes"
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
        reason = "the file is damaged" if record else "not a TFRecord file, or a damaged one"
        raise InputError(
            f"{where}: record {record} at byte {starts[wrong[0]]}: the checksum of its length is wrong: {reason}"
        )
    if lengths.max() > LONGEST_RECORD_BYTES:
        longest = int(lengths.argmax())
        raise InputError(
            f"{where}: record {first + longest} at byte {starts[longest]} has {lengths[longest]:,} bytes, too "
            "many for a pretraining example"
        )
