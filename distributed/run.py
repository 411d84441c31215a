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
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tqdm import tqdm

from distributed.progress import Progress
from ringbase.errors import InputError, one_line
from ringbase.files import replace_folder, write_text
from ringbase.json_files import parse_json

if TYPE_CHECKING:
    from distributed.world import World

LOCK = ".lock"


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

    def take_over(self) -> None:
        """Makes this rank the writer of the folder if the one before has died."""
        if self.is_writer:
            return
        self.is_writer = True
        if (self.folder / LOCK).exists():
            self.lock()
        newest = self._newest
        if newest and not any((line.get("step"), *line) == (newest["step"], *newest) for line in self._logged()):
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
        if self.is_writer and (self.folder / "metrics.jsonl").exists():
            kept = [line for line in self._logged() if _is_within(line, rows)]
            self.write("metrics.jsonl", "".join(f"{json.dumps(line)}\n" for line in kept))

    def _logged(self) -> list[Any]:
        """What metrics.jsonl holds, without a last line that a killed run has not completed."""
        path, values = self.folder / "metrics.jsonl", []
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.exists() else ():
            with contextlib.suppress(InputError):
                values.append(parse_json(line, allow_nan=True))
        return [value for value in values if isinstance(value, dict)]

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
        """In this thread and without a buffer: TensorBoard's own writer has a thread, which a full disk ends."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        now = time.time()
        if self._events is None:
            name = f"events.out.tfevents.{int(now):010}.{socket.gethostname()}.{os.getpid()}"
            (self.folder / "tensorboard").mkdir(exist_ok=True)
            self._events = RecordWriter((self.folder / "tensorboard" / name).open("ab", buffering=0))
            self._events.write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
        scalars = [Summary.Value(tag=name, simple_value=float(value)) for name, value in values.items()]
        event = Event(wall_time=now, step=step, summary=Summary(value=scalars))
        self._events.write(event.SerializeToString())

    def close(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            with self._or_warning("tensorboard"):
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


def _is_within(line: dict[str, Any], rows: int) -> bool:
    """Whether a line of metrics.jsonl was logged after at most this number of rows."""
    return isinstance(line.get("rows"), int | float) and line["rows"] <= rows


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
