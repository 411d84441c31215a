"""What must hold in a training, whatever goes wrong.

The variable of its model is how often each row was trained on, the optimizer's a hash of all
updates so far. Both are whole numbers, so that a row too many, too few or in part shows, and what
they must be after each step follows from the order of the rows alone.
"""

from pathlib import Path
from typing import Any

import numpy as np
from harness.simulation.scheduler import Fault, Process
from safetensors.numpy import load_file

from distributed.found import complete_checkpoints, read_checkpoint
from distributed.mixture import Mixture
from distributed.plan import State
from distributed.stages import Table
from distributed.world import World
from ringbase import manifest
from ringbase.errors import InputError
from ringbase.files import read_object

NUM_ROWS, SEED = 97, 5
# of three corpora, whose weights change during the training, in the middle of a step
SIZES = 60, 30, 7
WEIGHTS: Table[tuple[int, ...]] = Table((0, 70, 330), ((3, 1, 0), (1, 1, 1), (0, 2, 5)))
PRIMES = np.array([2, 3, 5, 7, 11, 13, 17, 19, 23, 29])
MODULUS = 2.0**40  # of hashes, exact in float64
CHECKPOINT_FILES = {"model.safetensors", "optimizer.safetensors", "state.json"}


def hash_after(before: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The hash of all updates so far, from that before the last and the rows of the last."""
    weights = np.resize(PRIMES, NUM_ROWS) + np.arange(NUM_ROWS)
    return np.asarray((before * 31 + rows @ weights + 1) % MODULUS)


def order_of_rows() -> Mixture:
    return Mixture(SIZES, WEIGHTS, SEED)


class Watch:
    """Sees what all ranks do, and raises Fault when something does not hold."""

    def __init__(self, rows_per_step: int, folder: Path):
        self.rows_per_step, self.folder = rows_per_step, folder / "checkpoints"
        self.saved = 0  # rows of the newest checkpoint that was said to be complete
        self.applied: dict[Process, int] = {}  # the last step of each process
        self._wanted: dict[Any, list[bool]] = {}
        self._order = order_of_rows()
        # what the variables must be after each step, from the order of the rows alone
        self._right = [(np.zeros(NUM_ROWS), np.zeros([]))]

    def begins(self, world: World, state: State) -> None:
        """A rank begins the training, or repeats it from its beginning."""
        if state.position < self.saved:
            raise Fault(f"training begins at {state.position}, but {self.saved} was saved")
        self.applied[process_of(world)] = state.step

    def after_step(self, world: World, step, wanted: list[bool]) -> None:
        """A rank has taken a step."""
        process, number = process_of(world), step.state.step + 1
        counts, hashed = step.optimizer.trainable[0].value, step.optimizer.hashed.value
        self.check(process.name, number, counts, hashed)
        seen = self._wanted.setdefault((world.comm._shared, number), wanted)
        if seen != wanted:
            raise Fault(f"in step {number} some ranks saw the requests {seen}, others {wanted}")
        if number <= self.applied[process]:
            raise Fault(f"{process.name} took step {number} again, after {self.applied[process]}")
        self.applied[process] = number

    def published(self) -> None:
        """A checkpoint is complete."""
        self.saved = max(self.saved, self.newest())

    def newest(self) -> int:
        """The position of the newest intact checkpoint, all of which must be right."""
        positions = [0]
        for path in complete_checkpoints(self.folder):
            try:
                state = read_checkpoint(path)
            except InputError:
                continue
            listed = read_object(path / manifest.NAME)["files"]
            if set(listed) != CHECKPOINT_FILES:
                raise Fault(f"the manifest of {path.name} lists {list(listed)}")
            moments = load_file(path / "optimizer.safetensors")
            counts = load_file(path / "model.safetensors")["0"]
            self.check(path.name, state.step, counts, moments["0001"])
            if state.position != state.step * self.rows_per_step:
                raise Fault(f"{path.name}: {state}")
            positions.append(state.position)
        return max(positions)

    def right_after(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        while len(self._right) <= step:
            counts, hashed = self._right[-1]
            first = (len(self._right) - 1) * self.rows_per_step
            rows = self._order.rows_at(first, first + self.rows_per_step)
            added = np.bincount(rows, minlength=NUM_ROWS).astype(float)
            self._right.append((counts + added, hash_after(hashed, added)))
        return self._right[step]

    def check(self, where: str, step: int, counts: np.ndarray, hashed: np.ndarray) -> None:
        right_counts, right_hash = self.right_after(step)
        if not np.array_equal(counts, right_counts):
            off = np.flatnonzero(counts != right_counts)[:5].tolist()
            raise Fault(
                f"{where}: after step {step} rows {off} were not trained on as often as they should"
            )
        if hashed != right_hash:
            raise Fault(f"{where}: after step {step} the optimizer is that of other updates")


def process_of(world: World) -> Process:
    return world.comm._process
