"""The run folder and what a run tells its user. Does nothing off rank 0, so that callers need not ask for ranks.

output_dir/run.json        configuration, plan, environment, git commit
output_dir/metrics.jsonl   one JSON object per logged step
output_dir/tensorboard/    the same as event files
output_dir/result.json     the scores, written at the very end: its presence says that the run is complete
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from ringbert.errors import InputError

if TYPE_CHECKING:
    from distributed.world import World

PLAIN_LINE_EVERY_S = 30.0
WORTH_A_LINE_S = 3.0
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


class Progress:
    """A bar on a terminal, else a line every 30 seconds. `update` takes the step now done and values to show."""

    def __init__(self, total: int, label: str, unit: str, shown: bool, initial: int = 0):
        self.total, self.label, self.unit, self.done = total, label, unit, initial
        self._bar = None
        self._plain = shown and not terminal()
        self._started = self._last = time.monotonic()
        self._initial = initial
        if shown and not self._plain:
            self._bar = tqdm(total=total, desc=label, unit=f" {unit}", initial=initial, file=sys.stderr, ncols=110)

    def update(self, done: int, **values: str) -> None:
        if self._bar is not None:
            self._bar.set_postfix(values, refresh=False)
            self._bar.update(done - self.done)
        self.done = done
        now = time.monotonic()
        finished = done == self.total and now - self._started >= WORTH_A_LINE_S
        if self._plain and (now - self._last >= PLAIN_LINE_EVERY_S or finished):
            self._last = now
            rate = (done - self._initial) / max(now - self._started, 1e-9)
            left = (self.total - done) / rate if rate else float("inf")
            shown = ", ".join(f"{name} {value}" for name, value in values.items())
            print(
                f"{self.label}: {done}/{self.total} {self.unit}, {left:.0f} s left{', ' * bool(shown)}{shown}",
                file=sys.stderr,
                flush=True,
            )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class Run:
    """The folder of one run, on rank 0; an object that does nothing on the other ranks."""

    @classmethod
    def of(cls, folder: str | Path, world: "World") -> "Run":
        """The folder that rank 0 of `world` writes."""
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
        if self.is_writer:
            tqdm.write(text, file=sys.stderr)
            sys.stderr.flush()

    def write(self, name: str, text: str) -> None:
        """Writes a whole file, or leaves the old one untouched."""
        if not self.is_writer:
            return
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            with temporary.open("w", encoding="utf-8") as handle:
                handle.write(text)
                handle.flush()
                os.fsync(handle.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror or error} (--output_dir)") from error
        finally:
            temporary.unlink(missing_ok=True)

    def write_json(self, name: str, value: object) -> None:
        self.write(name, json.dumps(value, indent=4, ensure_ascii=False, default=str) + "\n")

    def replace_folder(self, name: str, fill: Callable[[Path], None]) -> None:
        """Fills a folder under a temporary name and puts it in the place of the old one."""
        if not self.is_writer:
            return
        temporary, old, final = self.folder / f".{name}.tmp", self.folder / f".{name}.old", self.folder / name
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            fill(temporary)
            for file in temporary.rglob("*"):
                if file.is_file():
                    with file.open("rb") as handle:
                        os.fsync(handle.fileno())
            if final.exists():
                shutil.rmtree(old, ignore_errors=True)
                final.rename(old)
            temporary.rename(final)
            sync_folder(self.folder)
            shutil.rmtree(old, ignore_errors=True)
        except Exception as error:  # a full disk, in the words of OSError or of safetensors
            raise InputError(f"{final} cannot be written: {error}; free some space (--output_dir)") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def seconds(self) -> float:
        """Since the run was opened."""
        return time.monotonic() - self._opened

    def remove(self, name: str) -> None:
        if self.is_writer:
            (self.folder / name).unlink(missing_ok=True)

    def rewind_metrics(self, rows: int) -> None:
        """Drops the lines logged after so many rows were trained on: a resumed run logs them again."""
        path = self.folder / "metrics.jsonl"
        if not self.is_writer or not path.exists():
            return
        kept = []
        for line in path.read_text().splitlines():
            try:
                if json.loads(line)["rows"] <= rows:
                    kept.append(line)
            except (ValueError, KeyError):
                continue  # the last line of a killed run
        self.write("metrics.jsonl", "".join(f"{line}\n" for line in kept))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Appends one line to metrics.jsonl and the same scalars to TensorBoard's event file."""
        if not self.is_writer:
            return
        line = json.dumps({"step": step, "time": round(time.time(), 3), **values}) + "\n"
        try:
            with (self.folder / "metrics.jsonl").open("a") as handle:
                handle.write(line)
        except OSError as error:
            raise InputError(f"{self.folder}/metrics.jsonl: {error.strerror or error} (--output_dir)") from error
        if self._events is None:
            from tensorboard.summary import Writer

            self._events = Writer(str(self.folder / "tensorboard"))
        for name, value in values.items():
            self._events.add_scalar(name, float(value), step=step)

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None


def sync_folder(folder: Path) -> None:
    """Makes renames and new names within a folder last through a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def versions() -> dict[str, str]:
    """The installed versions of the packages that a result depends on."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def environment() -> dict[str, object]:
    """What a result depends on besides its flags: versions, machine, git commit of the working folder."""
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


def terminal() -> bool:
    """Whether standard error ends at a terminal; mpirun passes it through a pipe, so its own is asked too."""
    if sys.stderr.isatty():
        return True
    if not any(name in os.environ for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")):
        return False
    try:
        return os.readlink(f"/proc/{os.getppid()}/fd/2").startswith(("/dev/pts/", "/dev/tty"))
    except OSError:
        return False
