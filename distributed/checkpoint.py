"""Checkpoints: written by rank 0, complete or not at all; training can resume on any number of ranks.

Training waits only while rank 0 copies the values; a thread then writes the copy.

FOLDER/rows-000000032000/             named by rows, because the number of ranks changes the step
    model.safetensors config.json …   the model, written by the task's `write_model`
    optimizer.safetensors             moments and step counter
    state.json                        position in the data, steps done, plan, settings
    manifest.json                     sizes and SHA-256 of all other files
"""

import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import tensorflow as tf
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from distributed import launcher
from distributed.arrays import host_view
from distributed.optimizer import LOSS_SCALE, AllreduceOptimizer
from distributed.settings import LoopSettings
from distributed.state import State, read_state
from distributed.world import World
from ringbase import manifest
from ringbase.errors import InputError
from ringbase.files import remove_folder, replace_folder, write_json

WriteModel = Callable[[Path], None]


@dataclass(frozen=True)
class Checkpoint:
    """A folder whose files match its manifest, and the state stored in it."""

    path: Path
    state: State


class Checkpoints:
    """The checkpoints of one run folder.

    Args:
      copy_model: copies the model and returns a function that writes the copy to a folder; called on rank 0.
      settings: how often they are written, and how many of the newest are kept.
    """

    def __init__(self, folder: Path, world: World, copy_model: Callable[[], WriteModel], settings: LoopSettings):
        self.folder, self.world, self.copy_model, self.settings = folder, world, copy_model, settings
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._written: Future[None] | None = None
        self._saved_s = time.monotonic()
        self._moments: dict[str, np.ndarray] = {}  # reused, because allocating memory takes longer than the copy

    def save(self, optimizer: AllreduceOptimizer, state: State) -> State:
        """Starts a checkpoint on rank 0, unless there is one of this position, after checking that all ranks hold
        the same weights. Returns the state with the position that is saved.

        Waits for the previous checkpoint first. Raises InputError on every rank if that one could not be written.
        """
        if state.saved == state.position:
            return state
        state = replace(state, saved=state.position)
        optimizer.check_replicas()
        self.world.on_first(self._start_writing, optimizer, state)
        self._saved_s = time.monotonic()
        return state

    def is_due(self, state: State) -> bool:
        """Whether it is the turn of a checkpoint: each so many steps, and after each evaluation."""
        return state.step % self.settings.save_checkpoints_steps == 0 or state.evaluated == state.position

    def is_overdue(self) -> bool:
        """Whether the last checkpoint is too old, by the clock of this rank."""
        minutes = self.settings.save_checkpoints_minutes
        return minutes > 0 and time.monotonic() - self._saved_s > 60 * minutes

    def finish(self) -> None:
        """Waits on every rank until all is written. Raises InputError on every rank if that failed."""
        self.world.on_first(self._wait)

    def on_disk(self, state: State) -> State:
        """The state as far as its checkpoints are complete: a dead rank 0 may not have finished the last one, and
        the model of an evaluation is lost with it. On rank 0."""
        self._wait()
        newest = max((manifest.position_of(path) or 0 for path in _checkpoints(self.folder)), default=0)
        kept = [entry for entry in state.evaluations if entry[0] <= newest or entry[0] == state.position]
        return replace(state, saved=newest, evaluations=kept)

    def close(self) -> None:
        """Waits for the write in progress and ignores its errors. After an error, a single rank may call it."""
        self._thread.shutdown(wait=True)

    def restore(self, path: Path, optimizer: AllreduceOptimizer) -> None:
        """Fills the optimizer's variables on rank 0. Raises InputError for a misfit."""
        file, variables = path / "optimizer.safetensors", optimizer.state()
        try:
            saved = load_file(file)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{file}: {error}; expected a folder in a run's checkpoints/") from error
        if LOSS_SCALE not in saved or LOSS_SCALE not in variables:  # the precision has changed
            saved.pop(LOSS_SCALE, None)
            variables.pop(LOSS_SCALE, None)
        wrong = sorted(saved.keys() ^ variables.keys()) or [
            name for name, variable in variables.items() if saved[name].shape != tuple(variable.shape)
        ]
        if wrong:
            raise InputError(f"{file} does not fit this optimizer and model: {wrong[:5]}")
        for name, variable in variables.items():
            variable.assign(saved[name])

    def _start_writing(self, optimizer: AllreduceOptimizer, state: State) -> None:
        self._wait()
        for name, variable in optimizer.state().items():
            copy = self._moments.setdefault(name, np.empty(variable.shape, variable.dtype))
            np.copyto(copy, host_view(tf.convert_to_tensor(variable.value)))
        self._written = self._thread.submit(self._write, self.copy_model(), self._moments, state)

    def _wait(self) -> None:
        if self._written is not None:
            written, self._written = self._written, None
            written.result()

    def _write(self, write_model: WriteModel, moments: dict[str, np.ndarray], state: State) -> None:
        def fill(folder: Path) -> None:
            write_model(folder)
            save_file(moments, folder / "optimizer.safetensors")
            write_json(folder / "state.json", asdict(state))
            manifest.seal(folder, state.position)

        final = self.folder / folder_name(state.position)
        try:
            for path in self.folder.glob(".*.tmp"):  # left by a killed process, on any machine
                shutil.rmtree(path, ignore_errors=True)
            replace_folder(final, fill)
            launcher.tell("saved")
        except (OSError, SafetensorError) as error:  # such as a full disk; these errors may not name the file
            raise InputError(
                f"{final}: the checkpoint cannot be written: {error}; "
                "free some space, or choose another folder for the run"
            ) from error
        best = state.best and state.best[0]
        for path in complete_checkpoints(self.folder)[: -self.settings.keep_checkpoints]:
            if path != final and manifest.position_of(path) != best:
                remove_folder(path)


def folder_name(position: int) -> str:
    """The name of the checkpoint at a position, in rows of the stream."""
    return f"rows-{position:012d}"


def complete_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder whose files have the sizes in their manifests, in order of position."""
    return [path for path in _checkpoints(folder) if manifest.position_of(path) is not None]


def _checkpoints(folder: Path) -> list[Path]:
    """Those of a folder, intact or not, in order of position."""
    folders = [*folder.glob("step-*"), *folder.glob("rows-*")]  # older versions named a checkpoint by its step
    # A rewrite that was killed can have set one aside, as NAME.old, which a new one of this position follows.
    return sorted(folders, key=lambda path: (path.name.startswith("rows"), path.stem, not path.suffix))


def newest_intact(folder: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint whose bytes match its manifest; None if there are no checkpoints.

    Reads all bytes of the checkpoint, and calls `say` with a warning for each newer one that it skips. `folder`
    holds checkpoints, or is one. Raises InputError, with the reasons, if there are checkpoints but none is intact.
    """
    reasons = []
    for path in [folder] if (folder / manifest.NAME).exists() else reversed(_checkpoints(folder)):
        try:
            manifest.check_intact(path)
        except InputError as error:
            reasons.append(f"{path} is not used: {error}")
            continue
        for reason in reasons:
            say(f"warning: {reason}")
        return Checkpoint(path, read_state(path))
    if reasons:
        raise InputError(f"{folder} has checkpoints, but none of them is intact ({'; '.join(reasons)})")
    return None


def checkpoint_at(folder: Path, position: int) -> Checkpoint:
    """The best checkpoint, at a position. Raises InputError when it is missing or damaged."""
    folders = [path for path in complete_checkpoints(folder) if manifest.position_of(path) == position]
    if not folders:
        raise InputError(f"{folder}: the checkpoint at row {position}, the best one, no longer exists")
    try:
        manifest.check_intact(folders[-1])
    except InputError as error:
        raise InputError(f"{folders[-1]}, the best checkpoint, is damaged: {error}") from error
    return Checkpoint(folders[-1], read_state(folders[-1]))


def set_aside(folder: Path) -> Path | None:
    """Renames a folder that holds checkpoints, so that a new run starts without them; returns any new name."""
    if not _checkpoints(folder):
        return None
    return folder.rename(folder.with_name(f"{folder.name}-before-{time.strftime('%Y%m%d-%H%M%S')}"))
