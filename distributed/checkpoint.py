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
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import tensorflow as tf
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from distributed import records
from distributed.host import host_view
from distributed.optimizer import LOSS_SCALE, AllreduceOptimizer
from distributed.settings import LoopSettings
from distributed.state import State, read_state
from distributed.world import World
from ringbase import manifest
from ringbase.errors import InputError
from ringbase.files import remove_folder, replace_folder, write_json

NAMES = ("step-*", "rows-*")  # older versions named a checkpoint by its step
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

    def __init__(
        self,
        folder: Path,
        world: World,
        copy_model: Callable[[], WriteModel],
        settings: LoopSettings = LoopSettings(),  # noqa: B008 — it is frozen
    ):
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
        complete = complete_checkpoints(self.folder)
        newest = (complete and manifest.position_of(complete[-1])) or 0
        kept = [entry for entry in state.evaluations if entry[0] <= newest or entry[0] == state.position]
        return replace(state, saved=newest, evaluations=kept)

    def close(self) -> None:
        """Waits for the write in progress and ignores its errors. After an error, a single rank may call it."""
        self._thread.shutdown(wait=True)

    def restore(self, path: Path, optimizer: AllreduceOptimizer) -> None:
        """Fills the optimizer's variables on rank 0. Raises InputError for a misfit."""
        file, variables = path / "optimizer.safetensors", optimizer.state()
        if not file.is_file():
            raise InputError(f"{path} has no optimizer.safetensors: expected a folder in a run's checkpoints/")
        try:
            saved = load_file(file)
        except SafetensorError as error:
            raise InputError(f"{file}: damaged: {error}") from error
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
            records.tell("saved")
        except (OSError, SafetensorError) as error:  # such as a full disk; these errors may not name the file
            raise InputError(
                f"{final}: the checkpoint cannot be written: {error}; "
                "free some space, or choose another folder for the run"
            ) from error
        self._prune(final, state)

    def _prune(self, newest: Path, state: State) -> None:
        """Removes older checkpoints at the same position as `newest`, and all others except the last ones and the
        best."""
        complete = complete_checkpoints(self.folder)
        superseded = [path for path in complete if path != newest and manifest.position_of(path) == state.position]
        kept = [path for path in complete if path not in superseded]
        best = state.best and _complete_at(self.folder, state.best[0])
        too_old = [path for path in kept[: -self.settings.keep_checkpoints] if path not in (newest, best)]
        # A checkpoint gets its name with its manifest, so what has none is what a kill left of a removal.
        remains = [path for path in _folders(self.folder) if not (path / manifest.NAME).exists()]
        for path in (*superseded, *too_old, *remains):
            remove_folder(path)


def folder_name(position: int) -> str:
    """The name of the checkpoint at a position, in rows of the stream."""
    return f"rows-{position:012d}"


def complete_checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints of a folder, in order of position: their files have the sizes in the manifest.

    There can be several at one position: one of an older version, or one set aside by a rewrite that was killed.
    The one named by `folder_name` then comes last.
    """
    positions = {path: manifest.position_of(path) for path in _folders(folder)}
    complete = {path: position for path, position in positions.items() if position is not None}
    return sorted(sorted(complete, reverse=True), key=complete.__getitem__)


def newest_intact(folder: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest complete checkpoint whose bytes match its manifest; None if there are no checkpoints.

    Reads all bytes of the checkpoint, and calls `say` with a warning for each one that it skips. `folder` holds
    checkpoints, or is one. Raises InputError, with the reasons, if there are checkpoints but none is intact.
    """
    complete = [folder] if (folder / manifest.NAME).exists() else complete_checkpoints(folder)
    reasons: dict[Path, str] = {path: _fault(path) for path in _folders(folder) if path not in complete}
    for path in reversed(complete):
        reasons[path] = _fault(path)
        if not reasons[path]:
            for other in filter(reasons.get, reasons):
                say(f"warning: {other} is not used: {reasons[other]}")
            return Checkpoint(path, read_state(path))
    if reasons:
        listed = "; ".join(f"{path.name}: {reason}" for path, reason in sorted(reasons.items()))
        raise InputError(f"{folder} has checkpoints, but none of them is intact ({listed})")
    return None


def checkpoint_at(folder: Path, position: int) -> Checkpoint:
    """The checkpoint at a position. Raises InputError when it is missing or damaged."""
    path = _complete_at(folder, position)
    if fault := _fault(path):
        raise InputError(f"{path}, the best checkpoint, is damaged: {fault}")
    return Checkpoint(path, read_state(path))


def set_aside(folder: Path) -> Path | None:
    """Renames a folder that holds checkpoints, so that a new run starts without them; returns any new name."""
    if not _folders(folder):
        return None
    return folder.rename(folder.with_name(f"{folder.name}-before-{time.strftime('%Y%m%d-%H%M%S')}"))


def check_settings(
    saved: Mapping[str, object],
    now: Mapping[str, object],
    folder: Path,
    advice: str = "use the same value, or another folder for the run",
) -> None:
    """Raises InputError, with both values and `advice`, for the first setting that has changed."""
    for name in dict.fromkeys([*saved, *now]):
        if saved.get(name) != now.get(name):
            raise InputError(
                f"{folder} holds a run with {name} = {saved.get(name)}, this command has {now.get(name)}: {advice}"
            )


def _complete_at(folder: Path, position: int) -> Path:
    for path in reversed(complete_checkpoints(folder)):
        if manifest.position_of(path) == position:
            return path
    raise InputError(f"{folder}: the checkpoint at row {position}, the best one, no longer exists")


def _folders(folder: Path) -> list[Path]:
    """The folders with names of checkpoints, intact or not."""
    return [path for name in NAMES for path in folder.glob(name)]


def _fault(path: Path) -> str:
    """Why a folder is not an intact checkpoint; empty if it is one."""
    try:
        manifest.check_intact(path)
    except InputError as error:
        return str(error)
    return ""
