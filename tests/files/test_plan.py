"""Steps, warmup and rate: each divided or scaled once."""

import math

import pytest
from harness.refusals import refused

from distributed.plan import PlanSettings, make_plan, rate_warning

SIZES = (1, 2, 3, 8)
SQUAD_WINDOWS, BATCH = 88_641, 32


def plan_of(rows, size=1, **settings):
    return make_plan(PlanSettings(**settings), rows, size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", [1, BATCH - 1, BATCH, 3001])
@pytest.mark.parametrize("batch_flag", ["train_batch_size", "global_batch_size"])
def test_the_steps_cover_the_epochs_but_for_less_than_a_batch(batch_flag, rows, size):
    epochs, global_batch = 2.5, BATCH * size if batch_flag == "train_batch_size" else BATCH
    flags = {"num_train_epochs": epochs, batch_flag: BATCH}
    if rows * epochs < global_batch:
        refused(lambda: plan_of(rows, size, **flags), f"--{batch_flag}")
        return
    plan = plan_of(rows, size, **flags)
    assert plan.global_batch_size == global_batch
    assert 0 <= epochs * rows - plan.steps * global_batch < BATCH + global_batch


# int(88641 / 32 * 3) = 8310 steps of one rank and int(831.0) of warmup, as run_squad.py computes them.
@pytest.mark.parametrize(
    ("size", "steps", "warmup", "flags"),
    [(1, 8310, 831, {}), (2, 4155, 415, {}), (3, 2770, 277, {}), (8, 1038, 103, {}),
     (1, 1000, 100, {"num_train_steps": 1000}), (8, 125, 12, {"num_train_steps": 1000}),
     (3, 333, 16, {"num_train_steps": 1000, "num_warmup_steps": 50}),
     (8, 125, 0, {"num_train_steps": 1000, "num_warmup_steps": 0})],
)  # fmt: skip
def test_steps_and_warmup_are_one_ranks_divided_once(size, steps, warmup, flags):
    plan = plan_of(SQUAD_WINDOWS, size, **flags)
    assert (plan.steps, plan.warmup_steps, plan.global_batch_size) == (steps, warmup, 32 * size)


@pytest.mark.parametrize("size", SIZES)
def test_a_global_batch_keeps_one_ranks_steps_and_rate(size):
    plan, of_one = plan_of(SQUAD_WINDOWS, size, global_batch_size=32), plan_of(SQUAD_WINDOWS, 1)
    for name in ("steps", "warmup_steps", "learning_rate", "global_batch_size", "epochs"):
        assert getattr(plan, name) == getattr(of_one, name), name


@pytest.mark.parametrize(("scaling", "factor"), [("linear", 8), ("sqrt", math.sqrt(8)), ("none", 1)])
def test_the_rate_is_scaled_by_the_number_of_ranks(scaling, factor):
    plan = plan_of(SQUAD_WINDOWS, 8, lr_scaling=scaling)
    assert plan.learning_rate == pytest.approx(5e-5 * factor, rel=1e-12)
    assert plan_of(SQUAD_WINDOWS, 1, lr_scaling=scaling).learning_rate == 5e-5


def test_a_scaled_rate_above_what_bert_survives_is_warned_of():
    warning = rate_warning(plan_of(SQUAD_WINDOWS, 8))
    assert all(part in warning for part in ("--lr_scaling", "0.0004", "8 ranks"))
    assert rate_warning(plan_of(SQUAD_WINDOWS, 4)) is None  # 2e-4, the limit itself
    for flags in ({"lr_scaling": "sqrt"}, {"global_batch_size": 32}):
        assert rate_warning(plan_of(SQUAD_WINDOWS, 8, **flags)) is None
    assert rate_warning(plan_of(SQUAD_WINDOWS, 1, learning_rate=1e-3)) is None  # as the user wanted it


@pytest.mark.parametrize(
    ("flags", "parts"),
    [({"rows": 10}, ["--train_batch_size", "--num_train_epochs", "10"]), ({"rows": 40, "size": 8}, ["8 ranks"]),
     ({"rows": 5, "global_batch_size": 32}, ["--global_batch_size"]), ({"rows": 0}, ["no rows"]),
     ({"size": 8, "num_train_steps": 7}, ["--num_train_steps", "7", "8"]),
     ({"gradient_accumulation_steps": 33}, ["--gradient_accumulation_steps", "32", "33"]),
     ({"size": 8, "global_batch_size": 7}, ["--global_batch_size", "8", "7"])],
)  # fmt: skip
def test_a_plan_without_steps_names_its_flag(flags, parts):
    refused(lambda: plan_of(**{"rows": 1000, "size": 1, **flags}), *parts)
