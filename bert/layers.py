"""What encoders and heads share: linear layers and LayerNorm by the names of their tensors, and the
way between the rows of the hidden state and the rows of attention.

Shapes, as suffixes, are those of bert/model.py.
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
    kernel: Shapes = {f"{scope}/kernel": (in_size, out_size)}
    return kernel | ({f"{scope}/bias": (out_size,)} if has_bias else {})


def product(x: Tensor, tensors: Tensors, scope: str) -> tuple[Tensor, Tensor]:
    """x W of a linear layer, and its bias (0 where it has none), which the next operation adds in
    its own pass over memory."""
    kernel = tf.cast(tensors[f"{scope}/kernel"], x.dtype)
    bias = tensors.get(f"{scope}/bias")
    if bias is None:
        bias = tf.zeros(kernel.shape[1:])
    return tf.matmul(x, kernel), tf.cast(bias, x.dtype)


def norm_shapes(scope: str, size: int, has_bias: bool = True) -> Shapes:
    gamma: Shapes = {f"{scope}/LayerNorm/gamma": (size,)}
    return gamma | ({f"{scope}/LayerNorm/beta": (size,)} if has_bias else {})


def norm_tensors(tensors: Tensors, scope: str) -> tuple[Tensor, Tensor]:
    """Factor and addend, which is 0 where there is none."""
    gamma, beta = (tensors.get(f"{scope}/LayerNorm/{name}") for name in ("gamma", "beta"))
    return gamma, tf.zeros_like(gamma) if beta is None else beta


def normalized(x: Tensor, tensors: Tensors, scope: str, epsilon: float) -> Tensor:
    """Layer normalisation in float32."""
    return ops.normalized(ops.wide(x), *norm_tensors(tensors, scope), epsilon)


def score_shapes(scope: str, number: int, size: int) -> Shapes:
    return {f"{scope}output_weights": (number, size), f"{scope}output_bias": (number,)}


def scores(x: Tensor, tensors: Tensors, scope: str) -> Tensor:
    """float32 [rows, scores]."""
    weights, bias = tensors[f"{scope}output_weights"], tensors[f"{scope}output_bias"]
    return tf.matmul(tf.cast(x, tf.float32), weights, transpose_b=True) + bias


# -- between the rows of the hidden state and the rows of attention --------------------------------


def in_places(x_RW: Tensor, batch: Batch) -> list[Tensor]:
    """[R, W] -> for each group [B, T, W]. A place without a token gets the numbers of a row without
    one.

    Gradients of rows without a token are 0: nothing may depend on such rows but other such rows.
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
        return tf.concat([tf.reshape(part, [-1, part.shape[-1]]) for part in parts], 0)
    return tf.custom_gradient(
        lambda *p: (_put(p, batch), lambda gradient: _taken(gradient, batch))
    )(*parts)


def split_groups(x: Tensor, batch: Batch) -> list[Tensor]:
    """[P, …] -> for each group [B, T, …]."""
    groups = [(group[0], group[1]) for group in batch["groups"]]
    parts = tf.split(x, [rows * length for rows, length in groups]) if len(groups) > 1 else [x]
    return [
        tf.reshape(part, [*group, *x.shape[1:]]) for part, group in zip(parts, groups, strict=True)
    ]


def _taken(x_RW: Tensor, batch: Batch) -> list[Tensor]:
    return [tf.gather(x_RW, rows_BT) for rows_BT in split_groups(batch["rows"], batch)]


def _put(parts: Sequence[Tensor], batch: Batch) -> Tensor:
    width = parts[0].shape[-1]
    zeros = tf.zeros([1, width], parts[0].dtype)
    return tf.gather(
        tf.concat([*(tf.reshape(part, [-1, width]) for part in parts), zeros], 0), batch["places"]
    )


def rows_of(x_RW: Tensor, rows: Tensor) -> Tensor:
    """The rows with these numbers. The gradient is dense, as recompute_grad needs it."""
    return tf.gather(tf.reshape(x_RW, tf.shape(x_RW)), rows)
