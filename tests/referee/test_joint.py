"""The loss that joins all rows, against its formula and TensorFlow's automatic gradient."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from distributed.clock import StepClock
from distributed.collectives import Collectives
from distributed.gradient import by_xla, dropout_key, traced_once
from distributed.joint import InBatchLoss, JointGradient, NestedLoss, Passes, Vectors
from distributed.optimizer import AllreduceOptimizer
from distributed.step import SplitStep
from distributed.world import World

WIDTH, ROWS = 6, 9


def vectors_of_rows(seed=0):
    """Rows with no, one or two hard negatives. Row 4 repeats the anchor of row 1, row 5 its
    positive, and a negative of row 2 is the positive of row 3."""
    chance = np.random.default_rng(seed)
    counts = [2 + row % 3 for row in range(ROWS)]
    row = np.repeat(np.arange(ROWS), counts)
    slot = np.concatenate([np.arange(count) for count in counts])
    digest = np.arange(len(row)) + 100
    at = {(r, s): place for place, (r, s) in enumerate(zip(row, slot, strict=True))}
    for repeated, original in (((4, 0), (1, 0)), ((5, 1), (1, 1)), ((2, 2), (3, 1))):
        digest[at[repeated]] = digest[at[original]]
    values = chance.normal(size=(len(row), WIDTH))
    for place in range(len(row)):  # equal texts have equal vectors
        values[place] = values[np.flatnonzero(digest == digest[place])[0]]
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    anchor, positive = (digest[[at[r, s] for r in row]] for s in (0, 1))
    return Vectors(values.astype(np.float32), row, slot, digest, anchor, positive)


def rows_of(texts):
    """Of each row the places of its texts by their slots."""
    rows = {}
    for place, (row, slot) in enumerate(zip(texts.row, texts.slot, strict=True)):
        rows.setdefault(row, {})[slot] = place
    return rows


def is_negative(values, texts, row, place, both_ways, margin=None):
    """For the anchor of a row, a text of another place; its product with the anchor is at most that
    of the positive minus the margin, and both ways that of its own anchor, if it is a positive."""
    rows = rows_of(texts)
    own, other = rows[row], rows[texts.row[place]]
    same = {texts.digest[own[0]], texts.digest[own[1]]}
    is_positive = texts.slot[place] == 1
    stands_by_same = is_positive and texts.anchor[other[0]] == texts.anchor[own[0]]
    if place == own[1] or texts.digest[place] in same or stands_by_same:
        return False
    limits = [np.inf]
    if margin is not None:
        pairs = [own, other] if both_ways and is_positive else [own]
        limits = [values[pair[0]] @ values[pair[1]] - margin for pair in pairs]
    return values[own[0]] @ values[place] <= min(limits)


def formula(values, texts, temperature, both_ways, margin=None):
    """Pair by pair, in float64."""
    rows, numbers = rows_of(texts), values.numpy()
    product = lambda a, c: tf.reduce_sum(values[a] * values[c]) / temperature  # noqa: E731
    negative = lambda row, place: is_negative(numbers, texts, row, place, both_ways, margin)  # noqa: E731
    losses, back = [], []
    for row, own in rows.items():
        right = product(own[0], own[1])
        candidates = [place for place in range(len(texts.row)) if texts.slot[place] >= 1]
        wrong = [product(own[0], c) for c in candidates if negative(row, c)]
        losses.append(tf.reduce_logsumexp(tf.stack([right, *wrong])) - right)
        others = [each[0] for name, each in rows.items() if name != row]
        wrong = [product(a, own[1]) for a in others if negative(texts.row[a], own[1])]
        back.append(tf.reduce_logsumexp(tf.stack([right, *wrong])) - right)
    if both_ways:
        return (tf.add_n(losses) + tf.add_n(back)) / 2
    return tf.add_n(losses)


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize(("num_labels", "margin"), [(0, None), (4, None), (0, 0.1), (0, -0.3)])
def test_loss_and_gradient_are_those_of_the_formula(num_labels, margin, both_ways):
    """Positives of rows with the same label are no negatives of each other's anchors; nor, with a
    margin, are texts above it, whose number is known."""
    own = vectors_of_rows()
    if num_labels:
        own = own._replace(anchor=own.row % num_labels)
    values = tf.constant(own.values, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(values)
        expected = formula(values, own, 0.3, both_ways, margin)
    gradient, (loss, *left_out) = InBatchLoss(0.3, both_ways, margin).gradient(own, World())
    assert loss == pytest.approx(float(expected), rel=1e-6)
    if margin is not None:
        numbers = []
        for least in (None, margin):
            negatives = (
                is_negative(own.values, own, row, place, both_ways, least)
                for row in range(ROWS)
                for place in np.flatnonzero(own.slot)
            )
            numbers.append(sum(negatives))
        assert left_out == [numbers[0] - numbers[1]]
        assert left_out[0] > 5
    expected_gradient = tf.convert_to_tensor(tape.gradient(expected, values)).numpy()
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("normalizes", [False, True])
def test_the_loss_of_the_first_numbers_is_the_sum_of_the_formula(normalizes):
    """Of 6 numbers, and of the first 4 and 2, by TensorFlow's gradient through the unit vectors."""
    own = vectors_of_rows()
    values = tf.constant(own.values, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(values)
        expected = formula(values, own, 0.3, both_ways=True)
        for size in (4, 2):
            part = values[:, :size]
            if normalizes:
                part = part / tf.norm(part, axis=1, keepdims=True)
            expected += formula(part, own, 0.3, both_ways=True)
    nested = NestedLoss(InBatchLoss(0.3, both_ways=True), (6, 4, 2), normalizes)
    gradient, loss = nested.gradient(own, World())
    assert loss == pytest.approx(float(expected), rel=1e-6)
    expected_gradient = tf.convert_to_tensor(tape.gradient(expected, values)).numpy()
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-5)


class Ranks:
    """As many worlds as there are parts, whose gathers are answered one after the other."""

    def __init__(self, parts):
        self.parts, self.size, self.sums = parts, len(parts), None

    def all_gather(self, value):
        return self.parts if isinstance(value, Vectors) else self.sums


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("margin", [None, -0.2])
def test_parts_are_slices_of_the_whole_and_own_negatives_alone_are_not(margin, both_ways):
    whole, loss = vectors_of_rows(), InBatchLoss(0.1, both_ways, margin)
    expected, total = loss.gradient(whole, World())
    part_of_row = np.array([0, 0, 1, 1, 1, 2, 0, 2, 1])[whole.row]
    places = [np.flatnonzero(part_of_row == part) for part in range(3)]
    parts = [whole.chosen(at) for at in places]
    ranks, sums = Ranks(parts), []

    class First(Exception):
        pass

    class Asks(Ranks):
        def all_gather(self, value):
            if isinstance(value, Vectors):
                return self.parts
            sums.append(value)
            raise First

    for part in parts:
        with pytest.raises(First):
            loss.gradient(part, Asks(parts))
    ranks.sums = sums
    gradients, losses = zip(*(loss.gradient(part, ranks) for part in parts), strict=True)
    assert sum(losses) == pytest.approx(total, rel=1e-6)
    found = np.zeros_like(expected)
    alone = np.zeros_like(expected)
    for at, part, gradient in zip(places, parts, gradients, strict=True):
        found[at] = gradient
        alone[at] = loss.gradient(part, World())[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    difference = np.linalg.norm(alone - expected) / np.linalg.norm(expected)
    assert difference > 1e-2  # each rank's own negatives only


@pytest.mark.parametrize("num_pieces", [1, 3])
def test_the_gradient_is_that_of_one_pass_with_the_same_dropout(num_pieces):
    """One pass over all micro-batches, each with its own mask: the second pass that JointGradient
    makes must draw the masks of the first."""
    seed, whole, joint = 5, vectors_of_rows(), InBatchLoss(0.3)
    table = keras.Variable(np.eye(WIDTH) + 0.1, dtype="float32")
    world, collectives = World(), Collectives()
    optimizer = AllreduceOptimizer(keras.optimizers.SGD(1.0), [table], world, collectives)
    rows_of_piece = np.array_split(np.arange(ROWS), num_pieces)
    pieces = [np.flatnonzero(np.isin(whole.row, rows)) for rows in rows_of_piece]
    batches = [whole.chosen(piece)._asdict() for piece in pieces]

    def vectors(batch, key):
        hidden = tf.matmul(batch["values"], table.value)
        dropped = tf.nn.experimental.stateless_dropout(hidden, 0.5, seed=key, rng_alg="philox")
        return tf.math.l2_normalize(dropped, -1, 1e-6)

    def texts_of(batch):
        columns = [batch[name] for name in Vectors._fields[1:]]
        return columns, np.ones(len(batch["row"]), bool)

    def gradient_of_one_pass(step_number):
        with tf.GradientTape() as tape:
            tape.watch(table.value)
            parts = [
                vectors(batch, dropout_key(seed, step_number, piece, 0))
                for piece, batch in enumerate(batches)
            ]
            values = tf.cast(tf.concat(parts, 0), tf.float64)
            loss = formula(values, whole, joint.temperature, both_ways=False) / ROWS
        gradient = tf.convert_to_tensor(tape.gradient(loss, table.value)).numpy()
        return gradient / max(1.0, np.linalg.norm(gradient))  # clipped

    expected, with_other_masks = gradient_of_one_pass(0), gradient_of_one_pass(1)
    before = table.numpy()
    weights = lambda batch: {"loss": float((batch["slot"] == 0).sum())}  # noqa: E731
    passes = Passes(vectors, [table], traced_once)
    gradient = JointGradient(joint, passes, texts_of, weights, world)
    SplitStep(gradient, optimizer, seed=seed).take(batches, 0, [], StepClock(ROWS))
    found = before - table.numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert np.linalg.norm(found - with_other_masks) > 1e-2 * np.linalg.norm(expected)


@pytest.mark.parametrize("num_pieces", [1, 3])
def test_what_a_check_computes_depends_on_a_ranks_own_rows_and_is_compiled_before(num_pieces):
    """Two ranks compute the same rows among others' rows. In the middle of a run all ranks would
    wait for a compilation, on a GPU for minutes."""
    traced, whole = [], vectors_of_rows()
    table = keras.Variable(np.eye(WIDTH) + 0.1, dtype="float32")
    optimizer = AllreduceOptimizer(keras.optimizers.SGD(1.0), [table], World(), Collectives())

    def vectors(batch, key):
        traced.append(key)
        return tf.math.l2_normalize(tf.matmul(batch["values"], table.value), -1)

    def texts_of(batch):
        return [batch[name] for name in Vectors._fields[1:]], np.ones(len(batch["row"]), bool)

    class Others(World):
        """Ranks with other rows."""

        def all_gather(self, value):
            raise AssertionError("a check asks other ranks for their rows")

    def step_of(world):
        passes = Passes(vectors, [table], by_xla)
        weights = lambda batch: {"loss": float(ROWS)}  # noqa: E731
        return SplitStep(JointGradient(InBatchLoss(), passes, texts_of, weights, world), optimizer)

    batch, step = whole._asdict(), step_of(World())
    step.compile(batch, num_pieces, compares=True)
    num_traced = len(traced)
    step.compare_ranks(lambda rank: [batch] * num_pieces)
    step.take([batch] * num_pieces, 0, [], StepClock(ROWS))
    assert len(traced) == num_traced > 0

    own, sink = step_of(Others()).gradient.alone(), Collectives().sink()
    own.sums([batch] * num_pieces, tf.ones([1]), step.keys(0, 0, num_pieces), sink)
    gradient, _ = sink.totals()
    assert np.linalg.norm(gradient) > 0.1
