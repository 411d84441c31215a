"""What encoders and heads share: linear layers and LayerNorm by the names of their tensors, and the
way between the rows of the hidden state and the rows of attention.

Shapes, as suffixes, are those of bert/encoder.py.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow import Tensor

from bert import ops
from bert.batch import Batch

Shapes = dict[str, tuple[int, ...]]  # of tensors, by Google's names
Tensors = dict[str, Any]  # Google's names, or what follows that of a layer -> values of variables


def dense_shapes(scope: str, in_size: int, out_size: int, has_bias: bool = True) -> Shapes:
    shapes: Shapes = {f"{scope}/kernel": (in_size, out_size)}
    if has_bias:
        shapes[f"{scope}/bias"] = (out_size,)
    return shapes


def product(x: Tensor, tensors: Tensors, scope: str) -> tuple[Tensor, Tensor]:
    """x W of a linear layer, and its bias (0 where it has none), which the next operation adds in
    its own pass over memory."""
    kernel = tf.cast(tensors[f"{scope}/kernel"], x.dtype)
    bias = tensors.get(f"{scope}/bias")
    if bias is None:
        bias = tf.zeros(kernel.shape[1:])
    bias = tf.cast(bias, x.dtype)
    return tf.matmul(x, kernel), bias


def norm_shapes(scope: str, size: int, has_bias: bool = True) -> Shapes:
    shapes: Shapes = {f"{scope}/LayerNorm/gamma": (size,)}
    if has_bias:
        shapes[f"{scope}/LayerNorm/beta"] = (size,)
    return shapes


def norm_tensors(tensors: Tensors, scope: str) -> tuple[Tensor, Tensor]:
    """Factor and addend, which is 0 where there is none."""
    gamma = tensors[f"{scope}/LayerNorm/gamma"]
    beta = tensors.get(f"{scope}/LayerNorm/beta")
    if beta is None:
        beta = tf.zeros_like(gamma)
    return gamma, beta


def normalized(x: Tensor, tensors: Tensors, scope: str, epsilon: float) -> Tensor:
    """Layer normalisation in float32."""
    gamma, beta = norm_tensors(tensors, scope)
    return ops.normalized(ops.wide(x), gamma, beta, epsilon)


def score_shapes(scope: str, number: int, size: int) -> Shapes:
    return {f"{scope}output_weights": (number, size), f"{scope}output_bias": (number,)}


def scores(x: Tensor, tensors: Tensors, scope: str) -> Tensor:
    """float32 [rows, scores]."""
    weights = tensors[f"{scope}output_weights"]
    bias = tensors[f"{scope}output_bias"]
    return tf.matmul(ops.wide(x), weights, transpose_b=True) + bias


# -- between the rows of the hidden state and the rows of attention --------------------------------


def in_places(x_RW: Tensor, batch: Batch) -> list[Tensor]:
    """[R, W] -> for each group [B, T, W]. A place without a token gets the numbers of a row without
    one.

    Gradients of rows without a token are 0: only padding may read padding.
    """
    if "rows" not in batch:
        return split_groups(x_RW, batch)

    @tf.custom_gradient
    def taken(x):
        return _taken(x, batch), lambda *gradients: _put(gradients, batch)

    return taken(x_RW)


def from_places(parts: Sequence[Tensor], batch: Batch) -> Tensor:
    """For each group [B, T, W] -> [R, W]; rows without a token get zeros. The reverse of
    `in_places`."""
    if "rows" not in batch:
        return tf.concat(_flat(parts), 0)

    @tf.custom_gradient
    def put(*parts):
        return _put(parts, batch), lambda gradient: _taken(gradient, batch)

    return put(*parts)


def group_shapes(batch: Batch) -> list[tuple[Any, Any]]:
    """For each group its number of rows B and their length T."""
    return [(group[0], group[1]) for group in batch["groups"]]


def split_groups(x: Tensor, batch: Batch) -> list[Tensor]:
    """[P, …] -> for each group [B, T, …]."""
    shapes = group_shapes(batch)
    parts = [x]
    if len(shapes) > 1:
        sizes = [rows * length for rows, length in shapes]
        parts = tf.split(x, sizes)
    inner = x.shape[1:]
    return [tf.reshape(part, [*shape, *inner]) for part, shape in zip(parts, shapes, strict=True)]


def _flat(parts):
    """For each group [B, T, W] -> [B T, W]."""
    width = parts[0].shape[-1]
    return [tf.reshape(part, [-1, width]) for part in parts]


def _taken(x_RW, batch):
    rows = split_groups(batch["rows"], batch)
    return [tf.gather(x_RW, rows_BT) for rows_BT in rows]


def _put(parts, batch):
    first = parts[0]
    padding = tf.zeros([1, first.shape[-1]], first.dtype)
    rows = tf.concat([*_flat(parts), padding], 0)
    return tf.gather(rows, batch["places"])


def rows_of(x_RW: Tensor, rows: Tensor) -> Tensor:
    """The rows with these numbers. The gradient is dense, as recompute_grad needs it."""
    return tf.gather(tf.reshape(x_RW, tf.shape(x_RW)), rows)
