"""Checkpoints: written by rank 0 alone, whole or not at all, resumed on any number of ranks.

Training waits only while rank 0 copies the values; a thread writes the copy.

output_dir/checkpoints/step-00001000/
    model.safetensors config.json …   the model, by the task's `write_model`
    optimizer.safetensors             moments and step counter
    state.json                        position in the data, steps done, plan, settings
    manifest.json                     written last: sizes and SHA-256 of all the others
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import tensorflow as tf

from distributed.host import host_view
from distributed.optimizer import LOSS_SCALE, AllreduceOptimizer
from distributed.run import sync_folder
from distributed.world import World
from ringbert.errors import InputError

FORMAT = 1


@dataclass(frozen=True)
class State:
    """Where training stands: `position` rows of the stream consumed, `step` of `steps` done.

    `settings` are the facts that must not change between the parts of a run; `evaluations` the [position, score]
    of each measurement that a best checkpoint is chosen by.
    """

    position: int
    step: int
    steps: int
    global_batch_size: int
    settings: dict[str, object]
    evaluations: list[list[float]] = field(default_factory=list)

    @property
    def best(self) -> tuple[int, float] | None:
        """Position and score of the best evaluation, the earliest of equals."""
        if not self.evaluations:
            return None
        position, score = max(self.evaluations, key=lambda entry: (entry[1], -entry[0]))
        return int(position), score


class Checkpoints:
    """The checkpoints of one run folder.

    Args:
      copy_model: called on rank 0; copies the model and returns what writes the copy to a folder.
      keep: how many of the newest to keep.
    """

    def __init__(
        self, folder: Path, world: World, copy_model: Callable[[], Callable[[Path], None]], keep: int = 5
    ):
        self.folder, self.world, self.copy_model, self.keep = folder, world, copy_model, max(1, keep)
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._written: Future[None] | None = None
        self._moments: dict[str, np.ndarray] = {}  # kept: new memory costs more than the copy

    def save(self, optimizer: AllreduceOptimizer, state: State) -> None:
        """Begins a checkpoint on rank 0, after checking that all ranks hold the same weights.

        Waits for the one before. Raises InputError on every rank: that one could not be written.
        """
        optimizer.check_replicas()
        self.world.on_first(self._begin, optimizer, state)

    def finish(self) -> None:
        """Returns on every rank when all is written. Raises InputError on every rank: it could not be."""
        self.world.on_first(self._wait)

    def close(self) -> None:
        """Waits for what is being written, on this rank alone and whatever comes of it: after an error."""
        self._thread.shutdown(wait=True)

    def restore(self, path: Path, optimizer: AllreduceOptimizer) -> None:
        """Fills the optimizer's variables on rank 0; the caller broadcasts. InputError when they do not fit."""
        from safetensors.numpy import load_file

        if not (path / "optimizer.safetensors").is_file():
            raise InputError(f"{path} has no optimizer.safetensors: needed is a folder in a run's checkpoints/")
        saved, variables = load_file(path / "optimizer.safetensors"), optimizer.state()
        if LOSS_SCALE not in saved or LOSS_SCALE not in variables:  # another precision from here on
            saved.pop(LOSS_SCALE, None)
            variables.pop(LOSS_SCALE, None)
        wrong = sorted(saved.keys() ^ variables.keys()) or [
            name for name, variable in variables.items() if saved[name].shape != tuple(variable.shape)
        ]
        if wrong:
            raise InputError(f"{path}/optimizer.safetensors does not fit this optimizer and model: {wrong[:5]}")
        for name, variable in variables.items():
            variable.assign(saved[name])

    def _begin(self, optimizer: AllreduceOptimizer, state: State) -> None:
        self._wait()
        for name, variable in optimizer.state().items():
            kept = self._moments.setdefault(name, np.empty(variable.shape, variable.dtype))
            np.copyto(kept, host_view(tf.convert_to_tensor(variable.value)))
        self._written = self._thread.submit(self._write, self.copy_model(), self._moments, state)

    def _wait(self) -> None:
        if self._written is not None:
            written, self._written = self._written, None
            written.result()

    def _write(self, write_model: Callable[[Path], None], moments: dict[str, np.ndarray], state: State) -> None:
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        final = self.folder / f"step-{state.step:08d}"
        temporary = self.folder / f".{final.name}.tmp"
        for left in self.folder.glob(".step-*.tmp"):  # of a write that was killed
            shutil.rmtree(left, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)
            write_model(temporary)
            save_file(moments, temporary / "optimizer.safetensors")
            (temporary / "state.json").write_text(json.dumps(asdict(state), indent=1))
            seal(temporary, state.position)
            if final.exists():
                shutil.rmtree(final)
            temporary.rename(final)
            sync_folder(self.folder)
        except (OSError, SafetensorError) as error:  # a full disk; neither need name the file
            raise InputError(
                f"{final}: the checkpoint cannot be written: {error}; "
                "free some space, or give another --output_dir"
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        best = state.best and checkpoint_at(self.folder, state.best[0])
        for old in complete_checkpoints(self.folder)[: -self.keep]:
            if old not in (final, best):
                shutil.rmtree(old)


def complete_checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints of a folder: those whose files have the sizes of the manifest.

    In the order of progress, the rows consumed: with another number of ranks the same progress has another step.
    """
    positions = {path: _position(path) for path in folder.glob("step-*")}
    complete = [path for path, position in positions.items() if position is not None]
    return sorted(complete, key=lambda path: (positions[path], path.name))


def checkpoint_at(folder: Path, position: int) -> Path:
    """The complete checkpoint of a position. Raises InputError when it is not there."""
    for path in complete_checkpoints(folder):
        if _position(path) == position:
            return path
    raise InputError(f"{folder}: the checkpoint at row {position}, the best one, is not there any more")


def set_aside(folder: Path) -> Path | None:
    """Renames the checkpoints of a run that is given up, so that a new one starts in an empty folder."""
    if not any(folder.glob("step-*")):
        return None
    aside = folder.with_name(f"{folder.name}-before-{time.strftime('%Y%m%d-%H%M%S')}")
    return folder.rename(aside)


def newest_intact(folder: Path, say: Callable[[str], None]) -> Path | None:
    """The newest complete checkpoint whose bytes are those of its manifest; `say` is told of damaged ones.

    `folder` holds checkpoints, or is one.
    """
    here = [folder] if _position(folder) is not None else complete_checkpoints(folder)
    for path in reversed(here):
        files = json.loads((path / "manifest.json").read_text())["files"]
        damaged = [name for name, (_, digest) in files.items() if _sha256(path / name) != digest]
        if not damaged:
            return path
        say(f"warning: {path} is damaged ({', '.join(damaged)} changed since it was written): trying an older one")
    return None


def read_state(path: Path) -> State:
    """The state of a checkpoint. Raises InputError when it is damaged."""
    try:
        return State(**json.loads((path / "state.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"{path}: state.json is damaged ({error}); remove this checkpoint to use an older one"
        ) from error


def check_settings(saved: Mapping[str, object], now: Mapping[str, object], folder: Path) -> None:
    """Raises InputError, with both values, for the first setting that changed since the checkpoint was written."""
    for name in dict.fromkeys([*saved, *now]):
        if saved.get(name) != now.get(name):
            raise InputError(
                f"{folder} holds a run with {name} = {saved.get(name)}, this command has {now.get(name)}: "
                "give the same, another --output_dir, or --resume never to start anew"
            )


def seal(folder: Path, position: int) -> None:
    """Syncs every file of a folder and writes its manifest last."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        with path.open("rb") as handle:
            os.fsync(handle.fileno())
    facts = {str(path.relative_to(folder)): (path.stat().st_size, _sha256(path)) for path in files}
    with (folder / "manifest.json").open("w") as handle:
        json.dump({"format": FORMAT, "position": position, "files": facts}, handle, indent=1)
        handle.flush()
        os.fsync(handle.fileno())
    sync_folder(folder)


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _position(path: Path) -> int | None:
    """How far a complete checkpoint is, in rows; None for one that is not complete."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        sizes = {path / name: size for name, (size, _) in manifest["files"].items()}
        if manifest["format"] != FORMAT or any(file.stat().st_size != size for file, size in sizes.items()):
            return None
        return int(manifest["position"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
