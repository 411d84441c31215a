"""The step on several ranks, with a toy in float64: its numbers are those of one rank, or of paper."""

import json
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from harness import toy

from distributed.collectives import Collectives
from distributed.collectives.mpi import MpiCollectives
from distributed.gradient import TrainingStep
from distributed.world import World
from ringbase.errors import InputError

ALL = pytest.mark.ranks(1, 2, 3)


def train(world, collectives, folder: Path, **options) -> tuple[np.ndarray, np.ndarray]:
    """The trained values and the losses; a loss for each step."""
    optimizer, _ = toy.train(world, collectives, folder, **options)
    world.barrier()
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return toy.flat(optimizer), np.array([line["loss"] for line in lines])


@cache
def of_one_rank() -> tuple[np.ndarray, np.ndarray]:
    return train(World(), Collectives(), Path(tempfile.mkdtemp()))


@ALL
@pytest.mark.parametrize("accumulation", [1, 2])
def test_training_is_one_ranks_and_has_the_same_bits_again(accumulation, world, collectives, folder):
    """float64: 20 steps add a few roundings of 1e-16 each."""
    values, losses = train(world, collectives, folder / "a", accumulation=accumulation)
    expected, expected_losses = world.broadcast(of_one_rank() if world.rank == 0 else None)
    assert len(losses) == toy.STEPS
    assert losses[-5:].mean() < losses[:5].mean()
    np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-12)
    again, losses_again = train(world, collectives, folder / "b", accumulation=accumulation)
    assert again.tobytes() == values.tobytes()
    assert losses_again.tobytes() == losses.tobytes()


@ALL
@pytest.mark.parametrize("accumulation", [1, 2])
def test_each_loss_term_is_averaged_over_its_own_weight(accumulation, world, collectives):
    """13 rows, of which 3 have the second term: none on some ranks. Compared with the definition."""
    model = toy.make_model(seed=3)
    optimizer = toy.make_optimizer(model, world, collectives, loss_terms=("squared", "absolute"))

    def loss(batch, key):
        error = toy.errors(model, batch)
        chosen = tf.cast(batch["row"] < 3, tf.float64)
        return {"squared": tf.reduce_sum(error**2), "absolute": tf.reduce_sum(tf.abs(error) * chosen)}

    parts = np.array_split(np.arange(13), world.size * accumulation)[world.rank :: world.size]
    batches = [toy.collate(toy.rows().take(part)) for part in parts]

    def weights(batch):
        return {"squared": float(len(batch["row"])), "absolute": float((batch["row"] < 3).sum())}

    step = TrainingStep(loss, weights, optimizer)
    totals, _ = optimizer.reduce_weights(step.own_weights(batches))
    assert totals == {"squared": 13.0, "absolute": 3.0}
    own = step.gradient(batches, optimizer.inverse_weights(totals), step.keys(0, len(batches)))
    *gradients, sums = optimizer.all_reduce(own)

    whole = {name: tf.constant(array) for name, array in toy.collate(toy.rows().take(np.arange(13))).items()}
    with tf.GradientTape() as tape:
        error = toy.errors(model, whole)
        terms = tf.reduce_sum(error**2), tf.reduce_sum(tf.abs(error)[:3])
        total = terms[0] / 13 + terms[1] / 3
    expected = tape.gradient(total, [variable.value for variable in model.trainable_variables])
    for ours, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(sums.numpy(), terms, rtol=1e-12)


def summed_update(optimizer, world, values: np.ndarray, loss: float, spoils: float | None = None):
    """An update by a gradient of which each rank has an equal part; the last rank can spoil its own."""
    mine = values / world.size
    if spoils is not None and world.rank == world.size - 1:
        mine[3] = spoils
    ends = np.cumsum([variable.numpy().size for variable in optimizer.trainable])
    parts = zip(np.split(mine, ends[:-1]), optimizer.trainable, strict=True)
    gradients = [tf.constant(part.reshape(variable.shape)) for part, variable in parts]
    own = optimizer.listed(gradients, {"loss": tf.constant(loss / world.size, tf.float64)})
    return optimizer.update(optimizer.all_reduce(own), {"loss": 2.0}).read()


@ALL
def test_a_gradient_that_is_not_finite_on_one_rank_changes_nothing_on_any(world, collectives):
    optimizer = toy.make_optimizer(toy.make_model(seed=0), world, collectives)
    values = np.ones(len(toy.flat(optimizer)))
    assert summed_update(optimizer, world, values, 1.0)["applied"]
    before = [variable.numpy() for variable in (*optimizer.trainable, *optimizer.state().values())]
    for bad in (np.nan, np.inf, -np.inf):
        assert not summed_update(optimizer, world, values, 1.0, spoils=bad)["applied"]
        for old, new in zip(before, (*optimizer.trainable, *optimizer.state().values()), strict=True):
            assert old.tobytes() == new.numpy().tobytes(), f"a skipped step with {bad} changed {new.path}"


@pytest.mark.ranks(2)
def test_training_goes_on_after_one_such_step_and_ends_after_twenty(world, collectives, folder):
    made = 0

    def spoil_third(fields):
        nonlocal made
        made += 1
        factor = np.nan if made == 3 and world.rank == world.size - 1 else 1.0
        return toy.collate(fields) | {"y": fields["y"] * factor}

    optimizer, state = toy.train(world, collectives, folder / "one", steps=6, collate=spoil_third)
    assert (state.step, optimizer.optimizer.iterations.numpy()) == (6, 5)
    assert np.all(np.isfinite(toy.flat(optimizer)))

    def spoil_all(fields):
        return toy.collate(fields) | {"y": fields["y"] * np.nan}

    with pytest.raises(InputError, match="no finite gradient"):
        toy.train(world, collectives, folder / "all", steps=50, collate=spoil_all)


@ALL
def test_a_loss_scale_changes_no_bit_and_halves_on_every_rank(world, collectives):
    moved = {}
    for scales_loss in (False, True):
        optimizer = toy.make_optimizer(toy.make_model(seed=0), world, collectives, scales_loss=scales_loss)
        values = np.random.default_rng(4).standard_normal(len(toy.flat(optimizer)))
        for number, expected in enumerate((2.0**15, 2.0**15, 2.0**14)):
            scale = expected if scales_loss else 1.0
            assert optimizer.inverse_weights({"loss": 4.0}).numpy().tolist() == [scale / 4]
            summed_update(optimizer, world, values * scale, 7.0, spoils=np.inf if number == 1 else None)
        assert optimizer.optimizer.iterations.numpy() == 2
        moved[scales_loss] = toy.flat(optimizer)
    assert moved[True].tobytes() == moved[False].tobytes()
    assert optimizer.state()["loss_scale"].numpy().tolist() == [2.0**14, 1.0]


@pytest.mark.ranks(2)
def test_between_machines_gradients_are_rounded_and_loss_sums_are_not(world):
    """As if each rank were a machine."""
    model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(50)])
    across, sums = MpiCollectives(replace(world, node=world.rank, num_nodes=world.size)), {}
    gradients = [tf.random.stateless_normal(v.shape, (world.rank, 0)) for v in model.trainable_variables]
    for compression in ("none", "bf16"):
        optimizer = toy.make_optimizer(model, world, across, compression=compression)
        own = optimizer.listed(gradients, {"loss": tf.constant(1 / (3 + world.rank))})
        sums[compression] = [total.numpy().copy() for total in optimizer.all_reduce(own)]
    (plain, *_, plain_loss), (rounded, *_, loss) = sums["none"], sums["bf16"]
    assert loss.tobytes() == plain_loss.tobytes()
    assert 0 < np.linalg.norm(rounded - plain) < 2.0**-7 * np.linalg.norm(plain)


@ALL
def test_weights_and_requests_of_the_ranks_are_summed(world, collectives):
    optimizer = toy.make_optimizer(toy.make_model(seed=0), world, collectives, loss_terms=("a", "b"))
    size, is_last = world.size, world.rank == world.size - 1
    # More than float32 can count, and a fraction.
    totals, requests = optimizer.reduce_weights({"a": 2.0**25 + 1, "b": 0.125 * world.rank + 0.5})
    assert totals == {"a": size * (2.0**25 + 1), "b": 0.125 * size * (size - 1) / 2 + 0.5 * size}
    assert requests == []
    totals, requests = optimizer.reduce_weights({"a": 1.0, "b": float(is_last)}, (is_last, False))
    assert (totals["b"], requests) == (1.0, [True, False])
    for zero in (0.0, -0.0, np.nan):
        with pytest.raises(ValueError, match="loss term 'b'"):
            optimizer.reduce_weights({"a": 1.0, "b": zero})


@pytest.mark.ranks(2, 3)
def test_all_ranks_start_with_the_first_ones_values_or_not_at_all(world, collectives):
    optimizer = toy.make_optimizer(toy.make_model(seed=world.rank), world, collectives)
    state = optimizer.state().values()
    of_first = world.broadcast(toy.flat(optimizer))
    for number, variable in enumerate(state):
        variable.assign(np.full(variable.shape, 10 * number + world.rank, variable.dtype))
    with pytest.raises(InputError, match="the trainable variables"):
        optimizer.check_replicas()
    optimizer.broadcast_variables()
    optimizer.check_replicas()
    assert toy.flat(optimizer).tobytes() == of_first.tobytes()
    assert all(np.all(variable.numpy() == 10 * number) for number, variable in enumerate(state))
    if world.rank == world.size - 1:
        last = optimizer.trainable[-1]
        last.assign(np.nextafter(last.numpy(), np.inf))  # by one unit in the last place
    with pytest.raises(InputError, match="the trainable variables"):
        optimizer.check_replicas()
