"""The folder and the messages of a run. On ranks other than 0 both do nothing, so callers need no rank checks.

FOLDER/run.json        configuration, plan, environment, git commit
FOLDER/metrics.jsonl   one JSON object per logged step
FOLDER/tensorboard/    the same as event files
FOLDER/result.json     the scores; written last, so that its presence means that the run is complete
                       (predict_result.json: those of a command that does not train)
FOLDER/.lock           the job that writes the folder
"""

import contextlib
import fcntl
import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tqdm import tqdm

import ringbase
from distributed.progress import Progress
from ringbase.errors import InputError, one_line
from ringbase.files import replace_folder, write_text
from ringbase.json_files import parse_json

if TYPE_CHECKING:
    from distributed.world import World

LOCK = ".lock"
PACKAGES = (
    "ringbert",
    "tensorflow",
    "tensorflow-cpu",
    "keras",
    "numpy",
    "transformers",
    "tokenizers",
    "mpi4py",
    "datasets",
)


class Run:
    """The folder of one run, on rank 0; an object that does nothing on the other ranks."""

    @classmethod
    def of(cls, folder: str | Path, world: "World") -> "Run":
        """The run in this folder; rank 0 of `world` writes it."""
        return cls(Path(folder).expanduser(), world.rank == 0)

    def __init__(self, folder: Path, is_writer: bool):
        self.folder, self.is_writer = folder, is_writer
        self._events: Any = None
        self._lock: TextIO | None = None
        self._newest: dict[str, float] = {}  # line of metrics.jsonl, also on ranks that do not write it
        self._failed: set[str] = set()  # files and folders that could not be written
        self._opened = time.monotonic()
        if is_writer:
            folder.mkdir(parents=True, exist_ok=True)

    def lock(self) -> None:
        """Keeps other jobs out of the folder until `close` or the end of this process.

        Raises InputError, with the other job's host and process, if it is locked. The operating system holds the
        lock, so that a killed job leaves none.
        """
        if not self.is_writer:
            return
        with _reported(self.folder / LOCK):
            self._lock = (self.folder / LOCK).open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with self._lock:
                self._lock.seek(0)
                owner = self._lock.read().strip() or "another process"
            raise InputError(
                f"{self.folder} belongs to a run that has not ended ({owner}): wait for it, or give another folder"
            ) from None
        except OSError as error:  # a file system without locks
            self.say(f"note: {self.folder} cannot be locked against other jobs: {error.strerror}")
        self._lock.truncate(0)
        self._lock.write(f"process {os.getpid()} on {socket.gethostname()}, since {time.strftime('%F %T')}")
        self._lock.flush()

    def take_over(self, rows: int) -> None:
        """Makes this rank the writer of the folder, because the one before died after this number of rows."""
        self.is_writer = True
        if self._lock is None and (self.folder / LOCK).exists():
            self.lock()
        self.rewind_metrics(rows)
        path = self.folder / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        written = [parse_json(line, allow_nan=True) for line in lines]
        newest = self._newest
        if newest and not any((line.get("step"), *line) == (newest["step"], *newest) for line in written):
            self._append(newest)  # the other died before it could

    def progress(
        self, total: int, label: str, unit: str = "step", initial: int = 0, is_shown: bool = True
    ) -> Progress:
        return Progress(total, label, unit, self.is_writer and is_shown, initial)

    def say(self, text: str) -> None:
        """Prints a line to standard error, above a bar if there is one."""
        if self.is_writer:
            tqdm.write(text, file=sys.stderr)
            sys.stderr.flush()

    def write(self, name: str, text: str) -> None:
        """Writes a whole file, or leaves the old one untouched."""
        if not self.is_writer:
            return
        path = self.folder / name
        with _reported(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text)

    def write_json(self, name: str, value: object) -> None:
        self.write(name, json.dumps(value, indent=4, ensure_ascii=False, default=str) + "\n")

    def replace_folder(self, name: str, fill: Callable[[Path], None]) -> None:
        """Replaces a folder with the one that `fill(folder)` writes."""
        if not self.is_writer:
            return
        with _reported(self.folder / name):
            replace_folder(self.folder / name, fill)

    def seconds(self) -> float:
        """Seconds since the run was opened."""
        return time.monotonic() - self._opened

    def remove(self, name: str) -> None:
        if self.is_writer:
            (self.folder / name).unlink(missing_ok=True)

    def rewind_metrics(self, rows: int) -> None:
        """Drops the lines logged after this number of rows: a resumed run logs them again."""
        path = self.folder / "metrics.jsonl"
        if not self.is_writer or not path.exists():
            return
        kept = []
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                if parse_json(line, allow_nan=True)["rows"] <= rows:
                    kept.append(line)
            except (InputError, KeyError, TypeError):
                continue  # an incomplete last line of a killed run
        self.write("metrics.jsonl", "".join(f"{line}\n" for line in kept))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Appends one line to metrics.jsonl and the same scalars to TensorBoard's event file.

        What cannot be written is lost, with one warning for each of the two: curves are no reason to end a run.
        """
        self._newest = {"step": step, "time": round(time.time(), 3), **values}
        if not self.is_writer:
            return
        self._append(self._newest)
        with self._or_warning("tensorboard"):
            self._write_events(step, values)

    def _append(self, line: dict[str, float]) -> None:
        with self._or_warning("metrics.jsonl"), (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _write_events(self, step: int, values: Mapping[str, float]) -> None:
        if self._events is None:
            from tensorboard.summary import Writer

            self._events = Writer(str(self.folder / "tensorboard"))
        for name, value in values.items():
            self._events.add_scalar(name, float(value), step=step)

    def close(self) -> None:
        with self._or_warning("tensorboard"):
            events, self._events = self._events, None
            if events is not None:
                events.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @contextlib.contextmanager
    def _or_warning(self, name: str) -> Iterator[None]:
        """Turns the first error of writing a file or folder into a warning, and ignores the others."""
        try:
            yield
        except Exception as error:  # TensorBoard raises TensorFlow's errors too
            if name not in self._failed:
                self._failed.add(name)
                reason = getattr(error, "strerror", None) or one_line(error)
                self.say(f"warning: {self.folder / name} cannot be written: {reason}; the run goes on without it")


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Turns errors of writing a path, such as a full disk, into an InputError that names the path."""
    from safetensors import SafetensorError

    try:
        yield
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error
    except SafetensorError as error:
        raise InputError(f"{path} cannot be written: {error}") from error


def versions() -> dict[str, str]:
    """The installed versions of the packages that a result depends on."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def git_commit() -> str | None:
    """The commit of RingBERT's own checkout; None if it is installed otherwise.

    It is not asked of the folder where the user works: a downloaded folder's `.git/config` can name programs that
    git would run.
    """
    checkout = Path(ringbase.__file__).parent.parent
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(checkout), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def environment() -> dict[str, object]:
    """Facts that a result depends on besides its flags: versions, machine, git commit of RingBERT."""
    return {
        "python": platform.python_version(),
        "packages": versions(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "git_commit": git_commit(),
        "command": sys.argv,
    }
