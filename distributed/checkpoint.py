"""Checkpoints: written by rank 0, complete or not at all; training can resume on any number of
ranks.

Training waits only while rank 0 copies the values; a thread then writes the copy.

FOLDER/rows-000000032000/             named by rows, because the number of ranks changes the step
    model.safetensors config.json …   the model, written by `bert.weights.copied`
    optimizer.safetensors             moments and step counter
    state.json                        `State`: position in the data, steps, settings, evaluations
    manifest.json                     sizes and SHA-256 of all other files
"""

import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from distributed import launcher
from distributed.arrays import host_view
from distributed.found import STATE_FILE, checkpoints_in, complete_checkpoints, folder_name
from distributed.loss_scale import LOSS_SCALE
from distributed.optimizer import StepOptimizer
from distributed.plan import LoopSettings, State
from distributed.run import replaced
from distributed.world import World
from ringbase import manifest
from ringbase.errors import InputError, one_line
from ringbase.files import remove_folder, replace_folder, write_json

OPTIMIZER_FILE = "optimizer.safetensors"

Write = Callable[[Path], None]  # writes files into a folder


class Saved(Protocol):
    """A part of a checkpoint: the model, the optimizer. Both methods are called on rank 0."""

    def copied(self) -> Write:
        """Copies the values. Returns what writes the copy, in a thread, while training goes on."""

    def restore(self, folder: Path) -> None:
        """Takes the values that were written into a folder. Raises InputError: they do not fit."""


class SavedOptimizer:
    """An optimizer's state as a part of a checkpoint."""

    def __init__(self, optimizer: StepOptimizer):
        self._optimizer = optimizer
        # reused, because allocating memory takes longer than the copy
        self._copy: dict[str, np.ndarray] = {}

    def copied(self) -> Write:
        for name, variable in self._optimizer.state().items():
            if name not in self._copy:
                self._copy[name] = np.empty(variable.shape, variable.dtype)
            values = host_view(variable.value)
            np.copyto(self._copy[name], values)
        return lambda folder: save_file(self._copy, folder / OPTIMIZER_FILE)

    def restore(self, folder: Path) -> None:
        file, variables = folder / OPTIMIZER_FILE, dict(self._optimizer.state())
        try:
            saved = load_file(file)
        except (OSError, SafetensorError) as error:
            text = f"{file}: {error}; expected a folder in a run's checkpoints/"
            raise InputError(text) from error
        if LOSS_SCALE not in saved or LOSS_SCALE not in variables:  # the precision has changed
            saved.pop(LOSS_SCALE, None)
            variables.pop(LOSS_SCALE, None)
        needed = {(name, tuple(variable.shape)) for name, variable in variables.items()}
        if wrong := needed ^ {(name, array.shape) for name, array in saved.items()}:
            raise InputError(f"{file} does not fit this optimizer and model: {sorted(wrong)[:4]}")
        for name, variable in variables.items():
            variable.assign(saved[name])


@dataclass(eq=False)
class Checkpoints:
    """The checkpoints of one run folder. `publish` is called on rank 0 after each."""

    folder: Path
    world: World
    parts: Sequence[Saved]
    settings: LoopSettings
    publish: Callable[[], None] = lambda: None
    # the position of one that is written whatever the steps, and never removed
    keeps: int | None = None

    def __post_init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._written: Future | None = None
        # the last one written, or the one that training goes on from
        self._newest: Path | None = None
        self._saved_s = time.monotonic()
        self._step_s = 0.0
        self._has_warned = False
        self._stay = set[Path]()  # old ones that could not be removed

    def save(self, state: State, step_s: float = 0.0) -> None:
        """Starts a checkpoint on rank 0, unless there is one of this position. `step_s` is how long
        a step takes. Raises InputError on every rank if the previous checkpoint could not be
        written."""
        self._step_s = step_s
        self.world.on_first(self._start_writing, state)
        self._saved_s = time.monotonic()

    def is_due(self, state: State) -> bool:
        """Whether it is the turn of a checkpoint: each so many steps, after each evaluation, and at
        the position of `keeps`."""
        is_turn = state.step % self.settings.save_checkpoints_steps == 0
        is_here = state.position in (state.evaluated, self.keeps)
        return state.step > 0 and (is_turn or is_here)

    def check(self) -> None:
        """Raises InputError if the checkpoint that is being written cannot be: at once, on rank 0,
        and not when the next one is due."""
        if self._written is not None and self._written.done():
            self._written.result()

    def is_overdue(self) -> bool:
        """Whether the last checkpoint is too old, by the clock of this rank."""
        minutes = self.settings.save_checkpoints_minutes
        return minutes > 0 and time.monotonic() - self._saved_s > 60 * minutes

    def finish(self) -> None:
        """Waits on every rank until all is written. Raises InputError on every rank if that
        failed."""
        self.world.on_first(self._wait)

    def without_lost(self, state: State) -> State:
        """The state without evaluations whose model a dead rank 0 has not finished writing. On rank
        0."""
        positions = [manifest.position_of(path) or 0 for path in checkpoints_in(self.folder)]
        newest = max(positions, default=0)
        here = state.position
        kept = []
        for evaluation in state.evaluations:
            position = evaluation[0]
            if position <= newest or position == here:
                kept.append(evaluation)
        return replace(state, evaluations=kept)

    def close(self) -> None:
        """Waits for the write in progress and ignores its errors. After an error, a single rank may
        call it."""
        self._thread.shutdown(wait=True)

    def restore(self, path: Path) -> None:
        """Gives the parts the values of a checkpoint. On rank 0. Raises InputError: a misfit."""
        for part in self.parts:
            part.restore(path)
        self._newest = path

    def _start_writing(self, state: State) -> None:
        self._wait()
        if self._newest == self.folder / folder_name(state.position):
            return
        writes = [part.copied() for part in self.parts]
        self._written = self._thread.submit(self._write, writes, state)

    def _warn_of_time(self, took_s: float) -> None:
        """Warns once if a stop takes longer than a batch system leaves for it: a run that is asked
        to stop would be killed while it saves. A request that just misses a step is seen by all
        ranks at the end of the next one."""
        left = os.environ.get(launcher.STOP_S, "")
        needed_s = 2 * self._step_s + took_s
        if left.isdecimal() and needed_s > int(left) and not self._has_warned:
            self._has_warned = True
            self.world.say(
                f"warning: a stop may take {needed_s:.0f} s (two steps of {self._step_s:.1f} s, a"
                f" checkpoint of {took_s:.1f} s), and the batch system ends the job {left} s after"
                f" its signal ({launcher.STOP_S}): give sbatch"
                f" --signal=B:USR1@{2 * math.ceil(needed_s)}, and set {launcher.STOP_S} to that"
            )

    def _remove(self, path: Path) -> None:
        """Removes an old checkpoint, or warns once of one that stays."""
        error = remove_folder(path)
        if error and path not in self._stay:
            self.world.say(f"warning: {path} cannot be removed and stays: {one_line(error)}")
            self._stay.add(path)

    def _wait(self) -> None:
        written, self._written = self._written, None
        if written is not None:
            written.result()

    def _write(self, writes: Sequence[Write], state: State) -> None:
        began_s = time.monotonic()

        def fill(folder):
            for write in writes:
                write(folder)
            write_json(folder / STATE_FILE, asdict(state))
            manifest.seal(folder, state.position)

        final = self.folder / folder_name(state.position)
        for path in self.folder.glob(".*.tmp"):  # left by a killed process, on any machine
            shutil.rmtree(path, ignore_errors=True)
        replaced(final, replace_folder, fill)
        self._newest = final
        self._warn_of_time(time.monotonic() - began_s)
        best = state.best and state.best[0]
        for path in complete_checkpoints(self.folder)[: -self.settings.keep_checkpoints]:
            if path != final and manifest.position_of(path) not in (best, self.keeps):
                self._remove(path)
        self.publish()
