"""The manifest of a checkpoint, or of rows in the cache: the names, sizes and SHA-256 of its files.
A folder that matches it is intact."""

from gzip import BadGzipFile
from pathlib import Path

from ringbase.errors import InputError, Unreadable, one_line
from ringbase.files import read_object, sha256, write_json

FORMAT = 1
NAME = "manifest.json"
# what a folder without a manifest, or none, gives, and a packed text that is damaged
ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError, BadGzipFile)


def seal(folder: Path, position: int) -> None:
    """Writes the manifest of a folder, which makes it complete. `position`: of a checkpoint, in
    rows of the stream; 0 of rows in the cache."""
    files = {path.name: (path.stat().st_size, sha256(path)) for path in sorted(folder.iterdir())}
    write_json(folder / NAME, {"format": FORMAT, "position": position, "files": files}, 1)


def position_of(folder: Path) -> int | None:
    """The position of a folder that is sealed and has all its files; None for any other."""
    try:
        position, _ = _complete(folder)
    except (InputError, OSError):
        return None
    return position


def check_intact(folder: Path) -> None:
    """Raises InputError, with the reason, unless all bytes of the folder's files match its
    manifest: Unreadable if that cannot be found out. Reads regular files of the folder only, and no
    more bytes than the manifest names."""
    try:
        _, digests = _complete(folder)
        changed = [name for name, digest in digests.items() if sha256(folder / name) != digest]
    except OSError as error:
        raise Unreadable(f"cannot be read ({one_line(error)})") from error
    if changed:
        raise InputError(f"{', '.join(changed)} changed since it was written")


def _complete(folder: Path) -> tuple[int, dict[str, str]]:
    """The position and digests in the manifest of a folder whose files have the sizes in it. Raises
    InputError for any other folder."""
    try:
        content = read_object(folder / NAME, NAME)
    except InputError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and not isinstance(cause, ABSENT):
            raise cause from None
        raise
    match content:
        case {"format": int(version), "position": int(position), "files": dict(files)} if (
            version == FORMAT
        ):
            pass
        case _:
            raise InputError(f"{NAME} is damaged, or of another version of RingBERT")
    regular = [path for path in folder.iterdir() if path.is_file() and not path.is_symlink()]
    sizes = {path.name: path.stat().st_size for path in regular}
    digests = {}
    for name, facts in files.items():
        match facts:
            case [int(size), str(digest)] if sizes.get(name) == size:
                digests[name] = digest
            case _:
                raise InputError(f"{name} is missing, or no regular file of the size in {NAME}")
    return position, digests
