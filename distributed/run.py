"""The folder and the messages of a run. On ranks other than 0 both do nothing, so callers need no rank checks.

FOLDER/run.json        configuration, plan, environment, git commit
FOLDER/metrics.jsonl   one JSON object per logged step
FOLDER/tensorboard/    the same as event files
FOLDER/result.json     the scores; written last, so that its presence means that the run is complete
"""

import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from distributed.progress import Progress
from ringbert.errors import InputError
from ringbert.files import replace_folder, write_text

if TYPE_CHECKING:
    from distributed.world import World

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
        self._opened = time.monotonic()
        if is_writer:
            folder.mkdir(parents=True, exist_ok=True)

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
        for line in path.read_text().splitlines():
            try:
                if json.loads(line)["rows"] <= rows:
                    kept.append(line)
            except (ValueError, KeyError, TypeError):
                continue  # an incomplete last line of a killed run
        self.write("metrics.jsonl", "".join(f"{line}\n" for line in kept))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Appends one line to metrics.jsonl and the same scalars to TensorBoard's event file."""
        if not self.is_writer:
            return
        line = json.dumps({"step": step, "time": round(time.time(), 3), **values}) + "\n"
        path = self.folder / "metrics.jsonl"
        with _reported(path), path.open("a") as file:
            file.write(line)
        if self._events is None:
            from tensorboard.summary import Writer

            self._events = Writer(str(self.folder / "tensorboard"))
        for name, value in values.items():
            self._events.add_scalar(name, float(value), step=step)

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None


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


def environment() -> dict[str, object]:
    """Facts that a result depends on besides its flags: versions, machine, git commit of the working folder."""
    try:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, timeout=10, check=False
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        commit = ""
    return {
        "python": platform.python_version(),
        "packages": versions(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "git_commit": commit or None,
        "command": sys.argv,
    }
