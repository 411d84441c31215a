"""SPMD: trainings whose results must not depend on the number of ranks, and what one step promises.

Usage: ranks.py FOLDER TRAINING...
Writes FOLDER/ranks-N.npz for the parent to compare: start and end values and losses of each of these trainings
(TRAININGS below), and the gradient of one step with two loss terms.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import keras
import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
import toy
from transformers import BertConfig

from bert.model import Bert
from bert.optimizer import AdamWeightDecay, WarmupDecay
from bert.packing import ByLength
from distributed.checkpoint import Checkpoints
from distributed.collectives import open_collectives
from distributed.collectives.mpi import MpiCollectives
from distributed.devices import DeviceSettings
from distributed.feed import Feed
from distributed.gradient import dropout_key, gradient_function
from distributed.optimizer import AllreduceOptimizer, broadcast_variables
from distributed.order import BlockOrder, Order
from distributed.rows import Rows, ragged
from distributed.run import Run
from distributed.settings import LoopSettings
from distributed.train import Training, train
from distributed.world import World
from ringbert.errors import InputError
from tasks.batches import num_examples
from tasks.classifier.examples import collate as collate_labelled
from tasks.classifier.loss import example_weights, label_loss
from tasks.padding import layouts_of
from tasks.pretraining import examples as pretraining
from tasks.squad.program import collate, span_loss

BERT_BATCH, BERT_STEPS, BERT_RATE = 7, 20, 5e-5  # 7 rows are 4, 3 on two ranks; 3, 2, 2 on three


def losses(folder: Path) -> np.ndarray:
    return np.array([json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()])


# -- trainings ----------------------------------------------------------------------------------------------------


def bert_rows() -> Rows:
    """40 windows of 16 to 32 tokens."""
    chance = np.random.default_rng(1)
    lengths = chance.integers(16, 33, 40)
    ids = [chance.integers(1, 100, length).astype(np.int32) for length in lengths]
    start = chance.integers(6, 12, 40).astype(np.int32)
    columns = {
        "input_ids": ragged(ids, pa.int32()),
        "question_tokens": pa.array(np.full(40, 6, np.int32)),
        "start_position": pa.array(start),
        "end_position": pa.array(start + 3),
    }
    return Rows(pa.table(columns))


def labelled_rows() -> Rows:
    """40 examples of 8 to 32 tokens with one of 3 labels, unequally frequent."""
    chance = np.random.default_rng(2)
    ids = [chance.integers(1, 100, length).astype(np.int32) for length in chance.integers(8, 33, 40)]
    label = np.minimum(chance.integers(0, 6, 40), 2).astype(np.int32)
    halves = np.array([len(tokens) // 2 for tokens in ids], np.int32)
    return Rows(pa.table({"input_ids": ragged(ids, pa.int32()), "sentence_a_tokens": halves, "label": label}))


def masked_rows() -> Rows:
    """40 examples of which each has 1 to 9 masked tokens: ranks have unequal numbers of them."""
    chance = np.random.default_rng(3)
    ids = [chance.integers(1, 100, length).astype(np.int32) for length in chance.integers(10, 33, 40)]
    places = [np.sort(chance.permutation(len(tokens))[: chance.integers(1, 10)]) for tokens in ids]
    masked = [chance.integers(1, 100, len(place)) for place in places]
    columns = {
        "input_ids": ragged(ids, pa.int32()),
        "sentence_a_tokens": np.full(40, 5, np.int32),
        "is_random_next": chance.integers(0, 2, 40).astype(np.int8),
        "masked_lm_positions": ragged(places, pa.int32()),
        "masked_lm_ids": ragged(masked, pa.int32()),
    }
    return Rows(pa.table(columns))


def small_bert(head: str, **changes) -> Bert:
    config = BertConfig(vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=128, max_position_embeddings=32, hidden_dropout_prob=0.0,
                        attention_probs_dropout_prob=0.0, **changes)  # fmt: skip
    return Bert(config, head, seed=5)


def train_for_20_steps(
    world: World, collectives, folder: Path, model: Bert, rows: Rows, collate, weights, loss, *,
    terms: tuple[str, ...] = ("loss",), rate_factor: float = 1, lengths=None, order=None, xla="off",
) -> dict[str, np.ndarray]:  # fmt: skip
    """In float32; the first and last values, and the losses. `collate` has an argument `grouping` for `xla`."""
    plan = toy.plan_of(world.size, 40, learning_rate=BERT_RATE, global_batch_size=BERT_BATCH,
                       num_train_steps=BERT_STEPS, num_warmup_steps=2)  # fmt: skip
    optimizer = AllreduceOptimizer(
        AdamWeightDecay(WarmupDecay(plan.learning_rate * rate_factor, plan.steps, plan.warmup_steps)),
        model.trainable_variables,
        world,
        collectives,
        terms,
    )
    first = toy.flat(optimizer)
    run = Run(folder, is_writer=world.rank == 0)
    checkpoints = Checkpoints(folder / "checkpoints", world, lambda: lambda into: None)
    order = order or Order(len(rows), 5)
    layouts = layouts_of(plan, order, lengths, 32) if xla != "off" else None
    feed = Feed(rows=rows, order=order, collate=collate, weights=weights, lengths=lengths,
                collate_fixed=layouts and partial(collate, grouping=layouts),
                collates_of_shapes=[partial(collate, grouping=layout) for layout in layouts.single()]
                if layouts else ())  # fmt: skip
    training = Training(model=model, feed=feed, loss=loss, loss_terms=terms, settings={})
    train(LoopSettings(seed=5, log_steps=1, xla=xla), plan, training, optimizer, run, checkpoints)
    run.close()
    world.barrier()
    return {"first": first, "last": toy.flat(optimizer), "losses": losses(folder)}


def train_packed(world: World, collectives, folder: Path, xla: str = "off") -> dict[str, np.ndarray]:
    """The span training in groups of like length, its rows shared out by their tokens or, for XLA, dealt out."""
    model, rows = small_bert("span"), bert_rows()
    return train_for_20_steps(
        world, collectives, folder, model, rows, partial(collate, grouping=ByLength(3)),
        lambda batch: {"loss": float(num_examples(batch))},
        lambda batch, key: {"loss": span_loss(model(batch, dropout_key=key), batch)},
        lengths=partial(rows.lengths_at, "input_ids"), xla=xla,
    )  # fmt: skip


def train_classifier(world: World, collectives, folder: Path) -> dict[str, np.ndarray]:
    """The same of `tasks.classifier`, with class weights."""
    model, weight = small_bert("classifier", num_labels=3), np.array([3.0, 1.0, 0.25], np.float32)
    return train_for_20_steps(
        world, collectives, folder, model, labelled_rows(), collate_labelled,
        lambda batch: {"loss": float(example_weights(batch, weight).sum())},
        lambda batch, key: {"loss": label_loss(model(batch, dropout_key=key), batch, weight)},
    )  # fmt: skip


def train_pretraining(world: World, collectives, folder: Path) -> dict[str, np.ndarray]:
    """The same of `tasks.pretraining`: two terms with unequal weights on the ranks."""
    model, rows = small_bert("pretraining"), masked_rows()
    return train_for_20_steps(
        world, collectives, folder, model, rows,
        lambda fields: pretraining.collate(fields, None, 5), pretraining.weights,
        lambda batch, key: pretraining.losses(model(batch, dropout_key=key), batch),
        terms=("mlm", "nsp"), lengths=partial(rows.lengths_at, "input_ids"), order=BlockOrder(len(rows), 5, 2),
    )  # fmt: skip


def train_bert(world: World, collectives, folder: Path, fault: str = "") -> dict[str, np.ndarray]:
    """20 steps of a 2-layer BERT in float32 with `tasks.squad`'s batches and loss; its values and losses."""
    model = small_bert("span")
    batches_made = 0

    def make_batch(fields: dict) -> dict[str, np.ndarray]:
        nonlocal batches_made
        batches_made += 1
        batch = collate(fields)
        if fault == "row" and batches_made == BERT_STEPS // 2 and world.rank == world.size - 1:
            return {name: array[:-1] for name, array in batch.items()}
        return batch

    def count(batch: dict[str, np.ndarray]) -> dict[str, float]:
        return {"loss": 1.0 if fault == "means" else float(len(batch["input_ids"]))}

    def loss(batch: dict[str, tf.Tensor], key: tf.Tensor) -> dict[str, tf.Tensor]:
        loss_sum = span_loss(model(batch, dropout_key=key), batch)
        return {"loss": loss_sum / tf.cast(len_of(batch), tf.float32) if fault == "means" else loss_sum}

    def len_of(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        return tf.shape(batch["input_ids"])[0]

    return train_for_20_steps(
        world, collectives, folder, model, bert_rows(), make_batch, count, loss,
        rate_factor=1.001 if fault == "rate" else 1,
    )  # fmt: skip


def train_toy(world: World, collectives, folder: Path, accumulation: int = 1) -> dict[str, np.ndarray]:
    optimizer, _ = toy.train(world, collectives, folder, accumulation=accumulation)
    world.barrier()
    return {"last": toy.flat(optimizer), "losses": losses(folder)}


# -- two loss terms -----------------------------------------------------------------------------------------------


def gradient_of_two_terms(world: World, collectives, accumulation: int) -> np.ndarray:
    """The summed flat buffer of one step with two terms of unlike weights, one of them zero on some ranks."""
    model = toy.make_model(seed=3)
    optimizer = toy.make_optimizer(model, world, collectives, loss_terms=("squared", "absolute"))
    plan = toy.plan_of(world.size, global_batch_size=13, num_train_steps=1,
                       gradient_accumulation_steps=accumulation)  # fmt: skip

    def weigh(batch: dict[str, np.ndarray]) -> dict[str, float]:
        return {"squared": float(len(batch["row"])), "absolute": float(np.sum(batch["row"] < 3))}

    def loss(batch: dict[str, tf.Tensor], key: tf.Tensor) -> dict[str, tf.Tensor]:
        error = toy.errors(model, batch)
        chosen = tf.cast(batch["row"] < 3, tf.float64)
        return {"squared": tf.reduce_sum(error**2), "absolute": tf.reduce_sum(tf.abs(error) * chosen)}

    indices = np.arange(13)
    pieces = plan.micro_batches(world.rank)
    batches = [toy.collate(toy.rows().take(indices[piece])) for piece in pieces]
    local = [weigh(batch) for batch in batches]
    totals, _ = optimizer.reduce_weights({term: sum(w[term] for w in local) for term in local[0]})
    assert totals == {"squared": 13.0, "absolute": 3.0}, totals
    gradient = gradient_function(optimizer, loss, batches[0])
    inverse = optimizer.inverse_weights(totals)
    parts = [gradient(batch, inverse, dropout_key(0, 0, n, world.rank)) for n, batch in enumerate(batches)]
    gradients, sums = optimizer.unflatten(
        optimizer.all_reduce(tf.nest.map_structure(lambda *each: tf.add_n(each), *parts))
    )
    return np.concatenate([*(g.numpy().reshape(-1) for g in gradients), sums.numpy()])


def gradient_of_two_terms_on_paper() -> np.ndarray:
    """The same from its definition: mean of the squares plus mean of the three absolute errors."""
    model = toy.make_model(seed=3)
    batch = toy.collate(toy.rows().take(np.arange(13)))
    with tf.GradientTape() as tape:
        error = toy.errors(model, {name: tf.constant(array) for name, array in batch.items()})
        squared, absolute = tf.reduce_sum(error**2), tf.reduce_sum(tf.abs(error)[:3])
        total = squared / 13 + absolute / 3
    gradients = tape.gradient(total, [variable.value for variable in model.trainable_variables])
    return np.concatenate([*(g.numpy().reshape(-1) for g in gradients), [squared.numpy(), absolute.numpy()]])


# -- one step -----------------------------------------------------------------------------------------------------


def check_replicas(world: World, collectives) -> None:
    optimizer = toy.make_optimizer(toy.make_model(seed=world.rank), world, collectives)
    of_first = world.broadcast(toy.flat(optimizer))
    if world.size > 1:
        assert_refused(optimizer)
    optimizer.broadcast_variables()
    digests = world.all_gather(optimizer.replica_digest())
    assert len(set(digests)) == 1, "replicas differ after the broadcast"
    assert toy.flat(optimizer).tobytes() == of_first.tobytes(), "the broadcast values are not rank 0's"
    optimizer.check_replicas()
    if world.size > 1:
        last = optimizer.trainable[-1]
        if world.rank == world.size - 1:  # by one unit in the last place
            last.assign(np.nextafter(last.numpy(), np.inf))
        assert_refused(optimizer)
    broadcast_variables([], collectives, world)


def assert_refused(optimizer: AllreduceOptimizer) -> None:
    with pytest.raises(InputError, match="the trainable variables after 0 steps"):
        optimizer.check_replicas()


def check_broadcast_of_state(world: World, collectives) -> None:
    optimizer = toy.make_optimizer(toy.make_model(seed=0), world, collectives)
    for number, variable in enumerate(optimizer.state().values()):
        variable.assign(np.full(variable.shape, 10 * number + world.rank, variable.dtype))
    optimizer.broadcast_variables()
    for number, (name, variable) in enumerate(optimizer.state().items()):
        assert np.all(variable.numpy() == 10 * number), f"optimizer variable {name} is not rank 0's"
    assert optimizer.steps_done == 0


def check_not_finite(world: World, collectives) -> None:
    """A NaN or an infinity on the last rank alone changes nothing on any."""
    for bad in (np.nan, np.inf, -np.inf):
        optimizer = toy.make_optimizer(toy.make_model(seed=0), world, collectives)
        good = toy.buffer(optimizer, np.ones(len(toy.flat(optimizer))), 1.0)
        result = optimizer.update(optimizer.all_reduce(tf.constant(good)), {"loss": 1.0})
        assert result.applied, "a finite gradient is skipped"
        before = [variable.numpy() for variable in (*optimizer.trainable, *optimizer.state().values())]
        spoiled = good.copy()
        if world.rank == world.size - 1:
            spoiled[3] = bad
        result = optimizer.update(optimizer.all_reduce(tf.constant(spoiled)), {"loss": 1.0})
        assert not result.applied, f"a gradient with {bad} is applied"
        for old, new in zip(before, (*optimizer.trainable, *optimizer.state().values()), strict=True):
            assert old.tobytes() == new.numpy().tobytes(), f"a skipped step with {bad} changed {new.path}"


def check_not_finite_in_training(world: World, collectives, folder: Path) -> None:
    made = 0

    def spoil(fields: dict) -> dict[str, np.ndarray]:
        nonlocal made
        made += 1
        batch = toy.collate(fields)
        if made == 3 and world.rank == world.size - 1:
            batch["y"] = batch["y"] * np.nan
        return batch

    optimizer, state = toy.train(world, collectives, folder, steps=6, collate=spoil)
    assert state.step == 6
    assert optimizer.steps_done == 5, f"{optimizer.steps_done} updates in 6 steps of which one is not finite"
    assert np.all(np.isfinite(toy.flat(optimizer)))
    assert len(set(world.all_gather(optimizer.replica_digest()))) == 1
    if world.rank == 0:
        assert np.isfinite(losses(folder)).tolist() == [True, True, False, True, True, True]

    def spoil_all(fields: dict) -> dict[str, np.ndarray]:
        return toy.collate(fields) | {"y": fields["y"] * np.nan}

    with pytest.raises(InputError, match="no finite gradient in 20 steps: lower --learning_rate"):
        toy.train(world, collectives, folder / "all", steps=50, collate=spoil_all)


def check_loss_scale(world: World, collectives) -> None:
    """A scaled gradient moves the weights as the plain one does, to the bit; one that overflows on the last rank
    halves the scale on every rank, and a checkpoint keeps it."""
    values = np.random.default_rng(4).standard_normal(
        len(toy.flat(toy.make_optimizer(toy.make_model(0), world, collectives)))
    )
    moved = {}
    for scales_loss in (False, True):
        optimizer = toy.make_optimizer(toy.make_model(seed=0), world, collectives, scales_loss=scales_loss)
        for expected in (2.0**15, 2.0**15, 2.0**14):
            scale = optimizer.loss_scale
            assert scale == (expected if scales_loss else 1.0), scale
            assert optimizer.inverse_weights({"loss": 4.0}).numpy().tolist() == [scale / 4]
            mine = toy.buffer(optimizer, values * scale, 7.0) / world.size
            if expected == 2.0**15 and optimizer.steps_done == 1 and world.rank == world.size - 1:
                mine[2] = np.inf
            result = optimizer.update(optimizer.all_reduce(tf.constant(mine)), {"loss": 2.0})
            np.testing.assert_allclose(result.losses["loss"], 3.5, rtol=1e-12)
        assert optimizer.steps_done == 2
        moved[scales_loss] = toy.flat(optimizer)
        kept = optimizer.state()
        assert ("loss_scale" in kept) is scales_loss
        if scales_loss:
            assert kept["loss_scale"].numpy().tolist() == [2.0**14, 1.0]
    assert moved[True].tobytes() == moved[False].tobytes()


def check_clip(world: World, collectives) -> None:
    for norm, clip in ((5.0, 1.0), (0.5, 1.0), (1.0, 1.0), (300.0, 2.5), (5.0, None)):
        model, inner = toy.make_model(seed=0), keras.optimizers.SGD(1.0)
        optimizer = toy.make_optimizer(model, world, collectives, optimizer=inner, clip_norm=clip)
        before = toy.flat(optimizer)
        values = np.random.default_rng(2).standard_normal(len(before))
        values *= norm / np.linalg.norm(values)
        mine = toy.buffer(optimizer, values, 7.0) / world.size  # the sum is clipped, not each rank's part
        result = optimizer.update(optimizer.all_reduce(tf.constant(mine)), {"loss": 2.0})
        expected = values
        if clip is not None:
            (clipped,), told_norm = tf.clip_by_global_norm([tf.constant(values)], clip)
            expected = clipped.numpy()
            np.testing.assert_allclose(result.gradient_norm, told_norm, rtol=1e-12)
        np.testing.assert_allclose(before - toy.flat(optimizer), expected, rtol=1e-9, atol=1e-12,
                                   err_msg=f"norm {norm} clipped to {clip}")  # fmt: skip
        np.testing.assert_allclose(result.losses["loss"], 3.5, rtol=1e-12)
        assert result.learning_rate == 1.0


def check_compression(world: World, collectives) -> None:
    """As if each rank were a machine: gradients are rounded on the way, the losses' sums are not."""
    if world.size == 1:
        return
    model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(50)])
    across = MpiCollectives(world.comm, world.rank, world.size)
    generator, found = np.random.default_rng(world.rank), {}
    gradients = [tf.constant(generator.normal(size=v.shape), tf.float32) for v in model.trainable_variables]
    for compresses in (False, True):
        optimizer = toy.make_optimizer(model, world, across, compresses=compresses)
        flat = optimizer.flatten(gradients, {"loss": tf.constant(1 / (3 + world.rank))})
        parts, sums = optimizer.unflatten(tf.identity(optimizer.all_reduce(flat)))
        found[compresses] = np.concatenate([part.numpy().ravel() for part in parts]), sums.numpy()
    (plain, plain_sums), (rounded, sums) = found[False], found[True]
    assert sums.tobytes() == plain_sums.tobytes(), "the losses were rounded"
    assert not np.array_equal(rounded, plain), "the gradients were not rounded"
    assert np.linalg.norm(rounded - plain) < 2.0**-7 * np.linalg.norm(plain)


def check_weights(world: World, collectives) -> None:
    optimizer = toy.make_optimizer(toy.make_model(seed=0), world, collectives, loss_terms=("a", "b"))
    size = world.size
    # More than float32 can count, and a fraction.
    totals, requests = optimizer.reduce_weights({"a": 2.0**25 + 1, "b": 0.125 * world.rank + 0.5})
    assert totals == {"a": size * (2.0**25 + 1), "b": 0.125 * size * (size - 1) / 2 + 0.5 * size}, totals
    assert requests == []
    only_last = world.rank == size - 1
    totals, requests = optimizer.reduce_weights({"a": 1.0, "b": float(only_last)}, (only_last, False))
    assert totals["b"] == 1.0, "a term that one rank alone has"
    assert requests == [True, False], "one rank's request did not reach this one"
    for zero in (0.0, -0.0, np.nan):
        with pytest.raises(ValueError, match="loss term 'b'"):
            optimizer.reduce_weights({"a": 1.0, "b": zero})


TRAININGS: dict[str, Callable[..., dict[str, np.ndarray]]] = {
    "toy": train_toy,
    "toy again": train_toy,
    "toy, accumulation": partial(train_toy, accumulation=2),
    "bert": train_bert,
    "packed": train_packed,
    "pretraining": train_pretraining,
    "classifier": train_classifier,
    "compiled": partial(train_packed, xla="on"),
    "fastest": partial(train_packed, xla="auto"),
    # Faults that the comparison must see.
    "row": partial(train_bert, fault="row"),
    "rate": partial(train_bert, fault="rate"),
    "means": partial(train_bert, fault="means"),
}


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    with World.join(DeviceSettings(device="cpu")) as world:
        collectives = open_collectives(world)
        for check in (
            check_replicas,
            check_broadcast_of_state,
            check_not_finite,
            check_loss_scale,
            check_clip,
            check_compression,
            check_weights,
        ):
            check(world, collectives)
        here = folder / f"on-{world.size}"
        check_not_finite_in_training(world, collectives, here / "spoiled")

        arrays: dict[str, np.ndarray] = {"on paper": gradient_of_two_terms_on_paper()}
        for accumulation in (1, 2):
            arrays[f"two terms, {accumulation}"] = gradient_of_two_terms(world, collectives, accumulation)
        for name in names:
            values = TRAININGS[name](world, collectives, here / name)
            arrays |= {f"{name}: {part}": array for part, array in values.items()}
        if world.rank == 0:
            np.savez(folder / f"ranks-{world.size}.npz", **arrays)
            print(json.dumps({"size": world.size, "trainings": names}), flush=True)


if __name__ == "__main__":
    main()
