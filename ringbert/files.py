"""Files and folders that appear whole or not at all, and JSON in them.

Whatever is written here is written beside its final place, synced to disk and then renamed. The temporary name
holds the host and the process, so that two jobs do not collide and what a killed one left is recognised.
"""

import contextlib
import glob
import gzip
import json
import os
import shutil
import socket
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ringbert.errors import InputError


@contextlib.contextmanager
def replacing(path: Path, sync: bool = True) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when the `with` block ends without an exception.

    An exception leaves the old file as it was and nothing beside it. Without `sync` a power cut may
    lose the file or damage it, and what killed processes left beside it is not removed. That saves time for files
    that can be made again, above all in a folder of many files.
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
    """Replaces a file by this text."""
    with replacing(path, sync) as file:
        file.write(text.encode())


def write_json(path: Path, value: object, indent: int | None = 4, sync: bool = True) -> None:
    """Replaces a file by this value as JSON; what JSON does not know is written as its `str`."""
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False, default=str) + "\n", sync)


def read_text(path: Path, where: str = "") -> str:
    """The text of a UTF-8 file, plain or gzip, without a byte order mark.

    Raises InputError, its message starting with `where` (default: the path), for a file that cannot be read, is
    damaged or is not UTF-8.
    """
    where = where or str(path)
    raw = b""
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        return raw.decode("utf-8").removeprefix("\ufeff")
    except FileNotFoundError:
        raise InputError(f"{where}: no such file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{where}: truncated or damaged gzip file ({error})") from error
    except OSError as error:
        raise InputError(f"{where}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{where}: line {line} is not UTF-8 ({error.reason} at byte {error.start})") from error


def read_json(path: Path, where: str = "") -> Any:
    """The value in a JSON file, plain or gzip. Raises InputError as `read_text`, and for text that is not JSON."""
    text = read_text(path, where)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where or path}: not valid JSON ({error})") from error


def replace_folder(final: Path, fill: Callable[[Path], None]) -> None:
    """Puts the folder that `fill(folder)` writes in the place of `final`.

    The old one is set aside as `NAME.old` and removed at the end: at every moment one of the two is there, whole.
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
    """Removes a folder under a temporary name, so that a kill never leaves half of it under its own."""
    shutil.rmtree(folder.rename(_temporary_name(folder)))


def build_folder(final: Path, build: Callable[[Path], None]) -> bool:
    """Builds the folder `final` by `build(folder)` unless it is there; whether it was built now.

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
    """Adds the files that `fill(folder)` writes to the folder `final`, when all are written.

    A new or empty folder appears whole. To one that holds other files they are moved one after the other, the file
    named `last` at the end.
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
    """A folder filled and synced under a temporary name, removed in the end unless it was renamed."""
    temporary = _temporary_name(final)
    try:
        temporary.mkdir(parents=True)
        fill(temporary)
        sync_tree(temporary)
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary_name(final: Path, clean: bool = True) -> Path:
    """A free name beside `final` for this process; with `clean`, removes what dead processes left there."""
    prefix = f".{final.name}.{_machine()}."
    for left in final.parent.glob(f"{glob.escape(prefix)}*.tmp") if clean else ():
        process_id = left.name.removeprefix(prefix).removesuffix(".tmp")
        # After a reboot or in a restarted container a dead process may have had this one's number.
        if process_id.isdigit() and (int(process_id) == os.getpid() or not is_running(int(process_id))):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
    return final.with_name(f"{prefix}{os.getpid()}.tmp")


def _machine() -> str:
    """The host and, on Linux, the process namespace: containers of one host name may number processes alike."""
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
    except PermissionError:  # it is another user's
        pass
    return True


def sync_tree(folder: Path) -> None:
    """Makes the files of a new folder last through a power cut, and gives each the permissions of a new file.

    Some libraries create files that only their owner may read.
    """
    permissions = folder.stat().st_mode & 0o666  # the umask itself can be read only by changing it for all threads
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(permissions)
            sync_file(path)
    sync_folder(folder)


def sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes renames and new names within a folder last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
