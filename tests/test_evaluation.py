"""What is measured while training: the best checkpoint, patience, and how often."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from programs import toy


class Scores:
    """An evaluation whose scores are a list; can ask the training to stop, as SIGUSR1 does."""

    def __init__(self, values: list[float], world, stops_after: int | None = None):
        self.values, self.world, self.stops_after, self.calls = iter(values), world, stops_after, 0

    def __call__(self) -> dict[str, float]:
        self.calls += 1
        if self.calls == self.stops_after:
            self.world.stop_wanted.set()
        return {"score": next(self.values)}


def train_toy(
    folder: Path, values: list[float], *, patience: int | None, stops_after: int | None = None, start=None
):
    """The toy of tests/programs for 20 steps, measured every 2; the state, and the calls of the evaluation."""
    from distributed.collectives.local import LocalCollectives
    from distributed.evaluation import HeldOut
    from distributed.run import Run
    from distributed.settings import LoopSettings
    from distributed.train import Training, train
    from distributed.world import World

    world, run = World(), Run(folder, True)
    plan = toy.plan_of(1, global_batch_size=14, num_train_steps=20)
    model = toy.make_model(0)
    optimizer = toy.make_optimizer(model, world, LocalCollectives())
    checkpoints = toy.make_checkpoints(folder, world, model, keep=1)
    measure = Scores(values, world, stops_after)
    held_out = HeldOut(measure=measure, tokens=1, every=2, best="score", patience=patience)
    training = Training(model=model, feed=toy.feed(), loss=toy.squared_loss(model), settings={}, held_out=held_out)
    loop = LoopSettings(seed=7, log_steps=1, xla="off")
    state = train(loop, plan, training, optimizer, run, checkpoints, start)
    run.close()
    return state, measure.calls


def kept_steps(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("rows-")) // 14 for path in (folder / "checkpoints").iterdir())


def test_patience_counts_evaluations_since_the_best(tmp_path):
    # Equal scores are not better: the first of them is the best, and patience runs from it.
    state, calls = train_toy(tmp_path / "equal", [0.1, 0.5, 0.5, 0.4, 0.5, 0.6, 0.7], patience=3)
    assert (state.step, calls, state.best) == (10, 5, (4 * 14, 0.5))
    assert kept_steps(tmp_path / "equal") == [4, 10]
    state, calls = train_toy(tmp_path / "never", [9, 8, 7, 6, 5, 4, 3, 2, 1, 0], patience=None)
    assert (state.step, calls, state.best) == (20, 10, (2 * 14, 9))
    assert kept_steps(tmp_path / "never") == [2, 20]
    state, _ = train_toy(tmp_path / "anew", [0.5, 0.4, 0.6, 0.1, 0.7, 0.2, 0.8, 0.3, 0.9, 0.95], patience=2)
    assert (state.step, state.best) == (20, (20 * 14, 0.95))
    assert kept_steps(tmp_path / "anew") == [20]


def test_a_resumed_run_keeps_its_history(tmp_path):
    """Stopped after its second evaluation and resumed it counts on: the best is from before, patience goes on."""
    from distributed.checkpoint import newest_intact
    from ringbert.errors import Preempted

    values = [0.9, 0.3, 0.2, 0.1, 0.0]
    whole, _ = train_toy(tmp_path / "whole", values, patience=3)
    with pytest.raises(Preempted):
        train_toy(tmp_path / "parts", values, patience=3, stops_after=2)
    state = newest_intact(tmp_path / "parts/checkpoints", print).state
    assert state.step == 5  # the stop travels with the next step's weights
    assert state.evaluations == [[2 * 14, 0.9], [4 * 14, 0.3]]
    assert kept_steps(tmp_path / "parts") == [2, 5]
    resumed, calls = train_toy(tmp_path / "parts", values[2:], patience=3, start=state)
    assert calls == 2
    assert resumed == whole
    assert kept_steps(tmp_path / "parts") == kept_steps(tmp_path / "whole") == [2, 8]
    again, calls = train_toy(tmp_path / "parts", [], patience=3, start=resumed)
    assert (again, calls) == (resumed, 0)


def test_evaluations_take_two_percent_of_the_tokens_or_what_is_told(capsys, tmp_path):
    from distributed.evaluation import HeldOut
    from distributed.feed import Feed
    from distributed.order import Order
    from distributed.rows import Rows, ragged
    from distributed.run import Run
    from tasks.evaluation import evaluation_interval

    ids = [np.ones(length, np.int32) for length in (20, 40)] * 500
    rows, run = Rows(pa.table({"input_ids": ragged(ids, pa.int32())})), Run(tmp_path, is_writer=True)
    plan = toy.plan_of(1, len(rows), global_batch_size=10)
    given = {"rows": rows, "order": Order(len(rows), 1), "collate": dict, "weights": dict}
    feeds = [Feed(**given), Feed(**given, lengths=rows.lengths("input_ids").__getitem__)]

    def every(asked, tokens, **more):
        held_out = HeldOut(measure=dict, tokens=tokens, every=asked, **more)
        found = {evaluation_interval(held_out, plan, feed, run) for feed in feeds}
        (said, again) = capsys.readouterr().err.strip().split("\nevaluation ")
        assert said == f"evaluation {again}"
        return found.pop(), again

    # 300 steps of 300 tokens are worth 270,000, and 2 % of a whole with 98 % training are 5,510 of them.
    assert every("auto", 2000) == (150, "every 150 steps, about 1.5% of the time")
    assert every("auto", 1800) == (100, "every 100 steps, about 2.0% of the time")
    assert every("auto", 3000) == (300, "once, at the end, about 1.1% of the time")
    assert every("auto", 9000) == (300, "once, at the end, about 3.2% of the time")
    assert every("epoch", 2000) == (100, "every 100 steps, about 2.2% of the time (--eval_steps auto: 150)")
    assert every(30, 3000) == (30, "every 30 steps, about 10.0% of the time (--eval_steps auto: 300)")
    assert every(200, 3000)[1] == "every 200 steps, about 2.2% of the time (--eval_steps auto: 300)"  # 200 and 300
    assert every(500, 9000)[1] == "once, at the end, about 3.2% of the time"
    assert every("auto", 1800, best="score", patience=1)[1] == "every 100 steps, about 2.0% of the time"
    warning = (
        "warning: with 3 evaluations --early_stopping_patience 2 never stops early"  # the third is the last step's
    )
    told = f"every 100 steps, about 2.0% of the time\n{warning}"
    assert every("auto", 1800, best="score", patience=2)[1] == told
    told = "once, at the end, about 1.1% of the time\nwarning: with one evaluation the last model is the best"
    assert every("auto", 3000, best="score")[1] == told
    plan = toy.plan_of(1, len(rows), global_batch_size=30)
    assert plan.steps == 100
    assert every("epoch", 2000)[0] == 34  # then 68 and 100: rounded down 33, 66, 99 and 100
    run.close()
