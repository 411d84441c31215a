"""Linear layers and LayerNorm by the names of their tensors: which there are, and what they
compute."""

from typing import Any

import tensorflow as tf

from bert import ops

Shapes = dict[str, tuple[int, ...]]  # of tensors, by Google's names
Tensors = dict[str, Any]  # Google's names, or what follows that of a layer -> values of variables


def dense_shapes(scope: str, in_size: int, out_size: int) -> Shapes:
    return {f"{scope}/kernel": (in_size, out_size), f"{scope}/bias": (out_size,)}


def product(x: tf.Tensor, tensors: Tensors, scope: str) -> tuple[tf.Tensor, tf.Tensor]:
    """x W of a linear layer, and its bias, which the next operation adds in its own pass over
    memory."""
    kernel, bias = (tf.cast(tensors[f"{scope}/{name}"], x.dtype) for name in ("kernel", "bias"))
    return tf.matmul(x, kernel), bias


def norm_shapes(scope: str, size: int) -> Shapes:
    return {f"{scope}/LayerNorm/gamma": (size,), f"{scope}/LayerNorm/beta": (size,)}


def normalized(x: tf.Tensor, tensors: Tensors, scope: str, epsilon: float) -> tf.Tensor:
    """Layer normalisation in float32."""
    return ops.normalized(ops.wide(x), tensors[f"{scope}/gamma"], tensors[f"{scope}/beta"], epsilon)


def score_shapes(scope: str, number: int, size: int) -> Shapes:
    return {f"{scope}output_weights": (number, size), f"{scope}output_bias": (number,)}


def scores(x: tf.Tensor, tensors: Tensors, scope: str) -> tf.Tensor:
    """float32 [rows, scores]."""
    weights, bias = tensors[f"{scope}output_weights"], tensors[f"{scope}output_bias"]
    return tf.matmul(tf.cast(x, tf.float32), weights, transpose_b=True) + bias
