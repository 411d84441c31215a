"""Writes files and folders that appear whole or not at all, reads text and JSON, and makes digests.

All is written beside its place, synced to disk and renamed. Temporary names hold host and process,
so that jobs do not collide and the remains of a killed one are recognised. JSON is read as Python
does, with NaN and infinities, which it writes; only half a surrogate pair is refused.
"""

import contextlib
import errno
import glob
import gzip
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import socket
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from datetime import date, time
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePath
from typing import Any, BinaryIO
from uuid import UUID

import numpy as np

from ringbase.errors import InputError
from ringbase.settings import SURROGATE, shown

STANDARD_INPUT = "-"  # as the name of a file
MOST_BYTES = 4 << 30  # of a text that is read into memory
SMALL_BYTES = 1 << 26  # of a file that is not data: a configuration, a tokenizer
READ_BYTES = 1 << 20
Fill = Callable[[Path], None]  # writes the files of a folder
# by which a file system says that it does not sync, lock or rename folders
UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")  # half of a pair, for characters beyond U+FFFF


def cache_folder() -> Path:
    """Where prepared data is kept: $RINGBERT_CACHE, else ~/.cache/ringbert."""
    named = os.environ.get("RINGBERT_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "ringbert"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when the `with` block ends without an exception;
    after one the old file is unchanged and nothing is left beside it."""
    temporary = _temporary_name(path)
    try:
        with temporary.open("wb") as file:
            yield file
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file, or leaves the old one untouched."""
    with replacing(path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Replaces a file with this text."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: object, indent: int | None = 4) -> None:
    """Replaces a file with this value as JSON; values that JSON does not support are written as
    their `str`."""
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False, default=str) + "\n")


def read_text(source: Path | BinaryIO, where: str = "", most_bytes: int = MOST_BYTES) -> str:
    """The text of a UTF-8 file, plain or gzip, without a byte order mark.

    Raises InputError, its message starting with `where` (default: the path), for a file that cannot
    be read, is damaged, is not UTF-8, or has, packed or unpacked, more than `most_bytes`.
    """
    where = where or str(source)
    raw = b""
    try:
        with source.open("rb") if isinstance(source, Path) else source as file:
            raw = _bytes_of(file, where, most_bytes)
        if raw[:2] == b"\x1f\x8b":
            raw = _bytes_of(gzip.GzipFile(fileobj=io.BytesIO(raw)), where, most_bytes)
        return raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{where}: line {line} is not UTF-8 ({error.reason} at byte {error.start})"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{where}: {getattr(error, 'strerror', None) or error}") from error


def lines_of(text: str) -> list[str]:
    """The lines of a text, which end with LF or CRLF, or, in a text without an LF, with CR. Not
    those of `str.splitlines`, which also splits at characters that texts hold, such as U+2028 and
    U+0085."""
    end = "\n" if "\n" in text else "\r"
    return [line.rstrip("\r") for line in text.split(end)]


def read_standard_input(where: str) -> str:
    """All of standard input, as `read_text` reads a file."""
    if sys.stdin is None:
        raise InputError(f"{where}: it is closed")
    return read_text(sys.stdin.buffer, where)


def _bytes_of(file: BinaryIO | gzip.GzipFile, where: str, most_bytes: int) -> bytes:
    """All bytes of a file. In pieces, because a device or a compressed file may never end."""
    pieces = iter(lambda: file.read(READ_BYTES), b"")
    raw = b"".join(itertools.islice(pieces, most_bytes // READ_BYTES + 1))
    if len(raw) > most_bytes:
        raise InputError(
            f"{where}: more than {most_bytes >> 20:,} MiB, the most that this file may have"
        )
    return raw


def read_json(path: Path, where: str = "", most_bytes: int = MOST_BYTES) -> Any:
    """The value in a JSON file, plain or gzip. Raises InputError, its message starting with `where`
    (default: the path), like `read_text` and `parse_json`."""
    return parse_json(read_text(path, where, most_bytes), f"{where or path}: ")


def read_object(path: Path, where: str = "") -> dict[str, Any]:
    """The object in a small JSON file, such as a configuration. Raises InputError also for any
    other value."""
    value = read_json(path, where, SMALL_BYTES)
    if not isinstance(value, dict):
        raise InputError(f"{where or path}: expected a JSON object, got {shown(value)}")
    return value


def parse_json(text: str, prefix: str = "") -> Any:
    """The value that a text stands for. Raises InputError, its message starting with `prefix`."""
    try:
        value = json.loads(text, object_pairs_hook=_object_of)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{prefix}not valid JSON ({error})") from error
    if ESCAPED.search(text) and (half := SURROGATE.search(json.dumps(value, ensure_ascii=False))):
        raise InputError(f"{prefix}{half[0]!a} is half a surrogate pair, which is not Unicode")
    return value


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, whose keys occur once: which value of two is meant, nobody knows."""
    values = dict(pairs)
    if len(values) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {shown(twice)} occurs twice")
    return values


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(*parts: object) -> str:
    """A short digest of the arguments: of their JSON, of arrays and frames also all values. Raises
    TypeError for what it cannot spell, as its `str` might be the same for other content."""
    total = hashlib.sha256()
    for part in parts:
        total.update(json.dumps(part, sort_keys=True, default=_spelled).encode() + b"\0")
    return total.hexdigest()[:24]


def _spelled(value: Any) -> Any:
    """What stands in a digest's JSON for a value that JSON does not know."""
    if isinstance(value, PurePath | date | time | Decimal | UUID):
        return str(value)
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return ["array", value.tolist()]
        return ["array", value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest()]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, set | frozenset):
        return ["set", sorted(json.dumps(each, default=_spelled) for each in value)]
    if is_dataclass(value) and not isinstance(value, type):
        content = {each.name: getattr(value, each.name) for each in dataclass_fields(value)}
        return [type(value).__name__, content]
    if hasattr(value, "to_pylist"):  # Arrow's
        return ["table", value.to_pylist()]
    if hasattr(value, "to_numpy"):  # a frame, a column or an index, of whatever library
        parts = [getattr(value, name, None) for name in ("name", "columns", "index")]
        labels = [None if callable(part) else part for part in parts]
        return ["frame", *labels, value.to_numpy()]
    raise TypeError(f"{shown(value)} of {type(value)}")


def replace_folder(final: Path, fill: Fill) -> None:
    """Puts the folder that `fill(folder)` writes in the place of `final`. The old one is set aside
    as `NAME.old` and removed at the end, so one of the two is always there, complete."""
    old = final.with_name(f"{final.name}.old")
    with filled_beside(final, fill) as new:
        if final.exists():
            remove_folder(old)  # left by a kill between the two renames
            try:
                final.rename(old)
            except OSError as error:
                if error.errno != errno.EXDEV:  # overlayfs: a folder of an image's lower layer
                    raise
                shutil.move(final, old)
        new.rename(final)
    remove_folder(old)


def remove_folder(folder: Path) -> OSError | None:
    """Renames a folder, if there is one, and then removes it: a kill leaves no half of it under its
    own name. Of a link only the link goes. Returns what kept it from being removed, whole or in
    part: that is no reason to end."""
    try:
        if folder.is_symlink():
            folder.unlink()
        elif folder.exists():
            gone = folder
            with contextlib.suppress(OSError):  # overlayfs renames no folder of an image
                gone = folder.rename(_temporary_name(folder))
            shutil.rmtree(gone)
    except OSError as error:  # a file that is open over NFS, a mount, another user's
        return error
    return None


def check_renames(folder: Path) -> None:
    """Raises InputError if the file system of a folder cannot rename folders, by which checkpoints
    and models appear as a whole."""
    probe = _temporary_name(folder / "probe")
    moved = probe.with_suffix(".moved")
    try:
        probe.mkdir()
        probe.rename(moved)
    except OSError as error:
        if error.errno in (*UNSUPPORTED, errno.EXDEV):
            raise InputError(
                f"{folder}: its file system cannot rename folders ({error.strerror}), which"
                " checkpoints and models need: give a folder of another one, or a store's URL"
            ) from error
        raise
    finally:
        for each in (probe, moved):
            if each.is_dir():
                each.rmdir()


def build_folder(final: Path, build: Fill) -> bool:
    """Builds the folder `final` with `build(folder)` unless it exists; returns whether this call
    built it. When another process builds it at the same time, the first to finish wins."""
    if final.is_dir():
        return False
    with filled_beside(final, build) as new:
        try:
            new.rename(final)
        except OSError:
            if not final.is_dir():
                raise
    return True


@contextlib.contextmanager
def filled_beside(final: Path, fill: Fill) -> Iterator[Path]:
    """A folder, filled and synced under a temporary name, that the `with` block moves to `final`,
    as a whole or by its files. What the block leaves is removed."""
    temporary = _temporary_name(final)
    try:
        temporary.mkdir(parents=True)
        fill(temporary)
        # some libraries create files that only the owner may read
        permissions = temporary.stat().st_mode & 0o666
        for path in filter(Path.is_file, sorted(temporary.rglob("*"))):
            with contextlib.suppress(OSError):  # of SMB, of mounts of stores
                path.chmod(permissions)
            _sync(path)
        _sync(temporary)
        yield temporary
        _sync(final)
        _sync(final.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary_name(final: Path) -> Path:
    """A free name beside `final` for this process; removes the remains of dead processes there."""
    # Containers of one host may have processes of the same number, in different namespaces.
    prefix = f".{final.name}.{socket.gethostname()}-{os.stat('/proc/self/ns/pid').st_ino}."
    own = final.with_name(f"{prefix}{os.getpid()}.tmp")
    for path in final.parent.glob(f"{glob.escape(prefix)}*.tmp"):
        # After a reboot, or in a restarted container, this process may have the number of a dead
        # one.
        if path == own or not Path("/proc", path.suffixes[-2][1:]).exists():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    return own


def _sync(path: Path) -> None:
    """Makes a file's bytes, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNSUPPORTED:  # as some say of folders
            raise
    finally:
        os.close(descriptor)
