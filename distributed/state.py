"""The progress of training, as a checkpoint's state.json holds it."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ringbase.errors import InputError
from ringbase.json_files import read_object

WHOLE = {
    "position": 0,
    "step": 0,
    "steps": 1,
    "global_batch_size": 1,
    "evaluated": 0,
    "saved": 0,
}  # the least of each


@dataclass(frozen=True)
class State:
    """The progress of training: `position` rows of the stream consumed, `step` of `steps` done.

    `settings` must not change when a run is resumed. `evaluations` holds [position, score] of each evaluation; the
    best checkpoint is chosen by these scores. `evaluated` and `saved` are the positions of the last evaluation and
    of the last checkpoint, so that each is done once, also after a resume or a death.
    """

    position: int
    step: int
    steps: int
    global_batch_size: int
    settings: dict[str, object]
    evaluations: list[list[float]] = field(default_factory=list)
    evaluated: int = 0
    saved: int = 0

    def after_step(self, steps: int, global_batch_size: int) -> "State":
        """The state one step later, in a plan of so many steps of so many rows."""
        position = self.position + global_batch_size
        return replace(
            self, position=position, step=self.step + 1, steps=steps, global_batch_size=global_batch_size
        )

    def with_score(self, score: float | None) -> "State":
        """The state with an evaluation here; `score` is the one that selects the best checkpoint."""
        added = [] if score is None else [[self.position, float(score)]]
        return replace(self, evaluated=self.position, evaluations=[*self.evaluations, *added])

    @property
    def progress(self) -> tuple[int, int, int]:
        """How far a rank is: larger is further."""
        return self.step, self.evaluated, self.saved

    @property
    def best(self) -> tuple[int, float] | None:
        """Position and score of the best evaluation; the earliest one if several are equal."""
        if not self.evaluations:
            return None
        position, score = max(self.evaluations, key=lambda entry: (entry[1], -entry[0]))
        return int(position), score


def read_state(path: Path) -> State:
    """The state of a checkpoint. Raises InputError when it cannot be read or a value is damaged."""
    try:
        values = read_object(path / "state.json", "state.json", allow_nan=True)
        position = values.get("position")  # older versions did not store the other two
        return _state_of({"evaluated": position, "saved": position} | dict(values))
    except InputError as error:
        raise InputError(
            f"{path}: state.json is damaged ({error}); remove this checkpoint to use an older one"
        ) from error


def _state_of(values: Mapping[str, Any]) -> State:
    """The state of these values. Raises InputError for the first that is missing, unknown or of another type."""
    known = {entry.name: entry.default_factory is MISSING for entry in fields(State)}
    missing = [name for name, is_required in known.items() if is_required and name not in values]
    if wrong := [*missing, *(name for name in values if name not in known)]:
        raise InputError(f"{wrong[0][:80]} is {'missing' if missing else 'unknown'}")
    for name, least in WHOLE.items():
        if type(values[name]) is not int or not least <= values[name] < 1 << 63:
            raise InputError(f"{name} must be an integer from {least}, got {values[name]!r:.60}")
    if values["step"] > values["steps"]:
        raise InputError(f"step {values['step']} of {values['steps']}")
    if not isinstance(values["settings"], dict):
        raise InputError("settings must be an object")
    evaluations = values.get("evaluations", [])
    if not isinstance(evaluations, list) or not all(map(_is_evaluation, evaluations)):
        raise InputError("evaluations must be a list of positions and scores")
    return State(**values)


START = State(0, 0, 1, 1, {})


def _is_evaluation(entry: object) -> bool:
    match entry:
        case [int() | float() as position, int() | float()]:
            return 0 <= position < 1 << 63
    return False
