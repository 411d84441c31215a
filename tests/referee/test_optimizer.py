"""AdamWeightDecay, its schedule and LAMB against google-research's `optimization.py`, written out
in NumPy."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from harness.google import google_rate, google_step

from bert.optimizers.adamw import AdamWeightDecay
from bert.optimizers.choose import make_optimizer
from bert.optimizers.lamb import LAMB
from bert.optimizers.rate import RateSchedule

NAMES = (
    "bert.embeddings.word_embeddings",
    "bert.encoder.layer_0.attention.self.query.kernel",
    "some.layer_norm.scale",
    "bert.encoder.layer_0.output.LayerNorm.gamma",
    "cls.squad.output_weights",
    "cls.predictions.output_bias",
    "bert.zero.kernel",
    "bert.still.kernel",
)
# `_do_use_weight_decay`; "bias" hits output_bias too.
DECAYS = {name: not re.search("LayerNorm|layer_norm|bias", name) for name in NAMES}
RATE, STEPS, WARMUP = 2e-3, 20, 5
# Small variables, and large ones, for which compiled code pays; of these a width that divides by 64
# and one not.
SHAPES = [(7, 3), (128, 259), (128, 2, 128)]


@pytest.mark.parametrize(
    ("kind", "in_graph"), [(AdamWeightDecay, False), (AdamWeightDecay, True), (LAMB, False)]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_twenty_steps_are_those_of_google(kind, shape, in_graph):
    """LAMB's are those of google-research/albert `lamb_optimizer.py`: the update of a variable that
    decays, times ||parameter|| / ||update||."""
    f, generator = np.float32, np.random.default_rng(5)
    params = {name: generator.normal(size=shape).astype(f) for name in NAMES}
    params["cls.squad.output_weights"] *= 10
    params["bert.zero.kernel"][:] = params["bert.still.kernel"][:] = 0  # norms of 0: no factor
    # Gradients of ordinary size, some near epsilon, and some exact zeros.
    scales = {name: 10.0 ** generator.integers(-6, 2) for name in NAMES[:-1]}
    scales["bert.still.kernel"] = 0
    variables = [keras.Variable(value, name=name) for name, value in params.items()]
    moments = {name: (np.zeros_like(v), np.zeros_like(v)) for name, v in params.items()}
    optimizer, before, factors = kind(RateSchedule(RATE, STEPS, WARMUP)), dict(params), []
    optimizer.build(variables)

    def apply(*gradients):
        optimizer.apply(gradients, variables)

    apply = tf.function(apply) if in_graph else apply
    for step in range(STEPS):
        gradients = {
            name: (generator.normal(size=shape) * scales[name]).astype(f) for name in NAMES
        }
        for gradient in gradients.values():
            gradient[0, 0] = 0
        apply(*map(tf.constant, gradients.values()))
        for variable, (name, gradient) in zip(variables, gradients.items(), strict=True):
            moved, *moments[name] = google_step(
                params[name], gradient, *moments[name], f(1), DECAYS[name]
            )
            update = params[name] - moved
            norms = np.linalg.norm(params[name]), np.linalg.norm(update)
            factors.append(
                norms[0] / norms[1] if kind is LAMB and DECAYS[name] and all(norms) else 1.0
            )
            params[name] = (
                params[name] - google_rate(step, RATE, STEPS, WARMUP) * f(factors[-1]) * update
            )
            # Two float32 roundings of each step, 6e-8 of the value, add up over 20 steps; LAMB's
            # norms add a few.
            tolerance = 4e-6 if kind is LAMB else 1e-6
            np.testing.assert_allclose(
                variable.numpy(), params[name], tolerance, tolerance / 10, err_msg=name
            )
            if step == 0:  # its rate is 0
                np.testing.assert_array_equal(variable.numpy(), before[name])
    # everything moved
    assert all(np.abs(params[name] - before[name]).max() > 1e-3 for name in NAMES[:-1])
    assert np.all(variables[-1].numpy() == 0)
    # it does something, both ways
    assert kind is AdamWeightDecay or (max(factors) > 1.5 and min(factors) < 0.5)
    assert int(optimizer.iterations) == STEPS


@pytest.mark.parametrize(
    ("train_steps", "warmup_steps"), [(100, 10), (100, 0), (7, 3), (8298, 829)]
)
def test_the_schedule_is_that_of_google_at_every_step(train_steps, warmup_steps):
    schedule = RateSchedule(5e-5, train_steps, warmup_steps)
    again = RateSchedule.from_config(schedule.get_config())
    last = range(train_steps - 1, train_steps + 2)
    for step in [*range(min(train_steps, 200)), *last, 2 * train_steps]:
        ours = float(schedule(tf.constant(step, tf.int64)))
        # A float32 rate: a few units of 6e-8; near the end 1 - step / N leaves fewer digits.
        expected = google_rate(step, 5e-5, train_steps, warmup_steps)
        assert ours == pytest.approx(float(expected), rel=1e-5, abs=5e-5 * 2e-7), step
        assert float(again(step)) == ours


@pytest.mark.parametrize(("name", "kind"), [("adamw", AdamWeightDecay), ("lamb", LAMB)])
def test_settings_name_the_optimizer_and_keras_can_rebuild_it(name, kind):
    optimizer = make_optimizer(name, RateSchedule(1e-4, train_steps=50, warmup_steps=5))
    assert type(optimizer) is kind
    assert float(optimizer.learning_rate) == 0  # before the first step
    other = kind(1e-3, weight_decay_rate=0.1, beta_1=0.8, beta_2=0.99, epsilon=1e-5, exclude=("x",))
    assert kind.from_config(other.get_config()).get_config() == other.get_config()


@pytest.mark.parametrize("shape", SHAPES[:2])
def test_values_read_before_an_update_stay(shape):
    """Although variables are updated in place: a checkpoint is written while training goes on."""
    variable, optimizer = keras.Variable(np.ones(shape), name="dense.kernel"), AdamWeightDecay(1e-3)
    optimizer.build([variable])
    read = [tf.convert_to_tensor(each) for each in (variable, *optimizer.variables[2:])]
    optimizer.apply([tf.ones(shape)])
    assert [set(tensor.numpy().ravel()) for tensor in read] == [{1}, {0}, {0}]
    assert np.all(variable.numpy() < 1)
