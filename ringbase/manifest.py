"""The manifest of a checkpoint: the names, sizes and SHA-256 of its files. A folder that matches it is intact."""

import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from ringbase.errors import InputError
from ringbase.files import write_json
from ringbase.hashing import sha256
from ringbase.json_files import read_json

FORMAT = 1
NAME = "manifest.json"
MOST_BYTES = 1 << 24  # of a manifest; it has a line per file


def seal(folder: Path, position: int) -> None:
    """Writes the manifest of a folder, which makes it a checkpoint."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    facts = {str(path.relative_to(folder)): (path.stat().st_size, sha256(path)) for path in files}
    write_json(folder / NAME, {"format": FORMAT, "position": position, "files": facts}, 1, sync=False)


def position_of(folder: Path) -> int | None:
    """The position of a checkpoint whose files are complete, in rows of the stream; None for any other folder."""
    try:
        return _complete(folder)["position"]
    except InputError:
        return None


def check_intact(folder: Path) -> None:
    """Raises InputError, with the reason, unless all bytes of the folder's files match its manifest.

    Reads regular files inside the folder only, and no more bytes than the manifest names.
    """
    files: Mapping[str, tuple[int, str]] = _complete(folder)["files"]
    changed = [name for name, (_, digest) in files.items() if sha256(folder / name) != digest]
    if changed:
        raise InputError(f"{', '.join(changed)} changed since it was written")


def _complete(folder: Path) -> dict[str, Any]:
    """The manifest of a folder whose files have the sizes in it. Raises InputError otherwise."""
    manifest = _read(folder)
    for name, (size, _) in manifest["files"].items():
        try:
            status = (folder / name).lstat()
        except OSError as error:
            raise InputError(f"{name}: {error.strerror}") from error
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{name} is not a regular file")
        if status.st_size != size:
            raise InputError(f"{name} has {status.st_size} bytes, not {size}")
    return manifest


def _read(folder: Path) -> dict[str, Any]:
    """The manifest of a folder, with every value of its type. Raises InputError."""
    try:
        status = (folder / NAME).lstat()
    except OSError as error:
        raise InputError(f"{NAME}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
        raise InputError(f"{NAME} is not a file of at most {MOST_BYTES >> 20} MiB")
    manifest = read_json(folder / NAME, NAME)
    match manifest:
        case {"format": int(version)} if version != FORMAT:
            raise InputError(f"{NAME} has format {version}, expected {FORMAT}")
        case {"format": int(), "position": int(position), "files": dict(files)} if position >= 0:
            wrong = [name for name, facts in files.items() if not _is_entry(name, facts)]
            if wrong:
                raise InputError(f"{NAME} is damaged (its entry {wrong[0]!r})")
            return manifest
    raise InputError(f"{NAME} is damaged")


def _is_entry(name: str, facts: object) -> bool:
    """Whether an entry names a file inside the folder, its size and a digest."""
    path = PurePosixPath(name)
    match facts:
        case [int(size), str()]:
            return (
                size >= 0
                and "\0" not in name
                and bool(path.parts)
                and not path.is_absolute()
                and ".." not in path.parts
            )
    return False
