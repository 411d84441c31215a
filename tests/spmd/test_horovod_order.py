"""Collectives of hvd and their gradients come in one order on all ranks; the referee is the
gradient on paper."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf

from ringbase.errors import InputError

pytestmark = pytest.mark.ranks(2, 3)
STEPS = 3
ROWS = 12  # 2 and 3 ranks divide them
WHERE = pytest.mark.parametrize("where", ["eager", "tape inside", "tape outside"])


def gradient_on_paper(kind, weights, rank):
    """The gradient of sum(weights * result) on `rank`, from the weights [ranks, rows] of all
    ranks."""
    own = slice(rank * ROWS // len(weights), (rank + 1) * ROWS // len(weights))
    return {
        "allreduce": np.sum(weights, axis=0),
        # Horovod takes the mean
        "allgather": np.mean(weights, axis=0)[rank * ROWS : (rank + 1) * ROWS],
        "reducescatter": weights.reshape(-1) * len(weights),  # and multiplies by the ranks
        "broadcast": np.mean(weights, axis=0) * (rank == 0),
        "alltoall": weights[:, own].reshape(-1),
    }[kind]


def check_gradients(hvd, where, kinds, model):
    """Compares the gradients of `model(x, y)`, which returns a collective of x and one of y, with
    the paper."""
    rank, size = hvd.rank(), hvd.size()
    # TensorFlow leaves out 1.0, so the ranks' graphs differ
    factors = (1.0, 2.0) if rank == 0 else (2.0, 1.0)

    def forward(x, y):
        of_x, of_y = model(x, y)
        return of_x * factors[0], of_y * factors[1]

    forward = tf.function(forward) if where == "tape outside" else forward

    def gradients(x, y, *weights):
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            of_x, of_y = forward(x, y)
            loss = tf.reduce_sum(of_x * weights[0] / factors[0])
            loss += tf.reduce_sum(of_y * weights[1] / factors[1])
        return tape.gradient(loss, [x, y])

    gradients = tf.function(gradients) if where == "tape inside" else gradients
    for step in range(STEPS):
        draw = np.random.default_rng(step)
        of_kinds = {"allgather": ROWS * size, "reducescatter": ROWS // size}
        rows = [of_kinds.get(kind, ROWS) for kind in kinds]
        weights = [draw.integers(1, 100, [size, number]).astype(np.float32) for number in rows]
        x, y = tf.ones([ROWS]) * rank, tf.ones([ROWS]) * step
        found = gradients(x, y, *(tf.constant(of_ranks[rank]) for of_ranks in weights))
        for kind, of_ranks, gradient in zip(kinds, weights, found, strict=True):
            on_paper = gradient_on_paper(kind, of_ranks, rank)
            # float32: thirds are rounded
            np.testing.assert_allclose(gradient, on_paper, rtol=1e-6, err_msg=kind)


@WHERE
@pytest.mark.parametrize(
    "kind", ["allreduce", "allgather", "reducescatter", "broadcast", "alltoall"]
)
def test_two_unnamed_collectives_of_equal_shape_get_their_own_gradients(hvd, where, kind):
    options = {"op": hvd.Sum} if kind in ("allreduce", "reducescatter") else {}
    run = functools.partial(getattr(hvd, kind), **options)
    check_gradients(hvd, where, (kind, kind), lambda x, y: (run(x), run(y)))


@WHERE
def test_different_collectives_inside_a_loop_and_a_condition(hvd, where):
    def model(x, y):
        total, gathered = tf.zeros_like(x), tf.zeros([ROWS * hvd.size()])
        for n in tf.range(3):
            if n < 2:
                total += hvd.allreduce(x, op=hvd.Sum) / 2
                gathered += hvd.allgather(y) / 2
        return total, gathered

    check_gradients(hvd, where, ("allreduce", "allgather"), model)


@WHERE
def test_collectives_whose_results_are_unused_run_on_all_ranks(hvd, where):
    @tf.custom_gradient
    def summed_by_hand(x):
        def gradient(upstream):
            total = hvd.allreduce(upstream)
            # here nothing uses the total
            return total if hvd.rank() == 0 else tf.zeros_like(upstream)

        return hvd.allreduce(x), gradient

    def model(x, y):
        hvd.allreduce(x + y)
        return hvd.allgather(x) + 0 * hvd.allgather(summed_by_hand(x)), hvd.broadcast(y, 0)

    check_gradients(hvd, where, ("allgather", "broadcast"), model)


def test_ranks_that_compute_gradients_in_another_order_stop(hvd):
    x = tf.ones([2])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        results = [hvd.allreduce(x), hvd.allreduce(2 * x)]
    with pytest.raises(InputError, match=r"gradient of hvd\.allreduce, call 2"):
        tape.gradient(results[hvd.rank() == 0], x)


@pytest.mark.parametrize("scales", [True, False])
def test_the_tape_tells_apart_gradients_of_one_rank_and_of_all(scales, hvd):
    own, shared = tf.Variable(1.0), tf.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = (own + shared) * hvd.rank()
    tape = hvd.DistributedGradientTape(tape, scale_local_gradients=scales)
    tape.register_local_source(own)
    of_rank, of_all = tape.get_local_and_global_gradients(loss, [own, shared])
    ((of_own, local),), ((of_shared, mean),) = of_rank, of_all
    assert of_own is own
    assert of_shared is shared
    expected = [hvd.rank() / (hvd.size() if scales else 1), (hvd.size() - 1) / 2]
    np.testing.assert_allclose([local, mean], expected)


def test_roots_rows_and_types_that_cannot_be_used_are_refused(hvd):
    """On all ranks alike, with the type that Horovod raises."""
    rows, size = tf.range(5), hvd.size()
    uses = {
        "root_rank must be from 0 to": lambda: hvd.broadcast(rows, size),
        "got -1": lambda: hvd.broadcast_object("a", root_rank=-1),
        "splits from 0 that add up to its 5 rows": lambda: hvd.alltoall(
            rows, [6, -1, *[0] * (size - 2)]
        ),
        "got [5]": lambda: hvd.alltoall(rows, [5]),
        "numbers, got strings": lambda: hvd.allreduce(tf.constant(["a"])),
    }
    for message, use in uses.items():
        with pytest.raises(InputError, match=re.escape(message)) as caught:
            use()
        assert isinstance(caught.value, tf.errors.InvalidArgumentError)
