"""Packing: fewest padded tokens, balanced ranks, and the gradient of the unpacked batch."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from transformers import BertConfig

from bert.inputs import in_groups
from bert.model import Bert
from bert.packing import (
    GROUPS_OF_LAYOUT,
    LENGTH_MULTIPLE,
    NUM_LAYOUTS,
    ByLength,
    FixedGroups,
    Grouping,
    Layouts,
    in_one_group,
)
from distributed.feed import Feed
from distributed.gradient import batch_signature
from distributed.order import Order, balanced, dealt, divided, shares
from distributed.plan import PlanSettings, make_plan
from distributed.rows import Rows, ragged
from ringbert.errors import InputError
from ringbert.ragged import reordered
from tasks.batches import encoder_inputs, grouped, num_examples, prediction_batches, with_checked_ids
from tasks.classifier.examples import collate as collate_labelled
from tasks.classifier.loss import example_weights, label_loss
from tasks.padding import layouts_of, padding_of
from tasks.pretraining import examples as pretraining
from tasks.squad import program as squad

# float32: the sums of a group's rows are taken in another order (2e-7 measured); a lost row is 1e-1.
GRADIENT_TOLERANCE = 1e-5


def fewest_tokens(lengths: np.ndarray, num_groups: int) -> int:
    """By trying all cuts of the sorted rows."""
    rounded = np.sort(-(-lengths // LENGTH_MULTIPLE) * LENGTH_MULTIPLE)[::-1]
    n, best = len(rounded), 10**9
    for count in range(min(num_groups, n)):
        for cuts in itertools.combinations(range(1, n), count):
            best = min(best, sum((b - a) * rounded[a] for a, b in itertools.pairwise([0, *cuts, n])))
    return best


def test_groups_have_the_fewest_padded_tokens():
    chance = np.random.default_rng(0)
    for _ in range(200):
        lengths = chance.integers(1, 100, chance.integers(1, 11))
        num_groups = int(chance.integers(1, 6))
        order, groups = ByLength(num_groups)(lengths)
        assert len(groups.shapes) == num_groups
        assert groups.num_tokens == groups.widths.sum() == fewest_tokens(lengths, num_groups)
        assert sorted(order) == list(range(len(lengths)))
        assert len(groups.widths) == len(lengths)
        assert np.all(lengths[order] <= groups.widths)
        assert np.all(groups.widths % LENGTH_MULTIPLE == 0)


def test_parts_are_balanced_and_hold_each_row_once():
    chance = np.random.default_rng(1)
    for _ in range(100):
        num_parts = int(chance.integers(1, 6))
        lengths = chance.integers(5, 385, chance.integers(num_parts, 70))
        parts = balanced(lengths, num_parts)
        assert sorted(np.concatenate(parts)) == list(range(len(lengths)))
        totals = np.array([lengths[part].sum() for part in parts])
        assert min(map(len, parts)) > 0
        # Graham's bound: no part exceeds another by more than the row that it got last, the shortest of its own.
        assert totals.max() - totals.min() <= lengths[parts[int(totals.argmax())]].min()
        together = int(chance.integers(2, 9))
        units = np.add.reduceat(lengths, np.arange(0, len(lengths), together))
        parts = balanced(lengths, num_parts, np.arange(len(lengths)) // together)
        assert sorted(np.concatenate(parts)) == list(range(len(lengths)))
        owners = [{row // together for row in part} for part in parts]
        assert sum(map(len, owners)) == len(units)  # none is divided
        totals = np.array([lengths[part].sum() for part in parts])
        most = int(totals.argmax())
        assert totals.max() - totals.min() <= min(units[unit] for unit in owners[most])
    assert [part.tolist() for part in balanced(np.array([9, 9, 9]), 3)] == [[0], [1], [2]]
    assert [len(part) for part in balanced(np.array([7]), 3)] == [1, 0, 0]


def test_ranks_take_whole_blocks_where_they_have_enough_of_them():
    chance = np.random.default_rng(2)
    spread: dict[str, list[int]] = {"blocks": [], "rows": [], "neighbours": []}  # of 2 ranks' tokens
    for _ in range(50):
        lengths = chance.integers(20, 129, 256)
        for name, rows in (("blocks", 64), ("rows", 48)):  # 2 and 1.5 blocks of 16 for each
            numbers = (1000 + np.arange(rows) // 16 * 3) * 16 + np.arange(rows) % 16  # in the file
            numbers = np.roll(numbers, 5)  # a step that begins within a block
            parts = shares(lengths[:rows], numbers, 2, 16)
            assert sorted(np.concatenate(parts)) == list(range(rows))
            in_both = {numbers[row] // 16 for row in parts[0]} & {numbers[row] // 16 for row in parts[1]}
            assert bool(in_both) == (name == "rows")
            spread[name].append(np.ptp([lengths[part].sum() for part in parts]))
        spread["neighbours"].append(abs(lengths[:32].sum() - lengths[32:64].sum()))
    means = {name: np.mean(values) for name, values in spread.items()}
    assert means["rows"] < means["blocks"] / 3
    assert means["blocks"] < means["neighbours"] / 1.5


def examples(lengths) -> Rows:
    """Rows with the columns of all three tasks."""
    chance = np.random.default_rng(2)
    n = len(lengths)
    start = chance.integers(1, 8, n).astype(np.int32)
    places = [np.sort(chance.permutation(k)[: chance.integers(1, 6)]).astype(np.int32) for k in lengths]
    masked = [chance.integers(1, 100, len(place)).astype(np.int32) for place in places]
    columns = {
        "input_ids": ragged([chance.integers(1, 100, k).astype(np.int32) for k in lengths], pa.int32()),
        "question_tokens": np.full(n, 5, np.int32),
        "sentence_a_tokens": chance.integers(2, 8, n).astype(np.int32),
        "start_position": start,
        "end_position": start + 1,
        "label": chance.integers(0, 3, n).astype(np.int32),
        "masked_lm_positions": ragged(places, pa.int32()),
        "masked_lm_ids": ragged(masked, pa.int32()),
        "is_random_next": chance.integers(0, 2, n).astype(np.int8),
    }
    return Rows(pa.table(columns))


def test_a_row_is_the_same_wherever_it_stands():
    rows = examples([9, 40, 12, 33, 10])
    fields = rows.take(np.arange(5))
    moved, groups = grouped(fields, ByLength(3))
    inputs = encoder_inputs(moved, groups)
    order, _ = ByLength(3)(rows.lengths("input_ids"))
    for place, row in enumerate(order):
        alone = encoder_inputs(*grouped(rows.take(np.array([row]))))
        first, length = inputs["first_tokens"][place], rows.lengths("input_ids")[row]
        for name in ("input_ids", "token_type_ids", "position_ids", "example_ids"):
            np.testing.assert_array_equal(inputs[name][first : first + length], alone[name][0, :length], name)
    assert inputs["example_ids"].sum() == rows.lengths("input_ids").sum()
    unpacked = encoder_inputs(*grouped(fields))
    padded = [np.pad(ids, (0, 40 - len(ids))) for ids in np.split(*fields["input_ids"])[1:-1]]
    np.testing.assert_array_equal(unpacked["input_ids"], padded)
    np.testing.assert_array_equal(unpacked["first_tokens"], [0, 40, 80, 120, 160])


def test_reordered_moves_rows_of_every_kind():
    flat, offsets = np.arange(10), np.array([0, 3, 3, 4, 10])
    moved = reordered((flat, offsets), np.array([3, 0, 1]))
    np.testing.assert_array_equal(moved[0], [4, 5, 6, 7, 8, 9, 0, 1, 2])
    np.testing.assert_array_equal(moved[1], [0, 6, 9, 9])
    np.testing.assert_array_equal(reordered(np.array([5, 6, 7]), np.array([2, 0])), [7, 5])


LOSSES = {
    "span": (squad.collate, lambda model, batch: squad.span_loss(model(batch), batch)),
    "classifier": (collate_labelled, lambda model, batch: label_loss(model(batch), batch, None)),
    "pretraining": (
        lambda fields, grouping: pretraining.collate(fields, None, 1, grouping, most=lambda length: 5),
        lambda model, batch: tf.add_n(list(pretraining.losses(model(batch), batch).values())),
    ),
}


@pytest.mark.parametrize(
    ("head", "by_xla"),
    [("span", False), *(pytest.param(head, True, marks=pytest.mark.slow) for head in LOSSES)],  # XLA takes long
)
def test_the_gradient_is_the_unpacked_one(head, by_xla):
    """Of 13 examples in 1, 3 and 5 groups, the last one empty, and in layouts of 16 rows; losing one is seen."""
    chance = np.random.default_rng(3)
    rows = examples(chance.choice([9, 20, 40, 59], 13))
    layouts = Layouts([chance.integers(9, 64, 16) for _ in range(9)], 16, 64)
    collate, loss = LOSSES[head]
    config = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_labels=3,
                        intermediate_size=64, max_position_embeddings=64, hidden_dropout_prob=0.0,
                        attention_probs_dropout_prob=0.0)  # fmt: skip
    model = Bert(config, head, seed=3)
    functions: dict[Grouping, Callable] = {}

    def compute(batch):
        with tf.GradientTape() as tape:
            value = loss(model, batch)
        variables = [variable.value for variable in model.trainable_variables]
        return value, tape.gradient(value, variables, unconnected_gradients="zero")

    def gradient(num_examples: int, grouping: Grouping) -> tuple[float, np.ndarray]:
        batch = collate(rows.take(np.arange(num_examples)), grouping)
        if grouping is layouts:
            assert sum(rows for rows, _ in batch["groups"].pairs) == 16
            kind = {"jit_compile": by_xla}
        else:
            kind = {"input_signature": [batch_signature(batch)]}
        if grouping not in functions:
            functions[grouping] = tf.function(compute, autograph=False, **kind)
        value, parts = functions[grouping](batch)
        return float(value), np.concatenate([np.ravel(tf.convert_to_tensor(part)) for part in parts])

    value, expected = gradient(13, in_one_group)
    for grouping in (ByLength(3), ByLength(5), layouts):
        packed_value, packed = gradient(13, grouping)
        assert packed_value == pytest.approx(value, rel=1e-6)
        assert np.linalg.norm(packed - expected) <= GRADIENT_TOLERANCE * np.linalg.norm(expected)
    for grouping in (ByLength(3), layouts):
        _, found = gradient(12, grouping)
        assert np.linalg.norm(found - expected) > 100 * GRADIENT_TOLERANCE * np.linalg.norm(expected)


def test_weights_count_examples_and_masked_tokens_alone():
    rows, layouts = examples([9, 40, 12]), Layouts([], 5, 64)
    assert layouts(np.array([9, 40, 12]))[1] == FixedGroups(((5, 64),))
    fields = rows.take(np.arange(3))
    for grouping in (in_one_group, layouts):
        assert num_examples(squad.collate(fields, grouping)) == 3
        batch = pretraining.collate(fields, None, 1, grouping, most=lambda length: 5)
        assert pretraining.weights(batch) == {"mlm": float(len(fields["masked_lm_ids"][0])), "nsp": 3.0}
        weight_of_label = np.array([2.0, 3.0, 5.0], np.float32)
        batch = collate_labelled(fields, grouping)
        labels = fields["label"] if grouping is in_one_group else fields["label"][[1, 2, 0]]  # the longest first
        found = example_weights(batch, weight_of_label)
        np.testing.assert_array_equal(found, weight_of_label[labels])
    numbers = collate_labelled(fields | {"label": np.array([0.5, 1.0, 2.0], np.float32)}, layouts)
    loss = label_loss(tf.ones([5, 1]), {name: tf.constant(numbers[name]) for name in (
        "label", "example_ids", "first_tokens")}, None)  # fmt: skip
    assert float(loss) == 0.5**2 + 1.0**2


def test_a_layout_holds_each_batch_and_there_are_few():
    chance = np.random.default_rng(4)

    def draw(size: int) -> np.ndarray:
        return np.minimum(chance.gamma(4.0, 40.0, size).astype(int) + 8, 384)

    layouts = Layouts([draw(16 - number % 2) for number in range(300)], 16, 384)
    assert len(layouts) <= NUM_LAYOUTS
    assert max(len(layout.shapes) for layout in layouts._layouts) <= GROUPS_OF_LAYOUT
    real = computed = 0
    used = set()
    for size in [*[16] * 300, 15, 9, 1]:
        lengths = draw(size)
        order, groups = layouts(lengths)
        assert sorted(order) == list(range(size))
        assert len(groups.widths) == 16
        assert (lengths[order] <= groups.widths[:size]).all()
        cheaper = [other for other in layouts._layouts if other.num_tokens < groups.num_tokens]
        for other in cheaper:
            assert (np.sort(lengths)[::-1] > other.widths[:size]).any()
        used.add(groups)
        if size == 16:
            real, computed = real + lengths.sum(), computed + groups.num_tokens
    assert len(used) > 1
    assert 1 - real / computed < 0.3  # of batches padded to their longest 0.5
    assert layouts(np.full(16, 384))[1].num_tokens == 16 * 384  # the longest there may be


def test_xla_compiles_a_run_s_steps_at_most_four_times():
    """The steps of two epochs meet no more shapes than there are layouts."""
    rows = examples(np.random.default_rng(5).integers(9, 60, 96))
    plan = make_plan(PlanSettings(global_batch_size=16, num_train_steps=12, gradient_accumulation_steps=2), 96, 2)
    order, lengths = Order(96, 1), rows.lengths("input_ids")
    layouts, traced = layouts_of(plan, order, lengths.__getitem__, 64), []

    @tf.function(jit_compile=True, autograph=False)
    def step(batch):
        traced.append(batch["groups"])
        return tf.reduce_sum(batch["input_ids"]), [
            tf.reduce_sum(part) for part in in_groups(batch["input_ids"], batch)
        ]

    total = 0
    for number in range(12):
        rows_of_step = order.rows_at(number * 16, number * 16 + 16)
        for pieces in divided(lengths[rows_of_step], rows_of_step, 2, 2, order.block, is_dealt=True):
            for piece in pieces:
                total += int(step(squad.collate(rows.take(rows_of_step[piece]), layouts))[0])
    assert 1 < len(traced) <= NUM_LAYOUTS
    assert total == 2 * rows.column("input_ids")[0].sum()  # 12 steps of 16 are two epochs


@pytest.mark.parametrize(
    "collate",
    [squad.collate, collate_labelled, partial(pretraining.collate, masking=None, seed=1, most=lambda length: 5)],
)
def test_a_batch_without_rows_has_the_shapes_of_each_layout(collate):
    """XLA compiles for these batches before the first step, and for no others later."""
    lengths = np.random.default_rng(5).integers(9, 60, 96)
    rows = examples(lengths)
    layouts = Layouts([lengths[start : start + 8] for start in range(0, 96, 8)], 8, 64)
    feed = Feed(
        rows=rows, order=Order(96, 1), collate=collate, weights=squad.num_examples,
        collates_of_shapes=[partial(collate, grouping=layout) for layout in layouts.single()],
    )  # fmt: skip

    def kinds(batch) -> dict:
        return {
            name: batch[name] if name == "groups" else (batch[name].shape, batch[name].dtype) for name in batch
        }

    empty = [kinds(batch) for batch in feed.batches_of_shapes()]
    assert [batch["groups"] for batch in empty] == layouts._layouts
    for start in range(0, 96, 8):
        fields = rows.take(np.arange(start, start + 8))
        batch = kinds(collate(fields | {"row": fields["label"], "epoch": fields["label"]}, grouping=layouts))
        assert batch in empty


def test_dealt_parts_have_equal_numbers_of_rows_and_nearly_of_tokens():
    chance = np.random.default_rng(6)
    for _ in range(100):
        num_parts = int(chance.integers(1, 9))
        lengths = chance.integers(5, 385, chance.integers(num_parts, 70))
        parts = dealt(lengths, num_parts)
        assert sorted(np.concatenate(parts)) == list(range(len(lengths)))
        assert np.ptp([len(part) for part in parts]) <= 1
        if len(lengths) % (2 * num_parts) == 0:  # as many turns to as fro: at most one turn's spread apart
            assert np.ptp([lengths[part].sum() for part in parts]) <= np.ptp(lengths)
    assert [part.tolist() for part in dealt(np.array([4, 9, 5, 7]), 2)] == [[0, 1], [2, 3]]


def test_batches_of_prediction_have_at_most_the_tokens_of_their_rows_at_full_length():
    lengths = np.r_[np.full(400, 9), np.random.default_rng(3).integers(9, 61, 200)]  # 9 becomes 16
    rows = examples(lengths)
    batches = prediction_batches(lengths, 8, 60)
    assert sorted(np.concatenate(batches)) == list(range(600))
    assert max(squad.collate(rows.take(batch))["input_ids"].size for batch in batches) == 8 * 64


def test_the_padding_is_told_before_and_after():
    lengths = np.r_[np.full(8, 16), np.full(8, 64)]
    feed = Feed(rows=examples(lengths), order=Order(16, 1), collate=dict, weights=dict)
    plan = make_plan(PlanSettings(global_batch_size=16, num_train_steps=1), 16, 1)
    said = padding_of("auto", plan, replace(feed, lengths=lengths.__getitem__), is_compiled=False)
    # Real: 8 * 16 + 8 * 64 = 640 of 16 * 64 = 1024 tokens; in groups none is padding.
    assert said == "packing auto: 37.5% of the tokens are padding without packing, 0.0% with it"
    plan = make_plan(PlanSettings(global_batch_size=14, num_train_steps=1), 16, 2)
    told = padding_of("auto", plan, feed, is_compiled=True)
    parts = np.split(lengths[Order(16, 1).rows_at(0, 14)], 2)
    # What is compiled has a multiple of 64 tokens.
    packed, padded = (sum(-(-int(size) // 64) * 64 for size in sizes) for sizes in (
        [part.sum() for part in parts], [7 * part.max() for part in parts],
    ))  # fmt: skip
    real = sum(map(np.sum, parts))
    expected = (
        f"{1 - real / padded:.1%} of the tokens are padding without packing, {1 - real / packed:.1%} with it"
    )
    assert told == f"packing auto: {expected}"


def test_ids_that_the_model_has_no_entries_for_are_refused():
    rows = examples([9, 40, 12])
    fields = rows.take(np.arange(3)) | {"row": np.array([7, 2, 5]), "epoch": np.zeros(3, np.int64)}
    highest = int(fields["input_ids"][0].max())
    fits = {"vocab_size": highest + 1, "type_vocab_size": 2, "max_position_embeddings": 40}
    with_checked_ids(squad.collate, BertConfig(**fits))(fields, grouping=ByLength(2))
    for name, value in (("vocab_size", highest), ("type_vocab_size", 1), ("max_position_embeddings", 39)):
        collate = with_checked_ids(squad.collate, BertConfig(**fits | {name: value}))
        with pytest.raises(
            InputError, match=rf"rows 2 to 7 of the data: {value} among .* the model has {name} {value}:"
        ):
            collate(fields)


def test_padding_has_no_positions():
    fields = {"input_ids": (np.arange(97), np.array([0, 97])), "sentence_a_tokens": np.array([3])}
    assert encoder_inputs(fields, in_one_group(np.array([97]))[1])["position_ids"].max() == 96  # of 104 tokens
