"""Steps, warmup and rate: each divided or scaled once."""

import math
from dataclasses import replace

import pytest
from harness.refusals import refused

from distributed.plan import START, PlanSettings, make_plan, rate_warning

SQUAD_WINDOWS = 88_641


def plan_of(rows, size=1, **settings):
    return make_plan(PlanSettings(**settings), rows, size)


# int(88641 / 32 * 3) = 8310 steps of one rank and int(831.0) of warmup, as run_squad.py computes
# them.
@pytest.mark.parametrize(
    ("size", "steps", "warmup", "flags"),
    [
        (1, 8310, 831, {}),
        (2, 4155, 415, {}),
        (3, 2770, 277, {}),
        (8, 1038, 103, {}),
        (1, 1000, 100, {"num_train_steps": 1000}),
        (8, 125, 12, {"num_train_steps": 1000}),
        (3, 333, 16, {"num_train_steps": 1000, "num_warmup_steps": 50}),
        (8, 125, 0, {"num_train_steps": 1000, "num_warmup_steps": 0}),
        (3, 333, 333, {"num_train_steps": 1000, "num_warmup_steps": 1000}),
    ],
)
def test_steps_and_warmup_are_one_ranks_divided_once(size, steps, warmup, flags):
    plan = plan_of(SQUAD_WINDOWS, size, **flags)
    assert (plan.steps, plan.warmup_steps, plan.global_batch_size) == (steps, warmup, 32 * size)


@pytest.mark.parametrize(
    # 2e-4 is what most BERTs survive; a rate of the user's own is the user's
    ("size", "flags", "rate"),
    [
        (8, {}, 4e-4),
        (4, {}, 2e-4),
        (8, {"lr_scaling": "sqrt"}, 5e-5 * math.sqrt(8)),
        (8, {"lr_scaling": "none"}, 5e-5),
        (8, {"global_batch_size": 32}, 5e-5),
        (1, {"lr_scaling": "sqrt", "learning_rate": 1e-3}, 1e-3),
    ],
)
def test_the_rate_is_scaled_by_the_number_of_ranks_with_a_warning_if_it_becomes_too_high(
    size, flags, rate
):
    plan = plan_of(SQUAD_WINDOWS, size, **flags)
    assert plan.learning_rate == pytest.approx(rate, rel=1e-12)
    warning = rate_warning(plan)
    assert (warning is None) == (rate != 4e-4)
    assert warning is None or all(part in warning for part in ("--lr_scaling", "0.0004", "8 ranks"))


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ({"rows": 10}, ["--train_batch_size", "--num_train_epochs", "10"]),
        ({"rows": 40, "size": 8}, ["8 ranks"]),
        ({"rows": 5, "global_batch_size": 32}, ["--global_batch_size"]),
        ({"rows": 0}, ["no rows"]),
        ({"size": 8, "num_train_steps": 7}, ["--num_train_steps", "7", "8"]),
        ({"gradient_accumulation_steps": 33}, ["--gradient_accumulation_steps", "32", "33"]),
        ({"size": 8, "global_batch_size": 7}, ["--global_batch_size", "8", "7"]),
        ({"num_train_epochs": 1e9}, ["--num_train_epochs"]),
        (
            {"num_train_steps": 1000, "num_warmup_steps": 5000, "size": 2},
            ["--num_warmup_steps 5000", "1000 steps of --num_train_steps", "to 100"],
        ),
        ({"num_warmup_steps": 94}, ["--num_warmup_steps 94", "93 steps of --num_train_epochs"]),
    ],
)
def test_a_plan_without_steps_or_with_more_warmup_names_its_flag(flags, parts):
    refused(lambda: plan_of(**{"rows": 1000} | flags), *parts)


@pytest.mark.parametrize(
    ("rows", "flags", "words"),
    [
        (320, {}, "30 steps, 3 epochs, 3 of them warmup"),
        (320, {"num_train_steps": 10}, "10 steps, 1 epoch, 1 of them warmup"),
        (842, {"num_train_epochs": 1, "global_batch_size": 24}, "35 steps, about 1 epoch, 3 of"),
        (784, {"num_train_epochs": 1}, "24 steps, 0.98 epochs, 2 of"),
        (1_000_000, {"num_train_steps": 50}, "50 steps, 0.0016 epochs, 5 of"),
        (1_000_000, {"num_train_steps": 10**8}, "100,000,000 steps, 3,200 epochs,"),
    ],
)
def test_a_plan_reads_as_a_person_says_it(rows, flags, words):
    assert f"; {words}" in str(plan_of(rows, **flags))


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([math.nan, 0.2, 0.5, math.nan], 3),
        ([0.1, math.nan, 0.1], 1),
        ([math.nan, -math.inf], 2),
        ([math.nan, math.nan], 1),
    ],
)
def test_a_score_that_is_no_number_is_never_the_best(scores, best):
    state = START
    for position, score in enumerate(scores, 1):
        state = replace(state, position=position).with_score(score)
    assert state.best
    assert state.best[0] == best
