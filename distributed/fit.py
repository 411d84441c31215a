"""A training from where it begins to its end, the same for every program."""

from collections.abc import Callable
from functools import partial

from distributed.checkpoint import Checkpoints
from distributed.elastic import surviving
from distributed.found import newest_intact
from distributed.plan import LoopSettings, Plan, State, first_state
from distributed.rows import Feed
from distributed.run import Run
from distributed.step import TrainingStep
from distributed.train import HeldOut, train


def fit(
    step: TrainingStep,
    feed: Feed,
    plan: Plan,
    checkpoints: Checkpoints,
    run: Run,
    loop: LoopSettings,
    state: State,
    held_out: HeldOut | None = None,
) -> State:
    """Trains from a state, whose values rank 0 has, to the end of the plan; in an elastic world
    also without the ranks that die. Returns the last state, which is saved. Raises as `train`."""
    step.begin_at(state)
    work = partial(train, step, feed, plan, checkpoints, run, loop, held_out)
    return surviving(step.optimizer.world, f"the training in {run.folder}", work)


def restored(checkpoints: Checkpoints, plan: Plan, say: Callable[[str], None]) -> State:
    """Where a training goes on, from its newest intact checkpoint, whose values it takes; or where
    it begins. On rank 0."""
    path, state = newest_intact(checkpoints.folder, say) or (None, None)
    if path:
        checkpoints.restore(path)
    return first_state(plan, {}, state, continues=True)
