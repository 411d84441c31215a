"""Steps, warmup, rate and shares: each divided or scaled once, and every row seen as often as was asked for."""

import math
import re
from itertools import pairwise

import numpy as np
import pytest

from distributed.order import Order
from distributed.plan import Plan, PlanSettings, make_plan, rate_warning
from ringbert.errors import InputError

SIZES = (1, 2, 3, 8)
SQUAD_WINDOWS = 88_641
BATCH = 32


def plan_of(rows: int, size: int = 1, **settings) -> Plan:
    return make_plan(PlanSettings(**settings), rows, size)


def times_seen(plan: Plan) -> np.ndarray:
    """How often each row is trained on, by all ranks over all steps, taken as distributed.train takes them."""
    order, seen = Order(plan.rows, seed=1), np.zeros(plan.rows, np.int64)
    pieces = [plan.micro_batches(rank) for rank in range(plan.size)]
    for step in range(plan.steps):
        start = step * plan.global_batch_size
        for pieces_of_rank in pieces:  # every rank does every step, with the same global batch
            indices = order.rows_at(start, start + plan.global_batch_size)
            for piece in pieces_of_rank:
                np.add.at(seen, indices[piece], 1)
    return seen


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", ["0", "1", "G-1", "G", "88641"])
@pytest.mark.parametrize("batch_flag", ["train_batch_size", "global_batch_size"])
def test_every_row_is_seen_once_in_each_epoch(batch_flag: str, rows: str, size: int, accumulation: int) -> None:
    epochs = 2.5
    global_batch = BATCH * size if batch_flag == "train_batch_size" else BATCH
    num_rows = {"G-1": global_batch - 1, "G": global_batch}.get(rows) or int(rows)
    flags = {"num_train_epochs": epochs, batch_flag: BATCH, "gradient_accumulation_steps": accumulation}
    if num_rows * epochs < global_batch:  # not one step's rows: refused, and the flag named
        with pytest.raises(InputError, match=r"--|there are no rows"):
            plan_of(num_rows, size, **flags)
        return
    plan = plan_of(num_rows, size, **flags)
    assert plan.global_batch_size == global_batch

    seen = times_seen(plan)
    complete, rest = divmod(plan.steps * global_batch, num_rows)
    assert seen.sum() == plan.steps * global_batch, "a row of a step was left out, or taken by two ranks"
    assert seen.max() <= math.ceil(epochs), "a row came back before its epoch was over"
    assert seen.min() >= complete, f"a row was missed in one of {complete} complete epochs"
    assert np.count_nonzero(seen > complete) == rest, "the last epoch repeats a row"
    assert 0 <= epochs * num_rows - seen.sum() < BATCH + global_batch


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("global_batch", [32, 33, 39, 40])
def test_shares_and_micro_batches_tile_the_global_batch(global_batch: int, size: int, accumulation: int) -> None:
    plan = plan_of(1000, size, global_batch_size=global_batch, gradient_accumulation_steps=accumulation)
    shares = [plan.share(rank) for rank in range(size)]
    assert np.concatenate([np.arange(global_batch)[s] for s in shares]).tolist() == list(range(global_batch))
    lengths = [share.stop - share.start for share in shares]
    assert max(lengths) - min(lengths) <= 1
    for rank, share in enumerate(shares):
        pieces = plan.micro_batches(rank)
        assert len(pieces) == accumulation
        assert (pieces[0].start, pieces[-1].stop) == (share.start, share.stop)
        assert all(a.stop == b.start for a, b in pairwise(pieces))
        piece_lengths = [piece.stop - piece.start for piece in pieces]
        assert min(piece_lengths) >= 1
        assert max(piece_lengths) - min(piece_lengths) <= 1


def test_32_rows_on_3_ranks() -> None:
    plan = plan_of(1000, 3, global_batch_size=32)
    assert [plan.share(rank) for rank in range(3)] == [slice(0, 11), slice(11, 22), slice(22, 32)]


# int(88641 / 32 * 3) = 8310 steps of one rank and int(831.0) of warmup, as run_squad.py computes them.
@pytest.mark.parametrize(
    ("size", "steps", "warmup"), [(1, 8310, 831), (2, 4155, 415), (3, 2770, 277), (8, 1038, 103)]
)
def test_steps_and_warmup_are_divided_once(size: int, steps: int, warmup: int) -> None:
    plan = plan_of(SQUAD_WINDOWS, size)
    assert (plan.steps, plan.warmup_steps, plan.global_batch_size) == (steps, warmup, 32 * size)


@pytest.mark.parametrize(("size", "steps", "warmup"), [(1, 1000, 100), (3, 333, 33), (8, 125, 12)])
def test_given_steps_are_one_ranks_too(size: int, steps: int, warmup: int) -> None:
    plan = plan_of(SQUAD_WINDOWS, size, num_train_steps=1000, num_warmup_steps=100)
    assert (plan.steps, plan.warmup_steps) == (steps, warmup)
    proportional = plan_of(SQUAD_WINDOWS, size, num_train_steps=1000)
    assert (proportional.steps, proportional.warmup_steps) == (steps, warmup)
    assert plan_of(SQUAD_WINDOWS, size, num_train_steps=1000, num_warmup_steps=0).warmup_steps == 0


@pytest.mark.parametrize("size", SIZES)
def test_a_global_batch_keeps_one_ranks_steps_and_rate(size: int) -> None:
    plan, of_one = plan_of(SQUAD_WINDOWS, size, global_batch_size=32), plan_of(SQUAD_WINDOWS, 1)
    for name in ("steps", "warmup_steps", "learning_rate", "global_batch_size", "epochs"):
        assert getattr(plan, name) == getattr(of_one, name), name


@pytest.mark.parametrize(("scaling", "factor"), [("linear", 8), ("sqrt", math.sqrt(8)), ("none", 1)])
def test_rate_scaling(scaling: str, factor: float) -> None:
    plan = plan_of(SQUAD_WINDOWS, 8, lr_scaling=scaling)
    assert plan.learning_rate == pytest.approx(5e-5 * factor, rel=1e-12)
    assert plan.base_learning_rate == 5e-5
    assert plan_of(SQUAD_WINDOWS, 1, lr_scaling=scaling).learning_rate == 5e-5


def test_a_scaled_rate_above_what_bert_survives_is_warned_of() -> None:
    warning = rate_warning(plan_of(SQUAD_WINDOWS, 8))
    assert warning is not None
    for needed in ("--lr_scaling", "0.0004", "0.0002", "8 ranks"):
        assert needed in warning
    assert rate_warning(plan_of(SQUAD_WINDOWS, 4)) is None  # 2e-4, the limit itself
    assert rate_warning(plan_of(SQUAD_WINDOWS, 8, lr_scaling="sqrt")) is None
    assert rate_warning(plan_of(SQUAD_WINDOWS, 8, global_batch_size=32)) is None
    assert rate_warning(plan_of(SQUAD_WINDOWS, 1, learning_rate=1e-3)) is None  # as the user wanted it


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"rows": 10}, "10 rows, batch 32 and 3 epochs make 0 steps.*--train_batch_size .*--num_train_epochs"),
        ({"rows": 40, "size": 8}, "make 3 steps of one rank, divided by 8 ranks"),
        ({"rows": 5, "global_batch_size": 32}, "lower --global_batch_size"),
        ({"size": 8, "num_train_steps": 7}, "--num_train_steps 7, divided by 8 ranks"),
        ({"rows": 0}, "there are no rows to train on"),
        (
            {"gradient_accumulation_steps": 33},
            "--gradient_accumulation_steps must be at most a rank's 32 .*got 33",
        ),
        (
            {"size": 8, "global_batch_size": 7},
            "--global_batch_size must be at least the number of ranks, 8, got 7",
        ),
    ],
)
def test_a_plan_without_steps_names_its_flag(flags: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan_of(**{"rows": 1000, "size": 1, **flags})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"train_batch_size": 0}, "--train_batch_size must be at least 1, got 0"),
        ({"global_batch_size": -1}, "--global_batch_size must be at least 1, got -1"),
        ({"train_batch_size": 32, "global_batch_size": 32}, "exclude each other"),
        ({"gradient_accumulation_steps": 0}, "--gradient_accumulation_steps must be at least 1, got 0"),
        ({"num_train_epochs": float("nan")}, "--num_train_epochs must be at least 0, got nan"),
        ({"num_train_steps": 0}, "--num_train_steps must be at least 1, got 0"),
        ({"learning_rate": -1.0}, "--learning_rate must be at least 0, got -1"),
        ({"learning_rate": float("inf")}, "--learning_rate must be at least 0, got inf"),
        ({"warmup_proportion": -0.1}, "--warmup_proportion must be at least 0, got -0.1"),
        ({"num_warmup_steps": -5}, "--num_warmup_steps must be at least 0, got -5"),
    ],
)
def test_settings_out_of_range_are_refused(flags: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PlanSettings(**flags)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_after_deaths_the_steps_stay_and_micro_batches_do_not_grow(size: int, accumulation: int) -> None:
    settings = {"gradient_accumulation_steps": accumulation, "train_batch_size": BATCH}
    launched = plan_of(SQUAD_WINDOWS, 8, **settings)
    plan = make_plan(PlanSettings(**settings), SQUAD_WINDOWS, size, launched_size=8)
    assert plan == launched.on_fewer_ranks(size)
    same = ("rows", "global_batch_size", "steps", "warmup_steps", "learning_rate")
    assert [getattr(plan, name) for name in same] == [getattr(launched, name) for name in same]
    pieces = [piece for rank in range(size) for piece in plan.micro_batches(rank)]
    assert [row for piece in pieces for row in range(piece.start, piece.stop)] == list(range(8 * BATCH))
    assert max(piece.stop - piece.start for piece in pieces) <= BATCH // accumulation


def test_a_batch_that_shrinks_is_that_of_a_start_with_fewer_ranks() -> None:
    settings = PlanSettings(train_batch_size=BATCH, elastic_batch="shrink")
    assert make_plan(settings, SQUAD_WINDOWS, 3, launched_size=8) == plan_of(SQUAD_WINDOWS, 3)


def test_the_printed_plan() -> None:
    assert str(plan_of(SQUAD_WINDOWS, 8, gradient_accumulation_steps=2)) == (
        "plan: 88,641 rows, 8 ranks, batch 32 per rank, 256 global, accumulation 2; 1,038 steps (2.99780 epochs), "
        "103 warmup; learning rate 5e-05 x linear scaling = 0.0004"
    ).replace("2.99780", f"{1038 * 256 / 88641:g}")
    uneven = str(plan_of(SQUAD_WINDOWS, 3, global_batch_size=32))
    assert "3 ranks, batch 10-11 per rank, 32 global" in uneven
    assert uneven.endswith("learning rate 5e-05, not scaled")
    assert re.search(r"1 rank, batch 32 per rank, 32 global.*learning rate 5e-05$", str(plan_of(SQUAD_WINDOWS)))
