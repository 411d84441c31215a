"""The step on several ranks, with a toy in float64: its numbers are those of one rank, or of
paper."""

import itertools
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from harness import toy
from harness.program_runs import metrics_in

from distributed.clock import StepClock
from distributed.collectives import Collectives
from distributed.gradient import put_all
from distributed.optimizer import check_replicas, reduce_weights
from distributed.step import SplitStep
from distributed.world import World
from ringbase.errors import InputError

ALL = pytest.mark.ranks(1, 2, 3)


def train(world, collectives, folder, **options):
    """The trained values and the losses; a loss for each step."""
    optimizer, _ = toy.train(world, collectives, folder, **options)
    world.barrier()
    return toy.flat(optimizer), np.array([line["loss"] for line in metrics_in(folder)])


def batch_of(numbers):
    """The batch of these rows."""
    return toy.collate(toy.rows().take(numbers))


def norm_of_gradient(tape, loss, model):
    variables = [variable.value for variable in model.trainable_variables]
    return tf.linalg.global_norm(tape.gradient(loss, variables))


@ALL
@pytest.mark.parametrize("accumulation", [1, 2])
def test_training_is_one_ranks_and_has_the_same_bits_again(
    accumulation, world, collectives, folder
):
    """float64: 20 steps add a few roundings of 1e-16 each."""
    options = {"gradient_accumulation_steps": accumulation}
    values, losses = train(world, collectives, folder / "a", **options)
    expected, expected_losses = world.on_first(
        lambda: train(World(), Collectives(), folder / "one")
    )
    assert len(losses) == toy.STEPS
    assert losses[-5:].mean() < losses[:5].mean()
    np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-12)
    again, losses_again = train(world, collectives, folder / "b", **options)
    assert again.tobytes() == values.tobytes()
    assert losses_again.tobytes() == losses.tobytes()


@ALL
@pytest.mark.parametrize("accumulation", [1, 2])
def test_each_loss_term_is_averaged_over_its_own_weight(accumulation, world, collectives):
    """13 rows, of which 3 have the second term: none on some ranks. Compared with the
    definition."""
    model, terms = toy.make_model(seed=3), ("squared", "absolute")
    optimizer = toy.make_optimizer(model, world, collectives)

    def loss(batch, key):
        error = toy.errors(model, batch)
        chosen = tf.cast(batch["row"] < 3, tf.float64)
        absolute = tf.reduce_sum(tf.abs(error) * chosen)
        return {"squared": tf.reduce_sum(error**2), "absolute": absolute}

    def weights(batch):
        return {"squared": float(len(batch["row"])), "absolute": float((batch["row"] < 3).sum())}

    whole = batch_of(np.arange(13))
    with tf.GradientTape() as tape:
        error = toy.errors(model, whole)
        means = tf.reduce_mean(error**2), tf.reduce_mean(tf.abs(error)[:3])
        total = means[0] + means[1]
    norm = norm_of_gradient(tape, total, model)

    parts = np.array_split(np.arange(13), world.size * accumulation)[world.rank :: world.size]
    batches = [batch_of(part) for part in parts]
    step = toy.make_step(optimizer, loss, weights, terms)
    result = step.take(batches, 0, (), StepClock(1))[0].read()
    found = [*(result[term] for term in terms), result["gradient_norm"]]
    np.testing.assert_allclose(found, [*means, norm], rtol=1e-12)


@pytest.mark.ranks(2)
def test_one_step_that_is_not_finite_is_left_out_and_twenty_end_the_training(
    world, collectives, folder, capsys
):
    made = 0

    def spoiled(fields, spoils):
        nonlocal made
        made += 1
        return toy.collate(fields) | {"y": fields["y"] * (np.nan if spoils(made) else 1.0)}

    third = partial(spoiled, spoils=lambda number: number == 3 and world.rank == world.size - 1)
    optimizer, state = toy.train(world, collectives, folder / "one", third, num_train_steps=6)
    assert (state.step, optimizer.optimizer.iterations.numpy()) == (6, 5)
    assert np.all(np.isfinite(toy.flat(optimizer)))
    assert capsys.readouterr().err.count("the gradient is not finite") == (world.rank == 0)
    always = partial(spoiled, spoils=bool)
    with pytest.raises(InputError, match="no finite gradient"):
        toy.train(world, collectives, folder / "all", always, num_train_steps=50)


@ALL
def test_a_mean_is_over_the_rows_with_targets_and_a_step_without_one_changes_nothing(
    world, collectives
):
    """Rows from 13 on have a target. Of the second step's rows some ranks have none."""
    model = toy.make_model(seed=3)
    optimizer = toy.make_optimizer(model, world, collectives)

    def loss(batch, key):
        has_target = tf.cast(batch["row"] >= 13, tf.float64)
        return {"loss": tf.reduce_sum(toy.errors(model, batch) ** 2 * has_target)}

    def weights(batch):
        return {"loss": float((batch["row"] >= 13).sum())}

    step = toy.make_step(optimizer, loss, weights)

    def take(numbers):
        own_rows = np.array_split(numbers, world.size)[world.rank]
        result, _ = step.take([batch_of(own_rows)], 0, (), StepClock(1))
        return result.read()

    before = toy.flat(optimizer)
    result = take(np.arange(13))
    assert (result["applied"], np.isnan(result["loss"])) == (0, True)
    assert toy.flat(optimizer).tobytes() == before.tobytes()
    assert optimizer.optimizer.iterations.numpy() == 0
    with_targets = batch_of(np.arange(13, 17))
    with tf.GradientTape() as tape:
        expected = tf.reduce_mean(toy.errors(model, with_targets) ** 2)
    norm = norm_of_gradient(tape, expected, model)
    result = take(np.arange(5, 17))
    assert result["applied"] == 1
    found = result["loss"], result["gradient_norm"]
    np.testing.assert_allclose(found, [expected, norm], rtol=1e-12)


@pytest.mark.ranks(1, 3)
def test_steps_without_targets_are_counted_and_twenty_end_the_training(
    world, collectives, folder, capsys
):
    steps = 0

    def third_without(batch):
        nonlocal steps
        steps += 1
        return {"loss": 0.0 if steps == 3 else float(len(batch["y"]))}

    def none(batch):
        return {"loss": 0.0}

    optimizer, state = toy.train(
        world, collectives, folder / "one", weights=third_without, num_train_steps=6
    )
    assert (state.step, optimizer.optimizer.iterations.numpy()) == (6, 5)
    shown = capsys.readouterr().err
    assert shown.count("step 3: no row has a target") == (world.rank == 0)
    assert shown.count("skipped steps: 1") == (world.rank == 0)
    for steps, skipped in ((3, 3), (50, 20)):
        options = {"weights": none, "num_train_steps": steps}
        with pytest.raises(InputError, match=f"no row has a target for loss in {skipped} steps"):
            toy.train(world, collectives, folder / f"{steps}", **options)


@ALL
def test_weights_and_requests_of_the_ranks_are_summed(world):
    size, is_last = world.size, world.rank == world.size - 1
    # More than float32 can count, and none on some ranks.
    totals = reduce_weights(world, {"a": 2.0**25 + 1, "b": 0.5 * is_last}, (is_last, False))
    assert totals == ({"a": size * (2.0**25 + 1), "b": 0.5}, [True, False])
    assert reduce_weights(world, {"a": 1.0, "b": 0.0}) == ({"a": size, "b": 0.0}, [])
    for wrong in (-1.0, np.nan):
        with pytest.raises(ValueError, match="loss term 'b'"):
            reduce_weights(world, {"a": 1.0, "b": wrong})


@pytest.mark.ranks(2, 3)
def test_all_ranks_start_with_the_first_ones_values_or_not_at_all(world, collectives):
    optimizer = toy.make_optimizer(toy.make_model(seed=world.rank), world, collectives)
    state = optimizer.state().values()
    of_first = world.broadcast(toy.flat(optimizer))
    for number, variable in enumerate(state):
        variable.assign(np.full(variable.shape, 10 * number + world.rank, variable.dtype))
    with pytest.raises(InputError, match="the trainable variables"):
        check_replicas(optimizer)
    SplitStep(None, optimizer).synchronize()
    assert toy.flat(optimizer).tobytes() == of_first.tobytes()
    assert all(np.all(variable.numpy() == 10 * number) for number, variable in enumerate(state))
    if world.rank == world.size - 1:
        last = optimizer.trainable[-1]
        last.assign(np.nextafter(last.numpy(), np.inf))  # by one unit in the last place
    with pytest.raises(InputError, match="the trainable variables"):
        check_replicas(optimizer)


@ALL
def test_a_rank_that_computes_other_bits_is_named(world, collectives):
    model = toy.make_model(seed=1)
    optimizer = toy.make_optimizer(model, world, collectives)

    def loss(batch, key):
        return {"loss": tf.reduce_sum(toy.errors(model, batch) ** 2)}

    def micro_batches(rank):
        return [batch_of(np.arange(rank, rank + 5))]

    step = toy.make_step(optimizer, loss, toy.weights)
    step.compare_ranks(micro_batches)
    sound, calls = step.gradient, itertools.count()

    class Unsound:
        """One bit is wrong where this rank computes its own gradient, not the next one's."""

        terms = sound.terms

        def sums(self, batches, factors, keys, sink):
            own = Collectives().sink()
            terms = sound.sums(batches, factors, keys, own)
            first, *others = own.totals()
            if world.rank == world.size - 1 and next(calls) == 0:
                first = np.nextafter(first.numpy(), np.inf)
            put_all([first, *others], sink)
            return terms

        def alone(self):
            return self

    unsound = SplitStep(Unsound(), optimizer)
    last, before = world.size - 1, max(world.size - 2, 0)
    with pytest.raises(InputError, match=f"rank {before} on .* and rank {last} on .* different"):
        unsound.compare_ranks(micro_batches)
