"""Each call of hvd against NumPy, on all ranks and on sets of them, eagerly and in a tf.function,
with the gradients that Horovod defines. Every rank knows the values of all ranks."""

import os

os.environ["KERAS_BACKEND"] = "tensorflow"
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from harness.lean import keras, tf

import ringbert.horovod as hvd

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
ROWS = 12  # which 1, 2, 3 and 4 ranks divide
FLOATS, INTEGERS = ("float16", "float32", "float64"), ("uint8", "int32", "int64")
checks = 0


class Case(NamedTuple):
    """A call of one tensor, what it returns, and the gradient of sum(weights * result)."""

    call: Callable
    value: Any
    expected: Any
    weights: Any = None
    gradient: Any = None
    tolerance: float = 1e-6


def own_of(rank, dtype=np.float32, shape=(ROWS, 2)):
    return np.random.default_rng(rank).integers(1, 5, shape).astype(dtype)


def weight_of(rank, shape):
    return np.random.default_rng(100 + rank).integers(1, 9, shape).astype(np.float32)


def same(found, expected, tolerance=1e-6):
    global checks
    checks += 1
    expected = np.asarray(expected)
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    wide = np.asarray(found, np.float64), expected.astype(np.float64)
    np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)


def check(cases):
    """Eagerly, and all cases in one graph."""

    def results():
        pairs = []
        for case in cases:
            value = tf.constant(case.value)
            with tf.GradientTape() as tape:
                if case.weights is not None:
                    tape.watch(value)
                found = case.call(value)
                if case.weights is not None:
                    loss = tf.reduce_sum(tf.nest.flatten(found)[0] * case.weights)
            pairs.append((found, tape.gradient(loss, value) if case.weights is not None else ()))
        return pairs

    for run in results, tf.function(results):
        for (found, gradient), case in zip(run(), cases, strict=True):
            for one, expected in zip(
                tf.nest.flatten(found), tf.nest.flatten(case.expected), strict=True
            ):
                same(one, expected, case.tolerance)
            if case.weights is not None:
                same(gradient, case.gradient, case.tolerance)


def sums(ranks, options):
    def reduced(**more):
        return lambda value: hvd.allreduce(value, **more, **options)

    for dtype in FLOATS + INTEGERS:
        wide = np.stack([own_of(rank, dtype) for rank in ranks]).astype(np.float64)
        tolerance = 2e-3 if dtype == "float16" else 1e-6
        halves = wide * 0.5 if dtype in FLOATS else np.floor(wide * 0.5)
        on_paper = {
            hvd.Sum: wide.sum(0),
            hvd.Average: wide.mean(0),
            hvd.Min: wide.min(0),
            hvd.Max: wide.max(0),
            hvd.Product: wide.prod(0),
        }
        own = own_of(RANK, dtype)
        for op, expected in on_paper.items():
            yield Case(reduced(op=op), own, expected.astype(dtype), tolerance=tolerance)
        scaled = reduced(op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
        yield Case(scaled, own, (halves.sum(0) * 3).astype(dtype), tolerance=tolerance)
    everyones = [own_of(rank) for rank in ranks]
    for compression in hvd.Compression.fp16, hvd.Compression.bf16, hvd.Compression.none:
        mean = np.mean(everyones, 0)
        yield Case(reduced(compression=compression), own_of(RANK), mean, tolerance=1e-2)
    shape = (ROWS, 2)
    for op, divisor in ((hvd.Sum, 1), (hvd.Average, len(ranks))):
        gradient = np.float32(sum(weight_of(rank, shape) for rank in ranks) / divisor)
        expected = np.float32(np.sum(everyones, 0) / divisor)
        yield Case(reduced(op=op), own_of(RANK), expected, weight_of(RANK, shape), gradient)
    yield Case(
        lambda value: hvd.grouped_allreduce([value, tf.constant([RANK])], op=hvd.Sum, **options),
        own_of(RANK),
        [np.sum(everyones, 0), np.int32([sum(ranks)])],
    )


def slices(ranks, options):
    """Sparse gradients as values and indices: rank r has rows r and 5."""
    dense = np.zeros([8, 2], np.float32)
    for rank in ranks:
        np.add.at(dense, [rank, 5], own_of(rank, shape=(2, 2)))

    def summed(op):
        def call(values):
            own = tf.IndexedSlices(values, tf.constant([RANK, 5]), tf.constant([8, 2]))
            total = hvd.allreduce(own, op=op, **options)
            return tf.scatter_nd(total.indices[:, None], total.values, [8, 2])

        return call

    own = own_of(RANK, shape=(2, 2))
    yield Case(summed(hvd.Sum), own, dense)
    yield Case(summed(hvd.Average), own, dense / np.float32(len(ranks)))


def rows(ranks, options):
    place, number = ranks.index(RANK), len(ranks)
    # rank r has r + 1 rows
    everyones = [own_of(rank, shape=(rank + 1, 2)) for rank in ranks]
    gathered = np.concatenate(everyones)
    start = sum(len(own) for own in everyones[:place])
    mean = np.mean([weight_of(rank, gathered.shape) for rank in ranks], 0, dtype=np.float32)
    yield Case(
        lambda value: hvd.allgather(value, **options),
        everyones[place],
        gathered,
        weight_of(RANK, gathered.shape),
        mean[start : start + len(everyones[place])],
    )
    yield Case(
        lambda value: hvd.grouped_allgather([value, value[:1]], **options),
        everyones[place],
        [gathered, np.stack([own[0] for own in everyones])],
    )
    root, shape = ranks[-1], (3, 2)  # by its number among all ranks
    mean = np.mean([weight_of(rank, shape) for rank in ranks], 0, dtype=np.float32)
    yield Case(
        lambda value: hvd.broadcast(value, root, **options),
        own_of(RANK, shape=shape),
        own_of(root, shape=shape),
        weight_of(RANK, shape),
        mean * np.float32(root == RANK),
    )
    # rank r sends 1 row to the first, 2 to the second …
    splits = np.arange(1, number + 1, dtype=np.int32)
    ends = splits.cumsum()
    sent = {rank: own_of(rank, shape=(ends[-1], 2)) for rank in ranks}
    mine = slice(ends[place] - splits[place], ends[place])
    weights = {rank: weight_of(rank, (number * (n + 1), 2)) for n, rank in enumerate(ranks)}
    # what the n-th got of this rank goes back
    back = [weights[rank][place * (n + 1) : (place + 1) * (n + 1)] for n, rank in enumerate(ranks)]
    yield Case(
        lambda value: hvd.alltoall(value, splits, **options),
        sent[RANK],
        [
            np.concatenate([sent[rank][mine] for rank in ranks]),
            np.full(number, place + 1, np.int32),
        ],
        weights[RANK],
        np.concatenate(back),
    )
    each = ROWS // number
    mine = slice(place * each, (place + 1) * each)
    parts = [own_of(rank, np.int32)[mine] for rank in ranks]
    yield Case(
        lambda value: hvd.alltoall(value, **options), own_of(RANK, np.int32), np.concatenate(parts)
    )


def scattered(ranks, options):
    place, number = ranks.index(RANK), len(ranks)
    shape = (ROWS // number, 2)
    upstream = np.concatenate([weight_of(rank, shape) for rank in ranks])
    for op, factor in ((hvd.Sum, number), (hvd.Average, 1)):  # Horovod's
        total = np.sum([own_of(rank) for rank in ranks], 0) / np.float32(number / factor)
        yield Case(
            lambda value, op=op: hvd.reducescatter(value, op=op, **options),
            own_of(RANK),
            np.array_split(total, number)[place],
            weight_of(RANK, shape),
            upstream * np.float32(factor),
        )
    everyones = [own_of(rank, shape=(ROWS + 1, 2)) for rank in ranks]  # not divided evenly
    factors = {"prescale_factor": 2.0, "postscale_factor": 0.25}
    yield Case(
        lambda value: hvd.grouped_reducescatter([value], op=hvd.Sum, **factors, **options),
        everyones[place],
        [np.array_split(np.sum(everyones, 0) / np.float32(2), number)[place]],
    )


def check_objects(ranks, options):
    root = ranks[-1]
    assert hvd.allgather_object({"rank": RANK}, **options) == [{"rank": rank} for rank in ranks]
    assert hvd.broadcast_object(f"of {RANK}", root, **options) == f"of {root}"
    assert hvd.broadcast_object_fn(root, **options)(RANK) == root
    variable = tf.Variable([float(RANK)])
    hvd.broadcast_variables([variable], root, **options)
    same(variable.numpy(), np.float32([root]))
    hvd.barrier(**options)


def check_training(ranks, options):
    """The tape and the optimizer take the mean of this set's gradients."""
    mean = np.float32(np.mean(ranks))
    variable = tf.Variable(1.0)

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            loss = variable * RANK
        return hvd.DistributedGradientTape(tape, **options).gradient(loss, variable)

    same(gradient(), mean)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), **options)
    optimizer.apply_gradients([(tf.constant(float(RANK)), variable)])
    same(variable.numpy(), np.float32(1 - mean / 2))


def check_all(ranks, options):
    check([case for kind in (sums, slices, rows, scattered) for case in kind(ranks, options)])
    check_objects(ranks, options)
    check_training(ranks, options)


check_all([*range(SIZE)], {"process_set": hvd.global_process_set})
last = hvd.add_process_set([SIZE - 1])
assert last.included() == (RANK == SIZE - 1)
sets = [last]
if SIZE > 2:  # which overlap
    sets.append(hvd.add_process_set(hvd.ProcessSet([0, SIZE - 1])))
    sets.append(hvd.add_process_set([*range(1, SIZE)]))
assert [one.process_set_id for one in sets] == [*range(1, len(sets) + 1)]
for one in sets:
    same(hvd.size_op(one.process_set_id).numpy(), np.int32(one.size()))
    same(hvd.process_set_included_op(one.process_set_id).numpy(), np.int32(one.included()))
    if one.included():
        assert one.rank() == one.ranks.index(RANK)
        check_all(one.ranks, {"process_set": one})
messages = []
for use in (
    lambda: hvd.allreduce(1.0, process_set=hvd.ProcessSet([0])),  # not added
    lambda: hvd.add_process_set([SIZE - 1]),  # there already
    lambda: hvd.add_process_set([SIZE]),
    lambda: hvd.allreduce(1.0, process_set="all"),
    lambda: hvd.broadcast(1.0, SIZE),
    lambda: hvd.barrier(process_set=last),  # not on its own rank
):
    try:
        use()
    except ValueError as error:
        messages.append(str(error))
assert len(messages) == 6 - last.included(), messages
assert not any("\n" in message for message in messages)
assert [hvd.remove_process_set(one) for one in sets] == [True] * len(sets)
assert not hvd.remove_process_set(last)
# Rank r has r + 1 tensors; the average is over those that still have some.
for number in range(RANK + 1):
    same(hvd.allreduce(float(RANK)), np.float32(np.mean(range(number, SIZE))))
assert hvd.join() == SIZE - 1
if RANK == 0:
    print(json.dumps({"checks": checks}))
