"""The folder, messages and progress of a run. On ranks other than 0 they do nothing: callers need no rank checks.

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

from safetensors import SafetensorError
from tqdm import tqdm

from distributed import launcher
from distributed.launcher import RANK_VARIABLES
from ringbase.errors import InputError, one_line
from ringbase.files import replace_folder, write_text
from ringbase.json_files import parse_json

if TYPE_CHECKING:
    from distributed.world import World

LOCK = ".lock"
LINE_INTERVAL_S = 30.0
SHORTEST_S = 3.0  # loops that take less time end without a line


class Progress:
    """The progress of a loop: a bar on a terminal, elsewhere a line every 30 seconds.

    Args:
      total: number of steps, of which `initial` are already done.
    """

    def __init__(self, total: int, label: str, unit: str, is_shown: bool, initial: int = 0):
        self.total, self.label, self.unit = total, label, unit
        self._initial = self._done = initial
        self._prints_lines = is_shown and not is_terminal()
        self._start = self._last_line = time.monotonic()
        self._bar = tqdm(
            total=total, desc=label, unit=f" {unit}", initial=initial, file=sys.stderr, ncols=110,
            disable=not is_shown or self._prints_lines,
        )  # fmt: skip

    def update(self, done: int, **values: str) -> None:
        """Shows the number of steps done, and these values."""
        self._bar.set_postfix(values, refresh=False)
        self._bar.update(done - self._done)
        self._done, now = done, time.monotonic()
        is_end = done == self.total and now - self._start >= SHORTEST_S
        if self._prints_lines and (now - self._last_line >= LINE_INTERVAL_S or is_end):
            self._last_line = now
            rate = (done - self._initial) / max(now - self._start, 1e-9)
            left = f"{(self.total - done) / rate:.0f}" if rate else "?"
            shown = "".join(f", {name} {value}" for name, value in values.items())
            line = f"{self.label}: {done}/{self.total} {self.unit}, {left} s left{shown}"
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        self._bar.close()


def is_terminal() -> bool:
    """Whether standard error goes to a terminal. Under mpirun it is a pipe: there bert-launch tells, or mpirun's
    own standard error is checked."""
    if sys.stderr.isatty() or os.environ.get(launcher.TERMINAL) == "1":
        return True
    if not any(name in os.environ for name in RANK_VARIABLES):
        return False
    try:
        return os.readlink(f"/proc/{os.getppid()}/fd/2").startswith(("/dev/pts/", "/dev/tty"))
    except OSError:
        return False


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
        if not self.is_writer:
            self.is_writer = True
            if (self.folder / LOCK).exists():
                self.lock()

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
        """Drops the lines logged after this number of rows, which a resumed run logs again, and damaged ones."""
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
        """Appends one line to metrics.jsonl and the same scalars to TensorBoard's event file.

        What cannot be written is lost, with one warning for each of the two: curves are no reason to end a run.
        """
        if not self.is_writer:
            return
        line = {"step": step, "time": round(time.time(), 3), **values}
        with self._or_warning("metrics.jsonl"), (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        with self._or_warning("tensorboard"):
            self._write_events(step, values)

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
        with self._or_warning("tensorboard"):
            if self._events is not None:
                self._events.close()
        if self._lock is not None:
            self._lock.close()
        self._events = self._lock = None

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
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from error
