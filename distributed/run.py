"""The folder, messages and progress of a run. On ranks other than 0 they do nothing: callers need
no rank checks.

FOLDER/run.json        configuration, plan, environment, git commit
FOLDER/metrics.jsonl   one JSON object per logged step
FOLDER/tensorboard/    the same as event files
FOLDER/result.json     the scores; written last, so that its presence means that the run is complete
                       (predict_result.json: those of a command that does not train)
FOLDER/.lock           the job that writes the folder
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from safetensors import SafetensorError
from tqdm import tqdm

from distributed import launcher
from distributed.ranks import Ranks
from distributed.trackers import Tracker, TrackersOf, event_files
from distributed.world import World
from ringbase.errors import InputError, one_line
from ringbase.files import parse_json, replace_folder, write_bytes, write_json, write_text
from ringbase.secrets import masked

LOCK = ".lock"
HELD = "belongs to a run that has not ended"  # in the error of who finds a folder locked
LEASE_S = 150.0  # NFS: 90 s by default until a lost client's locks are free
LINE_INTERVAL_S = 30.0
# what to do about a folder that cannot be written
ELSEWHERE = ": give an --output_dir that this user can write"
MAKE_ROOM = ": make room in --output_dir; the same command then continues"
ADVICE = {
    errno.ENOSPC: MAKE_ROOM,
    errno.EDQUOT: MAKE_ROOM,
    errno.EROFS: ELSEWHERE,
    errno.EACCES: ELSEWHERE,
    errno.EPERM: ELSEWHERE,
}
OF_LIBRARY = re.compile(r"\(os error (\d+)\)")  # in messages of safetensors
WIDTH = 110  # columns of a bar, where there are so many


class Lines:
    """Standard error as a file for what redraws a line: each state becomes a line of its own."""

    def write(self, text: str) -> None:
        if shown := text.strip():
            print(shown, file=sys.stderr, flush=True)


LINES: dict = {
    "file": Lines(),
    "bar_format": "{desc}: {n_fmt}/{total_fmt}{unit}, {remaining_s:.0f} s left{postfix}",
    "mininterval": LINE_INTERVAL_S,
    "delay": LINE_INTERVAL_S,
    "miniters": 1,
    "smoothing": 0,
}


def terminal_columns() -> int:
    """The columns of the terminal that shows standard error, 1 if it does not say, 0 without one.
    Under mpirun it is a pipe: there bert-launch tells, or mpirun's own standard error is
    checked."""
    told = os.environ.get(launcher.TERMINAL, "0")
    if sys.stderr.isatty() or told != "0":
        return int(told) or launcher.columns(2)
    with contextlib.suppress(OSError):
        if any(name in os.environ for name in launcher.RANK_VARIABLES):
            target = os.readlink(f"/proc/{os.getppid()}/fd/2")
            return int(target.startswith(("/dev/pts/", "/dev/tty")))
    return 0


class Run:
    """The folder of one run, which rank 0 writes; on other ranks an object that does nothing."""

    def __init__(
        self,
        folder: Path,
        world: World,
        upload: Callable[[Path], None] | None = None,
        trackers_of: TrackersOf = event_files,
    ):
        """`upload` copies the folder to where it belongs, if that is elsewhere."""
        self.folder, self._world, self._upload = folder, world, upload
        self.began_s = time.monotonic()
        self._trackers_of = trackers_of
        self._trackers = trackers_of(folder)
        self._lock: TextIO | None = None
        self._failed = set[str]()  # what could not be written, and was warned of
        self._parts = list[Run]()
        self.written = set[str]()  # the files and folders in it that this start has written
        if self.is_writer:
            folder.mkdir(parents=True, exist_ok=True)

    def part(self, name: str) -> "Run":
        """The run in a folder of this one, which is uploaded and closed with it."""
        upload = self._upload
        whole = None if upload is None else lambda _: upload(self.folder)
        part = Run(self.folder / name, self._world, whole, self._trackers_of)
        self._parts.append(part)
        return part

    @property
    def is_writer(self) -> bool:
        """Whether this rank writes the folder. It is asked each time: after a death another rank
        is the first."""
        return self._world.rank == 0

    def lock(self) -> None:
        """Keeps other jobs out of the folder until `close` or the end of this process: a killed job
        has none. On rank 0. Raises InputError, with the other job's host and process, if it is
        locked."""
        path = self.folder / LOCK
        # A file server keeps the lock of a host that was lost until its lease ends.
        until_s = time.monotonic() + (LEASE_S if launcher.is_restart() else 0)
        lock = self._locked(path)
        if lock is None and launcher.is_restart():
            self.say(f"{self.folder} is still locked by the start before: waiting for its end")
        while lock is None and time.monotonic() < until_s:
            time.sleep(1)
            lock = self._locked(path)
        if lock is None:
            raise InputError(
                f"{self.folder} {HELD} ({path.read_text()}): wait for it, or give another folder"
            )
        who = f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%F %T')}"
        lock.truncate(0)
        lock.write(who)
        lock.flush()
        self._lock = lock

    def _locked(self, path: Path) -> TextIO | None:
        """The open file of a lock that is now this job's; None if it is another's."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)  # another job may have just removed it
            lock = path.open("a+")
        except OSError as error:
            advice = advice_on(error)
            raise InputError(f"{path} cannot be written: {error.strerror}{advice}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return None
        except OSError as error:  # a file system without locks
            self.say(f"note: {self.folder} cannot be locked against other jobs: {error.strerror}")
            return lock
        is_removed = not path.exists() or not os.path.samestat(path.stat(), os.fstat(lock.fileno()))
        if is_removed:  # by the job that had it, at its end
            lock.close()
            return self._locked(path)
        return lock

    def lock_again(self) -> None:
        """Locks the folder on a rank that has become the first, if the one before had locked it."""
        if self._lock is None and (self.folder / LOCK).exists():
            self.lock()

    def shows(self, total: int) -> bool:
        """Whether to show the progress of a loop of `total` steps."""
        return self.is_writer

    def progress(self, total: int, label: str | None, unit: str = "step", initial: int = 0) -> tqdm:
        """The progress of a loop, of whose `total` steps `initial` are done: a bar on a terminal,
        elsewhere a line every 30 seconds and one at the end; nothing without a label."""
        columns = terminal_columns()
        shape = LINES
        if columns:
            shape = {"ncols": min(columns, WIDTH) if columns > 1 else WIDTH}
        is_shown = label is not None and self.shows(total)
        return tqdm(
            desc=label,
            total=total,
            unit=f" {unit}",
            initial=initial,
            disable=not is_shown,
            **shape,
        )

    def say(self, text: str) -> None:
        """Prints a line to standard error, above a bar if there is one."""
        if self.is_writer:
            tqdm.write(masked(text), file=sys.stderr)
            sys.stderr.flush()

    def _write(self, write: Callable[[Path, Any], None], name: str, content: Any) -> None:
        """Writes a whole file or folder, or leaves the old one untouched."""
        if self.is_writer:
            replaced(self.folder / name, write, content)
        self.written.add(Path(name).parts[0])  # on all ranks: another may become the writer

    def write(self, name: str, content: str) -> None:
        self._write(write_text, name, content)

    def write_bytes(self, name: str, content: bytes) -> None:
        self._write(write_bytes, name, content)

    def write_json(self, name: str, content: Any) -> None:
        self._write(write_json, name, content)

    def replace_folder(self, name: str, fill: Callable[[Path], None]) -> None:
        """Writes a whole folder: `fill` puts its files into a new one."""
        self._write(replace_folder, name, fill)

    def remove(self, name: str) -> None:
        if self.is_writer:
            (self.folder / name).unlink(missing_ok=True)

    def set_aside(self, names: Iterable[str]) -> Path | None:
        """Moves those of these files and folders that are there into a new folder of this one.
        Returns it; None if there were none. On rank 0."""
        there = [name for name in names if (self.folder / name).exists()]
        if not there:
            return None
        aside = self.folder / f"before-{time.strftime('%Y%m%d-%H%M%S')}"
        aside.mkdir(exist_ok=True)
        for name in there:
            (self.folder / name).rename(aside / name)
        return aside

    def rewind_metrics(self, rows: int) -> None:
        """Drops the lines logged after this number of rows, which a resumed run logs again, and
        damaged ones."""
        path, kept = self.folder / "metrics.jsonl", []
        if not self.is_writer or not path.exists():
            return
        for text in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            with contextlib.suppress(InputError):
                match line := parse_json(text):
                    case {"rows": int() | float() as logged_at} if logged_at <= rows:
                        kept.append(f"{json.dumps(line)}\n")
        self.write("metrics.jsonl", "".join(kept))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Appends one line to metrics.jsonl and tells the trackers the same scalars. What cannot be
        written is lost, with one warning: curves are no reason to end a run."""
        if not self.is_writer:
            return

        def append() -> None:
            line = json.dumps({"step": step, "time": round(time.time(), 3), **values})
            with (self.folder / "metrics.jsonl").open("a") as file:
                file.write(f"{line}\n")

        self._warning_once("metrics.jsonl", append)
        self._tell(lambda tracker: tracker.log(step, values))

    def begin(self, flags: Mapping[str, Any]) -> None:
        """Tells the trackers the flags of a training that begins or goes on."""
        self._tell(lambda tracker: tracker.begin(flags))

    def end(self, scores: Mapping[str, float], files: Sequence[str]) -> None:
        """Tells the trackers that a training is complete, with those of these files of the folder
        that are there."""
        paths = [self.folder / name for name in files if (self.folder / name).is_file()]
        self._tell(lambda tracker: tracker.end(scores, paths))

    def _tell(self, call: Callable[[Tracker], None]) -> None:
        for tracker in self._trackers if self.is_writer else ():
            self._warning_once(tracker.name, partial(call, tracker))

    def _warning_once(self, name: str, write: Callable[[], None]) -> None:
        """Writes what a run can do without: its first error is a warning."""
        try:
            write()
        except Exception as error:  # libraries have their own, TensorFlow also for a full disk
            if name not in self._failed:
                text = f"{name} cannot be written: {one_line(error)}; the run goes on"
                self.say(f"warning: {self.folder}: {text}")
            self._failed.add(name)

    def publish(self, is_last: bool = False) -> None:
        """Uploads what has changed, if the folder belongs elsewhere. Raises InputError if that
        fails the last time, and warns before."""
        try:
            if self.is_writer and self._upload:
                self._upload(self.folder)
        except InputError as error:
            if is_last:
                raise
            self.say(f"warning: {error}; the next checkpoint tries again")

    def close(self) -> None:
        """Opens the folder to other jobs, and removes one in which nothing was written."""
        for part in self._parts:
            part.close()
        if self._lock is not None:
            if [path.name for path in self.folder.iterdir()] == [LOCK]:
                # a mount point stays, such as an empty volume
                with contextlib.suppress(OSError):
                    (self.folder / LOCK).unlink()
                    self.folder.rmdir()
            self._lock.close()
        self._lock = None


class Unwritten(Run):
    """A run that neither writes nor prints, as on the second rank; its folder may be read."""

    def __init__(self, folder: Path = Path()) -> None:
        super().__init__(folder, World(Ranks(rank=1)))


def replaced(path: Path, replace: Callable[[Path, Any], None], content) -> None:
    """`replace(path, content)`. Raises InputError, which names the path, if it cannot be written (a
    full disk)."""
    try:
        replace(path, content)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be written: {reason}{advice_on(error)}") from error


def advice_on(error: Exception) -> str:
    """What to do about a folder that cannot be written; "" if that is not known."""
    number = getattr(error, "errno", None)
    if number is None and (match := OF_LIBRARY.search(str(error))):
        number = int(match[1])
    return ADVICE.get(number or 0, "")
