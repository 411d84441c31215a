"""The progress of training, as a checkpoint's state.json holds it."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ringbase.errors import InputError
from ringbase.json_files import read_object


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

    def after_step(self) -> "State":
        """The state one step later."""
        return replace(self, position=self.position + self.global_batch_size, step=self.step + 1)

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


START = State(0, 0, 1, 1, {})


def read_state(path: Path) -> State:
    """The state of a checkpoint. Raises InputError when it cannot be read or a value is damaged."""
    where = f"{path}: state.json"
    values = read_object(path / "state.json", where)
    position = values.get("position")  # older versions did not store the other two
    values = {"evaluations": [], "evaluated": position, "saved": position, **values}
    numbers = [
        values.get(name) for name in ("position", "step", "steps", "global_batch_size", "evaluated", "saved")
    ]
    is_whole = (
        values.keys() == asdict(START).keys()
        and all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)
        and values["step"] <= values["steps"]
        and values["steps"] * values["global_batch_size"] > 0
        and isinstance(values["settings"], dict)
        and isinstance(values["evaluations"], list)
        and all(map(_is_evaluation, values["evaluations"]))
    )
    if not is_whole:
        raise InputError(f"{where} is damaged; remove this checkpoint to use an older one")
    return State(**values)


def _is_evaluation(entry: object) -> bool:
    match entry:
        case [int() | float() as position, int() | float()]:
            return 0 <= position < 1 << 63
    return False
