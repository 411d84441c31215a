"""Schedules and optimizers beyond Google's, against transformers and PyTorch, whose values
scripts/torch_recipes.py has written."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from harness.mpi import ROOT

from bert.optimizers.adamw import AdamWeightDecay
from bert.optimizers.choose import make_optimizer
from bert.optimizers.lamb import LAMB
from bert.optimizers.rate import RateSchedule
from bert.optimizers.schedules import SCHEDULES, Numbers
from bert.optimizers.settings import OptimizerSettings
from ringbase.files import read_json

GOLDEN = read_json(ROOT / "tests/goldens/recipes.json")
NUMBERS = Numbers(GOLDEN["steps"], GOLDEN["warmup"], GOLDEN["decay"])


@pytest.mark.parametrize("name", GOLDEN["rates"])
def test_each_step_has_the_rate_of_transformers(name):
    kind, lowest, _ = name.partition(" with a lowest rate")
    ratio = GOLDEN["min_ratio"] if lowest else 0.0
    schedule = RateSchedule(2.0, *NUMBERS[:2], kind, NUMBERS.decay_steps, ratio)
    again = RateSchedule.from_config(schedule.get_config())
    of_training = GOLDEN["rates"][name][: NUMBERS.train_steps + 1]
    for step, expected in enumerate(of_training):
        if lowest and kind == "wsd" and step < NUMBERS.warmup_steps:
            continue  # there transformers' warmup begins at the lowest rate, and ours at 0
        ours = float(schedule(tf.constant(step, tf.int64)))
        assert ours == pytest.approx(2 * expected, abs=2e-6), (name, step)
        assert float(again(step)) == ours


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_the_same_for_plans_and_for_trainings(name):
    """NumPy's and Keras'; it rises from 0 to the peak and never above."""
    steps = np.arange(NUMBERS.train_steps + 1, dtype=np.float32)
    planned = SCHEDULES[name].part(steps, NUMBERS, 0.25, np)
    rates = RateSchedule(1.0, *NUMBERS[:2], name, NUMBERS.decay_steps, 0.25)
    np.testing.assert_allclose(planned, [float(rates(step)) for step in steps], atol=1e-6)
    assert planned[0] == 0
    assert planned.max() <= 1
    assert planned[NUMBERS.warmup_steps :].min() >= 0.25


@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.parametrize("name", SCHEDULES)
def test_short_plans_have_finite_rates(name, warmup):
    for steps in (1, 2):
        rates = RateSchedule(1.0, steps, warmup, name, 0)
        assert all(0 <= float(rates(step)) <= 1 for step in range(steps + 2)), (name, steps)


@pytest.mark.parametrize("large", [False, True])
def test_steps_with_bias_correction_are_those_of_pytorch(large):
    """Also in the code that XLA compiles for large variables."""
    golden = GOLDEN["adamw"]
    repeats = (128, 100) if large else (1, 1)
    start = np.tile(np.array(golden["start"], np.float32), repeats)
    beta1, beta2 = golden["betas"]
    settings = OptimizerSettings(
        weight_decay=golden["weight_decay"],
        adam_beta1=beta1,
        adam_beta2=beta2,
        adam_epsilon=golden["eps"],
        adam_bias_correction=True,
    )
    optimizer = make_optimizer("adamw", golden["lr"], settings)
    variable = keras.Variable(start, name="dense.kernel")
    optimizer.build([variable])
    for gradient, expected in zip(golden["gradients"], golden["values"], strict=True):
        tiled = np.tile(np.array(gradient, np.float32), repeats)
        optimizer.update_scaled([tf.constant(tiled)], 1.0, tf.constant(golden["lr"]))
        optimizer.iterations.assign_add(1)
        ours = variable.numpy()
        np.testing.assert_allclose(ours[:3, :4], expected, rtol=2e-6, atol=1e-6)
        assert np.ptp(ours.reshape(repeats[0], 3, repeats[1], 4), axis=(0, 2)).max() == 0


@pytest.mark.parametrize("kind", [AdamWeightDecay, LAMB])
def test_without_it_the_first_step_is_smaller(kind):
    """BERT's m and v are 1 - beta of the gradient and of its square after one step."""
    moves = []
    for corrects in (False, True):
        variable = keras.Variable(np.ones((2, 3)), name="dense.bias")  # no decay, no trust ratio
        optimizer = kind(1e-2, bias_correction=corrects)
        optimizer.build([variable])
        optimizer.apply([tf.ones((2, 3))])
        moves.append(float(1 - variable.numpy().max()))
    np.testing.assert_allclose(moves, [1e-2 * 0.1 / 0.001**0.5, 1e-2], rtol=1e-3)
