"""The functions of bert/ops.py for a pass that XLA compiles as a whole for a GPU, with cuDNN's
attention (Dao et al. 2022, "FlashAttention"): no matrix [T, K] is ever in memory. It has no dropout
here, because cuDNN's is no function of seed and step, and computes in bfloat16 or float16.

XLA calls cuDNN where the graph has a custom call with one of its names. Operands, results and
configuration are those of JAX's `dot_product_attention`; `Attention` says what they mean. All
arrays are row-major. Shapes are those of bert/encoder.py, and K keys.
"""

import json
from typing import Any, NamedTuple, Protocol

import tensorflow as tf
from tensorflow import Tensor
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from bert.ops import Dropout, Heads
from bert.ops_gpu import activated, biased, gated, prenormed, random_words, residual, rotated

__all__ = [
    "activated",
    "attention",
    "biased",
    "gated",
    "keeps_matrices",
    "prenormed",
    "random_words",
    "residual",
    "rotated",
]

keeps_matrices = False
TYPES = {tf.bfloat16: "BF16", tf.float16: "F16"}
# Contracted dimensions of both factors, and those of the batch: of matrices [B, N, T, K], and of
# heads [B, T, N, D].
PRODUCTS = {
    "forward": {
        "bmm1": ((3, 3), ((0, 2), (0, 2))),  # Q K^T
        "bmm2": ((3, 1), ((0, 1), (0, 2))),  # P V
    },
    "backward": {
        "bmm1_grad_gemm1": ((2, 1), ((0, 1), (0, 2))),  # dS^T Q
        "bmm1_grad_gemm2": ((3, 1), ((0, 1), (0, 2))),  # dS K
        "bmm2_grad_gemm1": ((2, 1), ((0, 1), (0, 2))),  # P^T dO
        "bmm2_grad_gemm2": ((3, 3), ((0, 2), (0, 2))),  # dO V^T
    },
}


class Seen(NamedTuple):
    """Which keys the queries see: one of the two is empty."""

    lengths: list[Tensor]  # of queries and of keys, int32 [B]: all before the end of a row
    bias: list[Tensor]  # [B, 1, T, K], added to the scores


class Attention(Protocol):
    """What cuDNN computes of heads [B, T, N, D], with K instead of T for keys and values."""

    def forward(self, heads: Heads, seen: Seen) -> tuple[Tensor, Tensor]:
        """softmax(Q K^T / sqrt(D) + bias) V, [B, N, T, D], and the logarithm of each query's sum,
        float32 [B, N, T]."""

    def backward(
        self, heads: Heads, seen: Seen, sums: Tensor, context: Tensor, d_context: Tensor
    ) -> Heads:
        """The gradients of query, key and value, each [B, N, T or K, D], by that of the context;
        context and gradient are [B, T, N, D]. Of keys and values that no query sees they may be any
        number."""


class CuDNN:
    """That of XLA for GPUs."""

    def forward(self, heads: Heads, seen: Seen) -> tuple[Tensor, Tensor]:
        rows, length, num_heads, size = heads[0].shape
        context_of = [rows, num_heads, length, size], heads[0].dtype
        sums_of = [rows, num_heads, length], tf.float32
        operands = [*heads, *seen.bias, *seen.lengths]
        context, sums = called("forward", heads, seen, operands, [context_of, sums_of])
        return context, sums

    def backward(
        self, heads: Heads, seen: Seen, sums: Tensor, context: Tensor, d_context: Tensor
    ) -> Heads:
        results = []
        for x in heads:
            rows, length, num_heads, size = x.shape
            results.append(([rows, num_heads, length, size], x.dtype))
        operands = [*heads, sums, d_context, *seen.bias, context, *seen.lengths]
        return called("backward", heads, seen, operands, results)


CUDNN = CuDNN()


def called(
    kind: str,
    heads: Heads,
    seen: Seen,
    operands: list[Tensor],
    results: list[tuple[list[int], Any]],
) -> list[Tensor]:
    """The results of cuDNN's operation."""
    name = "__cudnn$fmha"
    name += "ScaleBiasSoftmax" if seen.bias else "Softmax"
    name += "Backward" if kind == "backward" else ""
    shapes, dtypes = zip(*results, strict=True)
    *outputs, _ = gen_xla_ops.xla_custom_call_v2(
        operands=operands,
        call_target_name=name,
        backend_config=configuration(kind, heads, seen),
        has_side_effect=False,
        # the last is memory for cuDNN to work with, whose size XLA asks it
        result_shapes=[tf.TensorShape(shape) for shape in [*shapes, [0]]],
        result_dtypes=[*dtypes, tf.uint8],
    )
    return outputs


def configuration(kind: str, heads: Heads, seen: Seen) -> str:
    """What XLA tells cuDNN, as JSON: XLA's `CudnnfMHABackendConfig`, whose 64-bit integers are
    strings."""
    query, key, _ = heads
    rows, length, num_heads, size = query.shape
    fmha = {
        "algorithm": {
            "algo_id": "0",
            "math_type": "TENSOR_OP_MATH",
            "tuning_knobs": {"17": "1", "24": "0"},
            "is_cudnn_frontend": True,
            "workspace_size": "0",
        },
        "fmha_scale": size**-0.5,
        "intermediate_tensor_shape": {
            "element_type": TYPES[query.dtype],
            "dimensions": [str(number) for number in (rows, num_heads, length, key.shape[1])],
            "layout": {"minor_to_major": ["3", "2", "1", "0"]},
            "is_dynamic_dimension": [False] * 4,
        },
        "is_flash_attention": True,
        "mask_type": "PADDING" if seen.lengths else "NO_MASK",
        "dropout_rate": 0.0,
        "sliding_window_length": 0,
        "max_seg_per_batch": 1,
    }
    for product, (contracted, batches) in PRODUCTS[kind].items():
        numbers = {}
        for side, dimension, dimensions in zip(("lhs", "rhs"), contracted, batches, strict=True):
            numbers[f"{side}_contracting_dimensions"] = [str(dimension)]
            numbers[f"{side}_batch_dimensions"] = [str(number) for number in dimensions]
        fmha[f"{product}_dot_dimension_numbers"] = numbers
    return json.dumps({"operation_queue_id": "0", "cudnn_fmha_backend_config": fmha})


def attention(
    heads: Heads,
    mask: Tensor,
    draws: Tensor | None,
    dropout: Dropout,
    longest: int | None,
) -> Tensor:
    """As that of bert/ops.py, without dropout. A mask [B, 1, 1, K] is one of rows whose tokens come
    first."""
    assert not dropout.is_on
    return attention_by(CUDNN, heads, mask)


def attention_by(by: Attention, heads: Heads, mask: Tensor) -> Tensor:
    """Attention [B, N, T, D], whose operation and gradient this object computes."""
    length, num_keys = heads[0].shape[2], heads[1].shape[2]
    is_by_length = mask.shape[2] == 1

    @tf.custom_gradient
    def differentiable(query, key, value):
        heads_BTND = [transposed(x) for x in (query, key, value)]
        seen = seen_by_length(mask, length) if is_by_length else Seen([], [mask])
        context_BNTD, sums = by.forward(heads_BTND, seen)
        context_BTND = transposed(context_BNTD)

        def gradient(d_context_BNTD):
            d_query, d_key, d_value = by.backward(
                heads_BTND, seen, sums, context_BTND, transposed(d_context_BNTD)
            )
            if is_by_length:
                is_seen_BK = tf.range(num_keys) < seen.lengths[1][:, None]
                is_seen_B1K1 = is_seen_BK[:, None, :, None]
                d_key = tf.where(is_seen_B1K1, d_key, tf.zeros([], d_key.dtype))
                d_value = tf.where(is_seen_B1K1, d_value, tf.zeros([], d_value.dtype))
            return d_query, d_key, d_value

        return transposed(context_BTND), gradient

    return differentiable(*heads)


def transposed(x: Tensor) -> Tensor:
    """[B, N, T, D] from [B, T, N, D], or the reverse."""
    return tf.transpose(x, [0, 2, 1, 3])


def seen_by_length(mask: Tensor, length: int) -> Seen:
    """That of a mask [B, 1, 1, K]. Queries without a token see the row's tokens, and those of an
    empty row all keys, as in bert/ops.py: every number is defined."""
    has_token = tf.cast(mask[:, 0, 0] == 0, tf.int32)
    num_tokens = tf.reduce_sum(has_token, -1)
    num_seen = tf.where(num_tokens > 0, num_tokens, mask.shape[-1])
    return Seen([tf.fill(tf.shape(num_seen), length), num_seen], [])
