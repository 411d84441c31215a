"""Files as a simulated process has them: each call can fail, a process can die at it, and a power
cut loses what was not synced.

The files are real. What a folder's names are survives a power cut once the folder was synced, what
a file holds once the file was. Before that some of it may be there: the first of the changes of
names, and a part of the bytes.
"""

import errno
import fcntl
import itertools
import os
import pathlib
import shutil
from collections.abc import Callable
from pathlib import Path

from harness.simulation.scheduler import Process, Scheduler, current_process
from harness.simulation.threads import inside

CALLS = ("open", "rename", "replace", "unlink", "mkdir")


class Disk:
    """What the processes of a simulation do with files under `root`."""

    def __init__(self, root: Path):
        self.scheduler: Scheduler  # of the job that runs
        self.root = root
        # called before each call that changes a file; raises OSError
        self.before_call: Callable[[Process, str, Path], None] = lambda process, name, path: None
        self._synced: dict[int, tuple[int, int]] = {}  # inode -> size and time of change
        # what undoes each change of names since its folder was synced, the oldest first
        self._undo: list[tuple[set[Path], Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._real_flock = fcntl.flock
        self._bin = root.with_name(f"{root.name}-bin")
        self._bin.mkdir(parents=True)

    def patch(self, monkeypatch) -> None:
        """Every call of a process goes through this object; those of other code stay as they
        are."""
        for name in CALLS:
            monkeypatch.setattr(pathlib.Path, name, self._method(name, getattr(Path, name)))
        rmtree = shutil.rmtree
        monkeypatch.setattr(shutil, "rmtree", self._rmtree(rmtree))
        monkeypatch.setattr(os, "fsync", inside(self._fsync, os.fsync))
        monkeypatch.setattr(fcntl, "flock", inside(self._flock, fcntl.flock))

    # -- what processes call -----------------------------------------------------------------------

    def _flock(self, file, operation: int) -> None:
        """The system gives a lock back when its process dies."""
        self._real_flock(file, operation)
        current_process().locked_files.append(file)

    def _begin(self, name: str, path: Path) -> None:
        self.scheduler.pause(f"{name} {path.name}")
        self.before_call(current_process(), name, path)

    def _method(self, name: str, real: Callable) -> Callable:
        def call(path: Path, *arguments, **more):
            changes = name != "open" or "r" not in (*arguments, more.get("mode", "r"))[0]
            if current_process() is None or not changes:
                return real(path, *arguments, **more)
            self._begin(name, path)
            if name in ("rename", "replace"):
                return self._rename(path, Path(arguments[0]), real)
            return real(path, *arguments, **more)

        return call

    def _rename(self, path: Path, target: Path, real: Callable) -> Path:
        kept = None
        if target.is_file():  # it is replaced
            kept = self._bin / f"{next(self._numbers)}-{target.name}"
            os.link(target, kept)

        def undo() -> None:
            if target.exists() and not path.exists():
                os.rename(target, path)
            if kept and kept.exists():
                os.replace(kept, target)

        moved = real(path, target)
        self._undo.append(({path.parent, target.parent}, undo))
        return moved

    def _rmtree(self, real: Callable) -> Callable:
        def call(path, *arguments, **more) -> None:
            if current_process() is None:
                real(path, *arguments, **more)
                return
            self._begin("rmtree", Path(path))
            real(path, *arguments, **more)

        return call

    def _fsync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        self._begin("sync", path)
        if path.is_dir():
            self._undo = [(folders, undo) for folders, undo in self._undo if path not in folders]
        else:
            self._synced[path.stat().st_ino] = _change_of(path)

    # -- what happens to them ----------------------------------------------------------------------

    def cut_power(self) -> None:
        """Loses some of what was not synced. All processes are dead."""
        chance = self.scheduler.chance
        lost = chance.randint(0, len(self._undo))
        for _, undo in reversed(self._undo[len(self._undo) - lost :]):
            undo()
        self._undo = []
        for path in sorted(self.root.rglob("*")):
            if path.is_file() and self._synced.get(path.stat().st_ino) != _change_of(path):
                os.truncate(path, chance.randint(0, path.stat().st_size))

    def damage(self, folder: Path) -> None:
        """Changes a byte of a file in this folder."""
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        path = self.scheduler.chance.choice([path for path in files if path.stat().st_size])
        content = bytearray(path.read_bytes())
        content[self.scheduler.chance.randrange(len(content))] ^= 1 << 4
        with open(path, "wb") as file:
            file.write(content)


def full(path: Path) -> OSError:
    """The error of a full disk."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _change_of(path: Path) -> tuple[int, int]:
    facts = path.stat()
    return facts.st_size, facts.st_mtime_ns
