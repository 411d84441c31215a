"""Writes files and folders that appear whole or not at all, and reads text.

Everything is written beside its final place, synced to disk and then renamed. The temporary name holds the host
and the process, so that two jobs do not collide and the remains of a killed job are recognised.
"""

import contextlib
import glob
import gzip
import io
import itertools
import json
import os
import shutil
import socket
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from ringbase.errors import InputError

MOST_UNPACKED_BYTES, MOST_RATIO = 256 << 20, 200  # text shrinks 3 to 30 times, gzip's bombs 1,000 times
MOST_BYTES = 4 << 30  # of a text that is read into memory
READ_BYTES = 1 << 20
LONGEST_NAME = 255  # bytes, of Linux' file systems


@contextlib.contextmanager
def replacing(path: Path, sync: bool = True) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when the `with` block ends without an exception.

    After an exception the old file is unchanged and nothing is left beside it. Without `sync` a power cut may lose
    or damage the file, and files that killed processes left beside it are not removed. That saves time for files
    that can be written again, above all in a folder of many files.
    """
    temporary = _temporary_name(path, clean=sync)
    try:
        with temporary.open("wb") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if sync:
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, sync: bool = True) -> None:
    """Replaces a file with this text."""
    with replacing(path, sync) as file:
        file.write(text.encode())


def write_json(path: Path, value: object, indent: int | None = 4, sync: bool = True) -> None:
    """Replaces a file with this value as JSON; values that JSON does not support are written as their `str`."""
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False, default=str) + "\n", sync)


def read_text(path: Path, where: str = "", most_bytes: int = MOST_BYTES) -> str:
    """The text of a UTF-8 file, plain or gzip, without a byte order mark.

    Raises InputError, its message starting with `where` (default: the path), for a file that cannot be read, is
    damaged, is not UTF-8, is a device, has more than `most_bytes` or unpacks to more than `most_unpacked`.
    """
    where = where or str(path)
    try:
        raw = _bytes_of(path, where, most_bytes)
        if raw[:2] == b"\x1f\x8b":
            limit = min(most_unpacked(len(raw)), most_bytes)
            raw = gzip.GzipFile(fileobj=io.BytesIO(raw)).read(limit + 1)
            if len(raw) > limit:
                raise unpacks_to_too_much(where, limit)
        return _decoded(raw, where)
    except FileNotFoundError:
        raise InputError(f"{where}: no such file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{where}: truncated or damaged gzip file ({error})") from error
    except OSError as error:
        raise InputError(f"{where}: {error.strerror or error}") from error


def read_standard_input(where: str = "standard input", most_bytes: int = MOST_BYTES) -> str:
    """All of standard input, UTF-8 without a byte order mark. Raises InputError as `read_text`."""
    if sys.stdin is None:
        raise InputError(f"{where}: it is closed")
    try:
        raw = sys.stdin.buffer.read(most_bytes + 1)
    except OSError as error:
        raise InputError(f"{where}: {error.strerror or error}") from error
    if len(raw) > most_bytes:
        raise InputError(f"{where}: more than {most_bytes:,} bytes")
    return _decoded(raw, where)


def _decoded(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{where}: line {line} is not UTF-8 ({error.reason} at byte {error.start})") from error


def most_unpacked(size: int) -> int:
    """The limit in bytes of what a compressed file of this size may hold."""
    return max(MOST_UNPACKED_BYTES, MOST_RATIO * size)


def unpacks_to_too_much(where: str, limit: int) -> InputError:
    return InputError(
        f"{where}: unpacks to more than {limit:,} bytes; the limit is {MOST_UNPACKED_BYTES >> 20} MiB, or "
        f"{MOST_RATIO} times the file's size if that is more, because of hostile files: unpack it first"
    )


def _bytes_of(path: Path, where: str, most_bytes: int) -> bytes:
    """The bytes of a file or a pipe. Raises InputError and OSError."""
    with path.open("rb") as file:
        if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):
            raise InputError(f"{where}: a device, expected a file")
        pieces = iter(lambda: file.read(READ_BYTES), b"")  # a pipe may not end
        raw = b"".join(itertools.islice(pieces, most_bytes // READ_BYTES + 1))
    if len(raw) > most_bytes:
        raise InputError(f"{where}: more than {most_bytes >> 20:,} MiB, the most that this file may have")
    return raw


def is_file_name(name: object) -> bool:
    """Whether a value from a file is the name of a file in the same folder, without a path."""
    if not isinstance(name, str) or name in ("", ".", "..") or {"/", "\0"} & set(name):
        return False
    return len(name.encode(errors="replace")) <= LONGEST_NAME


def replace_folder(final: Path, fill: Callable[[Path], None]) -> None:
    """Puts the folder that `fill(folder)` writes in the place of `final`.

    The old one is set aside as `NAME.old` and removed at the end, so one of the two is always there, complete.
    """
    with _filled_beside(final, fill) as new:
        old = final.with_name(f"{final.name}.old")
        if final.exists():
            if old.exists():  # left by a kill between the two renames
                remove_folder(old)
            final.rename(old)
        new.rename(final)
        sync_folder(final.parent)
        if old.exists():
            remove_folder(old)


def remove_folder(folder: Path) -> None:
    """Renames a folder and then removes it, so that a kill never leaves half of it under its own name."""
    shutil.rmtree(folder.rename(_temporary_name(folder)))


def build_folder(final: Path, build: Callable[[Path], None]) -> bool:
    """Builds the folder `final` with `build(folder)` unless it exists; returns whether this call built it.

    When another process builds the same folder at the same time, the first to finish wins.
    """
    if final.is_dir():
        return False
    if final.exists():
        raise InputError(f"{final} is a file, expected a folder: remove it")
    final.parent.mkdir(parents=True, exist_ok=True)
    with _filled_beside(final, build) as new:
        try:
            new.rename(final)
            sync_folder(final.parent)
        except OSError:
            if not final.is_dir():
                raise
    return True


def add_to_folder(final: Path, fill: Callable[[Path], None], last: str) -> None:
    """Adds the files that `fill(folder)` writes to the folder `final`, once all are written.

    A new or empty folder appears whole. If the folder holds other files, the new ones are moved into it one by
    one, the file named `last` at the end.
    """
    with _filled_beside(final, fill) as new:
        try:
            new.rename(final)
        except OSError:  # not empty
            for path in sorted(new.iterdir(), key=lambda path: path.name == last):
                path.replace(final / path.name)
            sync_folder(final)
        sync_folder(final.parent)


@contextlib.contextmanager
def _filled_beside(final: Path, fill: Callable[[Path], None]) -> Iterator[Path]:
    """A folder, filled and synced under a temporary name; removed at the end unless the caller renamed it."""
    temporary = _temporary_name(final)
    try:
        temporary.mkdir(parents=True)
        fill(temporary)
        sync_tree(temporary)
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary_name(final: Path, clean: bool = True) -> Path:
    """A free name beside `final` for this process; with `clean`, removes the remains of dead processes there."""
    prefix = f".{final.name}.{_machine()}."
    for path in final.parent.glob(f"{glob.escape(prefix)}*.tmp") if clean else ():
        process_id = path.name.removeprefix(prefix).removesuffix(".tmp")
        # After a reboot, or in a restarted container, this process may have the number of a dead one.
        if process_id.isdigit() and (int(process_id) == os.getpid() or not is_running(int(process_id))):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    return final.with_name(f"{prefix}{os.getpid()}.tmp")


def _machine() -> str:
    """The host and, on Linux, the process namespace: containers with one host name may share process ids."""
    host = socket.gethostname()
    with contextlib.suppress(OSError):
        return f"{host}-{os.stat('/proc/self/ns/pid').st_ino}"
    return host


def is_running(process_id: int) -> bool:
    """Whether a process with this number runs here: on this host, and in this container."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # the process belongs to another user
        pass
    return True


def sync_tree(folder: Path) -> None:
    """Syncs the files of a new folder, so that they survive a power cut, and gives each the usual permissions.

    Some libraries create files that only their owner may read.
    """
    permissions = folder.stat().st_mode & 0o666  # reading the umask would mean changing it for all threads
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(permissions)
            sync_file(path)
    sync_folder(folder)


def sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes renames and new files in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
