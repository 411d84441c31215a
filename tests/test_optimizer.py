"""AdamWeightDecay and its schedule against google-research/bert `optimization.py`, written out in numpy."""

import gc
import re
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert.optimizer import COMPILED_FROM, LAMB, AdamWeightDecay, WarmupDecay, change_schedule, make_optimizer
from bert.settings import OptimizerSettings

# Names of variables that decay and of those that do not; "bias" hits output_bias, as in Google's list.
DECAYS = {
    "bert.embeddings.word_embeddings": True,
    "bert.encoder.layer_0.attention.self.query.kernel": True,
    "cls.squad.output_weights": True,
    "bert.encoder.layer_0.output.dense.bias": False,
    "bert.encoder.layer_0.output.LayerNorm.gamma": False,
    "bert.encoder.layer_0.output.LayerNorm.beta": False,
    "cls.predictions.output_bias": False,
    "some.layer_norm.scale": False,
}
RATE, STEPS, WARMUP = 2e-3, 20, 5
# By the graph's own operations, and by XLA: a width that does not divide by 64 and one that does.
SHAPES = [(7, 3), (COMPILED_FROM // 256, 259), (COMPILED_FROM // 256, 2, 128)]


def google_rate(step: int, rate: float, train_steps: int, warmup_steps: int) -> np.float32:
    """`create_optimizer`: polynomial decay of power 1 to 0 without cycles, warmup in front of it."""
    global_step = np.float32(min(step, train_steps))
    decayed = np.float32(rate) * (np.float32(1) - global_step / np.float32(train_steps))
    if warmup_steps and step < warmup_steps:
        return np.float32(rate) * (np.float32(step) / np.float32(warmup_steps))
    return decayed


def google_step(param, gradient, m, v, rate, decays: bool):
    """`AdamWeightDecayOptimizer.apply_gradients`, in float32."""
    f = np.float32
    next_m = f(0.9) * m + f(1.0 - 0.9) * gradient
    next_v = f(0.999) * v + f(1.0 - 0.999) * np.square(gradient)
    update = next_m / (np.sqrt(next_v) + f(1e-6))
    if decays:
        update += f(0.01) * param
    return param - rate * update, next_m, next_v


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shape", SHAPES[:2])
def test_twenty_steps_are_those_of_google(shape, compiled):
    generator = np.random.default_rng(5)
    params = {name: generator.normal(size=shape).astype(np.float32) for name in DECAYS}
    # One gradient of ordinary size, one near epsilon, and some exact zeros.
    scales = {name: 10.0 ** generator.integers(-6, 2) for name in DECAYS}
    variables = [keras.Variable(value, name=name) for name, value in params.items()]
    optimizer = AdamWeightDecay(WarmupDecay(RATE, STEPS, WARMUP))
    optimizer.build(variables)
    moments = {name: (np.zeros(shape, np.float32), np.zeros(shape, np.float32)) for name in DECAYS}
    apply = (
        tf.function(lambda *gradients: optimizer.apply(gradients, variables))
        if compiled
        else (lambda *gradients: optimizer.apply(gradients, variables))
    )
    before = {name: value.copy() for name, value in params.items()}
    for step in range(STEPS):
        rate = google_rate(step, RATE, STEPS, WARMUP)
        gradients = {name: (generator.normal(size=shape) * scales[name]).astype(np.float32) for name in DECAYS}
        for gradient in gradients.values():
            gradient[0, 0] = 0
        apply(*(tf.constant(gradient) for gradient in gradients.values()))
        for variable, (name, gradient) in zip(variables, gradients.items(), strict=True):
            params[name], *moments[name] = google_step(params[name], gradient, *moments[name], rate, DECAYS[name])
            # Two float32 roundings of each step, 6e-8 of the value, add up over 20 steps.
            np.testing.assert_allclose(variable.numpy(), params[name], rtol=1e-6, atol=1e-7, err_msg=name)
            if step == 0:  # its rate is 0
                np.testing.assert_array_equal(variable.numpy(), before[name])
    for index, name in enumerate(DECAYS):
        # Where gradients of either sign cancel, what they were rounded by stays.
        np.testing.assert_allclose(
            optimizer.m[index].numpy(), moments[name][0], rtol=2e-6, atol=2e-7 * scales[name]
        )
        np.testing.assert_allclose(optimizer.v[index].numpy(), moments[name][1], rtol=2e-6, atol=1e-20)
        assert np.abs(variables[index].numpy() - before[name]).max() > 1e-3  # everything moved
    assert int(optimizer.iterations) == STEPS


def test_the_list_of_what_decays_is_that_of_google():
    """`_do_use_weight_decay`: a regular-expression search of the name."""
    optimizer = AdamWeightDecay()
    for name, expected in DECAYS.items():
        assert optimizer.decays(keras.Variable(np.zeros(1), name=name)) is expected, name
        found = any(re.search(r, name.replace(".", "/")) for r in ("LayerNorm", "layer_norm", "bias"))
        assert found is not expected


def test_without_gradient_only_decay_moves_a_variable():
    variables = [keras.Variable([2.0], name=name) for name in ("dense.kernel", "dense.bias")]
    optimizer = AdamWeightDecay(0.5)
    optimizer.build(variables)
    optimizer.apply([tf.zeros(1), tf.zeros(1)], variables)
    assert [float(v.numpy()[0]) for v in variables] == pytest.approx([2 - 0.5 * 0.01 * 2, 2.0], rel=1e-7)


@pytest.mark.parametrize(("train_steps", "warmup_steps"), [(100, 10), (100, 0), (7, 3), (8298, 829)])
def test_the_schedule_is_that_of_google_at_every_step(train_steps, warmup_steps):
    schedule = WarmupDecay(5e-5, train_steps, warmup_steps)
    for step in [*range(min(train_steps, 1000)), train_steps - 1, train_steps, train_steps + 1, 2 * train_steps]:
        ours = float(schedule(tf.constant(step, tf.int64)))
        # A float32 rate: a few units of 6e-8; near the end 1 - step / N leaves fewer digits.
        expected = google_rate(step, 5e-5, train_steps, warmup_steps)
        assert ours == pytest.approx(float(expected), rel=1e-5, abs=5e-5 * 2e-7), step


def test_the_rate_drops_at_the_end_of_the_warmup():
    schedule = WarmupDecay(1.0, 100, 10)
    assert float(schedule(0)) == 0
    assert float(schedule(9)) == pytest.approx(0.9)
    assert float(schedule(10)) == pytest.approx(1 - 10 / 100)
    assert float(schedule(99)) == pytest.approx(0.01)
    assert float(schedule(100)) == float(schedule(10**6)) == 0


def test_a_new_schedule_reaches_compiled_code():
    """After a rank's death, `--elastic_batch shrink` changes steps and rate; nothing is traced again."""
    optimizer = make_optimizer(OptimizerSettings(), 1e-4, train_steps=50, warmup_steps=5)
    optimizer.build([keras.Variable([1.0])])
    rate = tf.function(lambda: optimizer.learning_rate)
    optimizer.iterations.assign(40)
    assert float(rate()) == pytest.approx(1e-4 * (1 - 40 / 50))
    change_schedule(optimizer, 3e-4, 100, 50)
    assert float(rate()) == pytest.approx(3e-4 * 40 / 50)
    assert rate.experimental_get_tracing_count() == 1


@pytest.mark.parametrize(("name", "kind"), [("adamw", AdamWeightDecay), ("lamb", LAMB)])
def test_settings_name_the_optimizer(name, kind):
    optimizer = make_optimizer(OptimizerSettings(optimizer=name), 1e-4, train_steps=50, warmup_steps=5)
    assert type(optimizer) is kind
    optimizer.iterations.assign(20)
    assert float(optimizer.learning_rate) == pytest.approx(1e-4 * (1 - 20 / 50))


def test_both_can_be_rebuilt_from_their_configuration():
    schedule = WarmupDecay(1e-4, 50, 5)
    again = WarmupDecay.from_config(schedule.get_config())
    assert [float(again(step)) for step in range(51)] == [float(schedule(step)) for step in range(51)]
    optimizer = AdamWeightDecay(1e-3, weight_decay_rate=0.1, beta_1=0.8, beta_2=0.99, epsilon=1e-5, exclude=("x",))
    config = AdamWeightDecay.from_config(optimizer.get_config()).get_config()
    assert config == optimizer.get_config()


@pytest.mark.parametrize(
    ("shape", "optimizer_class"),
    [(SHAPES[0], AdamWeightDecay), (SHAPES[1], AdamWeightDecay), (SHAPES[1], LAMB), (SHAPES[2], LAMB)],
)
def test_a_scale_multiplies_the_gradient(shape, optimizer_class):
    """To the bit, where the scale is a power of two, and also for the next step, without a scale."""
    value = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    states = []
    for scale in (None, 0.25):
        variable = keras.Variable(value, name="dense.kernel")
        optimizer = optimizer_class(1e-3)
        optimizer.build([variable])
        for scaled in (True, False):
            gradient = tf.constant(value[::-1] * (1 if scale is None or not scaled else 1 / scale))
            if scale is not None and scaled:
                optimizer.apply_scaled([gradient], tf.constant(scale))
            else:
                optimizer.apply([gradient])
        states.append([variable.numpy(), optimizer.m[0].numpy(), optimizer.v[0].numpy()])
    np.testing.assert_array_equal(states[0], states[1])


def test_an_optimizer_that_nobody_holds_leaves_memory():
    """Several runs in one process (--seeds) do not keep each other's moments."""
    variable = keras.Variable(np.ones(SHAPES[1]), name="dense.kernel")
    optimizer = AdamWeightDecay(1e-3)
    optimizer.build([variable])
    optimizer.apply([tf.ones(SHAPES[1])])
    held = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert held() is None


@pytest.mark.parametrize("decays", [False, True])
def test_one_loop_reads_everything_once_and_writes_all_results(decays):
    shape, number = SHAPES[1], tf.constant(0.5)
    size = f"f32[{shape[0]},{shape[1]}]"
    compiled = AdamWeightDecay()._compiled(shape, tf.float32, decays)
    handles = [tf.Variable(tf.ones(shape)) for _ in range(3)]
    arguments = [*(variable.handle for variable in handles), tf.ones(shape), number, [(number,) * 5] * 3]
    code = compiled.experimental_get_compiler_ir(*arguments)(stage="optimized_hlo")
    loops = [line for line in code.split("ENTRY")[1].splitlines() if "fusion(" in line and size in line]
    assert len(loops) == 1
    assert loops[0].split("fusion(")[0].count(size) == 3  # parameter, m and v


@pytest.mark.parametrize("shape", SHAPES)
def test_values_read_before_an_update_stay(shape):
    """Although variables are updated in place."""
    variable = keras.Variable(np.ones(shape), name="dense.kernel")
    optimizer = AdamWeightDecay(1e-3)
    optimizer.build([variable])
    before, moment = tf.convert_to_tensor(variable), tf.convert_to_tensor(optimizer.m[0])
    optimizer.apply([tf.ones(shape)])
    assert np.all(before.numpy() == 1)
    assert np.all(moment.numpy() == 0)
    assert np.all(variable.numpy() < 1)
    assert np.all(optimizer.m[0].numpy() > 0)


@pytest.mark.parametrize("shape", SHAPES)
def test_lamb_is_that_of_albert(shape):
    """google-research/albert `lamb_optimizer.py`: AdamWeightDecay's update times ||parameter|| / ||update||."""
    f, generator = np.float32, np.random.default_rng(7)
    names = [*DECAYS, "bert.zero.kernel", "bert.still.kernel"]
    decays = DECAYS | {"bert.zero.kernel": True, "bert.still.kernel": True}
    params = {name: generator.normal(size=shape).astype(f) for name in names}
    params["cls.squad.output_weights"] *= 10
    params["bert.zero.kernel"][:] = params["bert.still.kernel"][:] = 0  # norms of 0: no factor
    variables = [keras.Variable(value, name=name) for name, value in params.items()]
    optimizer = LAMB(WarmupDecay(RATE, STEPS, WARMUP))
    optimizer.build(variables)
    moments = {name: (np.zeros(shape, f), np.zeros(shape, f)) for name in names}
    factors = []
    for step in range(WARMUP + 3):
        gradients = {name: generator.normal(size=shape).astype(f) for name in names}
        gradients["bert.still.kernel"][:] = 0
        optimizer.apply([tf.constant(gradient) for gradient in gradients.values()], variables)
        for variable, (name, gradient) in zip(variables, gradients.items(), strict=True):
            moved, *moments[name] = google_step(params[name], gradient, *moments[name], f(1), decays[name])
            update = params[name] - moved
            norms = np.linalg.norm(params[name]), np.linalg.norm(update)
            ratio = norms[0] / norms[1] if decays[name] and all(norms) else 1.0
            factors.append(ratio)
            params[name] = params[name] - google_rate(step, RATE, STEPS, WARMUP) * f(ratio) * update
            # As above; the norms of 21 values add a few roundings.
            np.testing.assert_allclose(variable.numpy(), params[name], rtol=4e-6, atol=4e-7, err_msg=name)
    assert max(factors) > 1.5  # the factor does something, both ways
    assert min(factors) < 0.5
    assert np.all(variables[-1].numpy() == 0)
