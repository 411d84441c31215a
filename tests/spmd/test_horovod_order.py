"""Collectives of `ringbert.horovod` and their gradients are the same calls in the same order on all ranks.

The referee is the gradient on paper: every rank draws the weights of all ranks.
"""

import numpy as np
import pytest
import tensorflow as tf

from ringbert.errors import InputError

pytestmark = pytest.mark.ranks(2, 3)
STEPS = 5
ROWS = 12  # 2 and 3 ranks divide them


def collective(hvd, kind):
    return {
        "allreduce": lambda x: hvd.allreduce(x, op=hvd.Sum),
        "allgather": hvd.allgather,
        "reducescatter": lambda x: hvd.reducescatter(x, op=hvd.Sum),
        "broadcast": lambda x: hvd.broadcast(x, 0),
        "alltoall": hvd.alltoall,
    }[kind]


def gradient_on_paper(kind, weights, rank):
    """The gradient of sum(weights * result) on `rank`, from the weights of all ranks."""
    size, part = len(weights), ROWS // len(weights)
    own = slice(rank * part, (rank + 1) * part)
    if kind == "allreduce":
        return np.sum(weights, axis=0)
    if kind == "allgather":  # the mean over ranks, as in Horovod
        return np.mean(weights, axis=0)[rank * ROWS : (rank + 1) * ROWS]
    if kind == "reducescatter":  # times the ranks, as in Horovod
        return np.concatenate(weights) * size
    if kind == "broadcast":
        return np.mean(weights, axis=0) * (rank == 0)
    return np.concatenate([of_rank[own] for of_rank in weights])


def rows_of_result(kind, size):
    return {"allgather": ROWS * size, "reducescatter": ROWS // size}.get(kind, ROWS)


def differentiate(where, loss):
    """A function of x, y and weights that returns the gradients of x and y."""
    forward = tf.function(loss) if where == "tape outside" else loss

    def gradients(x, y, *weights):
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            value = forward(x, y, *weights)
        return tape.gradient(value, [x, y])

    return tf.function(gradients) if where == "tape inside" else gradients


def check_gradients(hvd, where, kinds, loss):
    """Compares several steps of `loss`, which weighs a collective of x and one of y, with the paper."""
    gradients, rank, size = differentiate(where, loss), hvd.rank(), hvd.size()
    for step in range(STEPS):
        x, y = (tf.random.stateless_uniform([ROWS], [step, rank + place]) for place in (0, 10))
        draw = np.random.default_rng(step)
        weights = [draw.integers(1, 100, [size, rows_of_result(kind, size)]).astype("float32") for kind in kinds]
        found = gradients(x, y, *(tf.constant(of_ranks[rank]) for of_ranks in weights))
        for kind, of_ranks, gradient in zip(kinds, weights, found, strict=True):
            wanted = gradient_on_paper(kind, list(of_ranks), rank)
            np.testing.assert_allclose(gradient, wanted, rtol=1e-6, err_msg=f"{kind}, {where}, step {step}")


WHERE = pytest.mark.parametrize("where", ["eager", "tape inside", "tape outside"])


@WHERE
@pytest.mark.parametrize("kind", ["allreduce", "allgather", "reducescatter", "broadcast", "alltoall"])
def test_two_unnamed_collectives_of_equal_shape_get_their_own_gradients(hvd, where, kind):
    run = collective(hvd, kind)

    def loss(x, y, of_x, of_y):
        return tf.reduce_sum(run(x) * of_x) + tf.reduce_sum(run(y) * of_y)

    check_gradients(hvd, where, (kind, kind), loss)


@WHERE
def test_a_collective_whose_result_is_unused_runs_on_all_ranks(hvd, where):
    gather, send = collective(hvd, "allgather"), collective(hvd, "broadcast")

    @tf.custom_gradient
    def summed(x):
        def gradient(upstream):
            total = hvd.allreduce(upstream, op=hvd.Sum)
            return total if hvd.rank() == 0 else tf.zeros_like(upstream)  # the sum is unused on the others

        return hvd.allreduce(x, op=hvd.Sum), gradient

    def loss(x, y, of_x, of_y):
        hvd.allreduce(x * y)
        unused = tf.reduce_sum(summed(tf.zeros_like(x)) + summed(x - x)) * 0
        return tf.reduce_sum(gather(x) * of_x) + unused + tf.reduce_sum(send(y) * of_y)

    check_gradients(hvd, where, ("allgather", "broadcast"), loss)
