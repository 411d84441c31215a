"""The progress of training, as a checkpoint's state.json holds it."""

from dataclasses import dataclass, field, replace

from distributed.plan import Plan


@dataclass(frozen=True)
class State:
    """The progress of training: `position` rows of the stream consumed, `step` of `steps` done.

    `settings` must not change when a run is resumed. `evaluations` holds [position, score] of each evaluation; the
    best checkpoint is chosen by these scores. `evaluated` is the position of the last evaluation, so that each is
    done once, also after a resume or a death.
    """

    position: int
    step: int
    steps: int
    global_batch_size: int
    settings: dict[str, object]
    evaluations: list[list[float]] = field(default_factory=list)
    evaluated: int = 0

    def after_step(self) -> "State":
        """The state one step later."""
        return replace(self, position=self.position + self.global_batch_size, step=self.step + 1)

    def with_score(self, score: float | None) -> "State":
        """The state with an evaluation here; `score` is the one that selects the best checkpoint."""
        added = [] if score is None else [[self.position, float(score)]]
        return replace(self, evaluated=self.position, evaluations=[*self.evaluations, *added])

    @property
    def best(self) -> tuple[int, float] | None:
        """Position and score of the best evaluation; the earliest one if several are equal."""
        if not self.evaluations:
            return None
        position, score = max(self.evaluations, key=lambda entry: (entry[1], -entry[0]))
        return int(position), score


START = State(0, 0, 1, 1, {})


def first_state(plan: Plan, settings: dict[str, object], saved: State | None, continues: bool) -> State:
    """Where a training by the plan begins: at row 0, or at a saved state, perhaps of another number of ranks. The
    checkpoints of its evaluations are there only if a run `continues`."""
    step, saved = plan.steps, saved or START
    if saved.step < saved.steps:
        is_same = saved.global_batch_size == plan.global_batch_size
        step = min(plan.steps, saved.step if is_same else -(-saved.position // plan.global_batch_size))
    sizes = {"steps": plan.steps, "global_batch_size": plan.global_batch_size}
    evaluations = saved.evaluations if continues else []
    return replace(saved, step=step, settings=settings, evaluations=evaluations, **sizes)
