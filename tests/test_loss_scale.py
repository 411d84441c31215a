"""float16 training: the loss scale adapts itself, and a small BERT learns as it does in float32."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from transformers import BertConfig

from bert.model import Bert
from bert.optimizer import AdamWeightDecay
from distributed.collectives import open_collectives
from distributed.gradient import dropout_key, gradient_function
from distributed.optimizer import AllreduceOptimizer
from distributed.step_result import FIRST_LOSS_SCALE, STEPS_TO_GROW, next_loss_scale
from distributed.world import World
from tasks.job import POLICIES
from tasks.squad.program import span_loss

ROWS, LENGTH, STEPS = 8, 16, 30


def test_the_scale_halves_at_once_and_doubles_after_many_finite_steps():
    """As torch.amp.GradScaler and keras.optimizers.LossScaleOptimizer: 2,000 steps, factor 2."""

    def after(*state: float, applied: bool = True) -> list[float]:
        return next_loss_scale(tf.constant(state), tf.constant(applied)).numpy().tolist()

    assert after(8.0, 0.0) == [8.0, 1.0]
    assert after(8.0, STEPS_TO_GROW - 2) == [8.0, STEPS_TO_GROW - 1]
    assert after(8.0, STEPS_TO_GROW - 1) == [16.0, 0.0]
    assert after(16.0, 1.0, applied=False) == [8.0, 0.0]
    assert after(1.0, 5.0, applied=False) == [1.0, 0.0]  # never below 1


def losses_of(precision: str, huge: float = 1.0) -> tuple[list[float], AllreduceOptimizer]:
    """The losses of some steps of a small BERT on one batch; its last layer's weights are multiplied by `huge`."""
    generator = np.random.default_rng(0)
    whole = np.zeros((ROWS, LENGTH), np.int32)
    batch = {
        "input_ids": generator.integers(0, 50, (ROWS, LENGTH), dtype=np.int32),
        "token_type_ids": whole,
        "position_ids": whole + np.arange(LENGTH, dtype=np.int32),
        "example_ids": whole + 1,
        "start_position": generator.integers(0, LENGTH, ROWS, dtype=np.int32),
        "end_position": generator.integers(0, LENGTH, ROWS, dtype=np.int32),
    }
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(POLICIES[precision])
    try:
        config = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                            intermediate_size=64, max_position_embeddings=LENGTH)  # fmt: skip
        model = Bert(config, "span", seed=1)
    finally:
        keras.config.set_dtype_policy(before)
    head = model.named_tensors()["cls/squad/output_weights"]
    head.assign(head.numpy() * huge)
    world = World()
    optimizer = AllreduceOptimizer(
        AdamWeightDecay(1e-3), model.trainable_variables, world, open_collectives(world, "local"),
        scales_loss=precision == "fp16",
    )  # fmt: skip

    def loss(batch, key):
        return {"loss": span_loss(model(batch, dropout_key=key), batch)}

    gradient, found = gradient_function(optimizer, loss, batch), []
    for step in range(STEPS):
        flat = gradient(batch, optimizer.inverse_weights({"loss": ROWS}), dropout_key(0, step, 0, 0))
        found.append(optimizer.update(optimizer.all_reduce(flat), {"loss": ROWS}).losses["loss"])
    return found, optimizer


@pytest.mark.slow
def test_float16_learns_what_float32_learns():
    exact, _ = losses_of("fp32")
    half, optimizer = losses_of("fp16")
    assert optimizer.steps_done == STEPS
    assert optimizer.loss_scale == FIRST_LOSS_SCALE
    assert exact[-1] < 0.6 * exact[0]
    # Products are rounded to 2^-11; dropout's masks are the same, as they depend on key and place alone.
    assert half == pytest.approx(exact, rel=0.03)


def test_an_overflow_lowers_the_scale_until_gradients_are_finite_again():
    """Gradients of float16 end at 65,504: with a head a thousand times as large the first scales are too large."""
    found, optimizer = losses_of("fp16", huge=2000.0)
    assert optimizer.loss_scale < FIRST_LOSS_SCALE
    assert 0 < optimizer.steps_done < STEPS
    assert np.isfinite(found).all()
    assert found[-1] < found[0]


def test_the_state_starts_again_as_it_began():
    """For the next training of a process, of `--seeds` or `--sweep`."""
    variable = keras.Variable(np.ones(3, np.float32), name="kernel")
    world = World()
    optimizer = AllreduceOptimizer(
        AdamWeightDecay(1e-3), [variable], world, open_collectives(world, "local"), scales_loss=True
    )
    first = {name: value.numpy().copy() for name, value in optimizer.state().items()}
    gradient = tf.constant([1.0, -2.0, 3.0])
    for step_gradient in (gradient, gradient, gradient * np.nan):
        flat = optimizer.gathered([step_gradient], {"loss": tf.constant(1.0)})
        optimizer.update(optimizer.all_reduce(flat), {"loss": 1.0}).numbers.numpy()
    changed = {name for name, value in optimizer.state().items() if np.any(value.numpy() != first[name])}
    assert changed == first.keys()  # moments, number of steps, loss scale
    optimizer.reset()
    for name, value in optimizer.state().items():
        np.testing.assert_array_equal(value.numpy(), first[name])
