"""Files that appear whole or not at all."""

import glob
import os
import socket
from pathlib import Path


class Replacement:
    """A file written beside `path`, which it replaces when the `with` block ends well; what a killed writer of the
    same host left there is removed."""

    def __init__(self, path: Path):
        self.path = path
        self._prefix = f".{path.name}.{socket.gethostname()}."
        self._temporary = path.with_name(f"{self._prefix}{os.getpid()}.tmp")

    def __enter__(self):
        for left in self.path.parent.glob(f"{glob.escape(self._prefix)}*.tmp"):
            if not _is_running(int(left.name.split(".")[-2])):
                left.unlink(missing_ok=True)
        self._file = self._temporary.open("wb")
        return self._file

    def __exit__(self, kind, *_) -> None:
        try:
            with self._file:
                if kind is None:
                    self._file.flush()
                    os.fsync(self._file.fileno())
            if kind is None:
                self._temporary.replace(self.path)
                parent = os.open(self.path.parent, os.O_RDONLY)
                os.fsync(parent)
                os.close(parent)
        finally:
            self._temporary.unlink(missing_ok=True)


def _is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's
    return True
