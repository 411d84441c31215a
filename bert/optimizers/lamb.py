"""LAMB, for global batches of thousands of rows."""

import math

import tensorflow as tf
from keras import ops

from bert.optimizers.adamw import AdamWeightDecay


class LAMB(AdamWeightDecay):
    """Layer-wise adaptive rates for large batches (You et al. 2020, algorithm 2), without bias
    correction as in google-research/albert `lamb_optimizer.py`. The update of a variable that
    decays is AdamWeightDecay's, times

        ||parameter|| / ||update||     (1 where either norm is 0)
    """

    def trust_ratio(self, parameter, update):
        parameter_norm = _norm(parameter)
        update_norm = _norm(update)
        is_defined = ops.logical_and(parameter_norm > 0, update_norm > 0)
        divisor = ops.where(is_defined, update_norm, 1.0)
        return ops.where(is_defined, parameter_norm / divisor, 1.0)


def _norm(x):
    """The Euclidean norm of all numbers, from 64 parallel sums where the shape allows it. In the
    single sum that XLA's CPU code would compute, each addition waits for the one before."""
    width = math.prod(x.shape[1:])
    if not x.shape.rank or width % 64:
        return ops.norm(x)
    squares = tf.reshape(tf.square(x), [x.shape[0], width // 64, 64])
    sums = tf.reduce_sum(squares, 1)
    total = tf.reduce_sum(tf.abs(sums))  # abs keeps XLA from merging the two sums into one
    return tf.sqrt(total)
