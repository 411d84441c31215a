"""Attention by cuDNN's fused kernels (FlashAttention: Dao et al. 2022), which XLA calls.

The matrices [B, N, T, T] are never written to memory. XLA knows the kernels as custom calls. TensorFlow has no
operation for them; `XlaCallModule` takes them as StableHLO, with the operands, layouts and configuration that JAX
writes (jax/_src/cudnn/fused_attention_stablehlo.py, JAX 0.10). They work only in functions that XLA compiles for
an NVIDIA GPU, with shapes that are known when the function is traced.

Shapes: B rows, T positions of a row, N attention heads, D size of a head.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from transformers import BertConfig

from ringbase.errors import InputError

FORWARD, BACKWARD = "__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"
OLDEST_CAPABILITY, LARGEST_HEAD, HEAD_MULTIPLE = (8, 0), 128, 8
ELEMENT_TYPES = {tf.bfloat16: "BF16", tf.float16: "F16"}
MODULE_VERSION = 5  # of XlaCallModule: a module as text or bytecode, without any feature of later versions

# The matrix products of the forward and of the backward pass: the contracted dimensions, then those that are
# common, of the left and of the right operand. Q, K, V, O are [B, T, N, D], P and dP are [B, N, T, T].
PRODUCTS = {
    FORWARD: {
        "bmm1": (3, 3, (0, 2), (0, 2)),  # Q K^T
        "bmm2": (3, 1, (0, 1), (0, 2)),  # P V
    },
    BACKWARD: {
        "bmm1_grad_gemm1": (2, 1, (0, 1), (0, 2)),  # dP^T Q, the gradient of K
        "bmm1_grad_gemm2": (3, 1, (0, 1), (0, 2)),  # dP K, the gradient of Q
        "bmm2_grad_gemm1": (2, 1, (0, 1), (0, 2)),  # P^T dO, the gradient of V
        "bmm2_grad_gemm2": (3, 3, (0, 2), (0, 2)),  # dO V^T
    },
}


@dataclass(frozen=True)
class Array:
    """Shape, dtype and memory layout of an operand or result of a custom call."""

    shape: tuple[int, ...]
    dtype: tf.DType
    minor_to_major: tuple[int, ...]

    @classmethod
    def dense(cls, shape: Sequence[int], dtype: tf.DType) -> "Array":
        return cls(tuple(shape), dtype, tuple(reversed(range(len(shape)))))

    @property
    def type(self) -> str:
        """In StableHLO."""
        kinds = {tf.bfloat16: "bf16", tf.float16: "f16", tf.float32: "f32", tf.int32: "i32", tf.uint8: "ui8"}
        return f"tensor<{'x'.join(map(str, self.shape))}x{kinds[self.dtype]}>"

    @property
    def layout(self) -> str:
        return f"dense<{list(self.minor_to_major)}> : tensor<{len(self.shape)}xindex>"


WORKSPACE = Array.dense([0], tf.uint8)


@dataclass(frozen=True)
class CustomCall:
    """One of the two calls: `target` is FORWARD or BACKWARD, `config` is its `backend_config`."""

    target: str
    config: dict
    operands: list[Array]
    results: list[Array]

    @property
    def module(self) -> str:
        """A StableHLO module whose function `main` is this call. It has one more result, the workspace, for which
        XLA sets the size."""
        results = [*self.results, WORKSPACE]
        names = [f"%{number}" for number in range(len(self.operands))]
        arguments = ", ".join(f"{name}: {array.type}" for name, array in zip(names, self.operands, strict=True))
        inputs, outputs, kept = (
            ", ".join(array.type for array in part) for part in (self.operands, results, self.results)
        )
        layouts = [", ".join(array.layout for array in part) for part in (self.operands, results)]
        returned = ", ".join(f"%results#{number}" for number in range(len(self.results)))
        return f"""module {{
  func.func public @main({arguments}) -> ({kept}) {{
    %results:{len(results)} = stablehlo.custom_call @{self.target}({", ".join(names)}) {{
      api_version = 2 : i32, backend_config = {json.dumps(json.dumps(self.config))},
      operand_layouts = [{layouts[0]}], result_layouts = [{layouts[1]}]
    }} : ({inputs}) -> ({outputs})
    return {returned} : {kept}
  }}
}}"""


def run(call: CustomCall, operands: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The results of the call. Only XLA for GPUs can compute it."""
    return gen_xla_ops.xla_call_module(
        operands,
        version=MODULE_VERSION,
        module=call.module,
        Sout=[result.shape for result in call.results],
        Tout=[result.dtype for result in call.results],
    )


def attention(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """softmax(Q K^T / sqrt(D)) V -> [B, T, N, D], of one example per row; 0 where a row is padding.

    It differs from `bert.ops.attention` only in what padding positions give: there they attend to each other.

    Args:
      query, key, value: [B, T, N, D], bfloat16 or float16, with a known shape.
      lengths: int32 [B], from `bert.inputs.row_lengths`: the number of tokens at the beginning of each row; the
        rest is padding. A negative length makes the row's results NaN: a compiled function cannot raise.
    """
    B, T, N, D = query.shape.as_list()
    matrices = Array.dense([B, T, N, D], query.dtype)
    # cuDNN's results have the heads before the positions, but the same order in memory as its operands.
    by_head = Array((B, N, T, D), query.dtype, (3, 1, 2, 0))
    statistics = Array.dense([B, N, T], tf.float32)
    numbers = Array.dense([B], tf.int32)
    inside_BT11 = tf.sequence_mask(lengths, T)[:, :, None, None]
    outside_B111 = tf.where(lengths < 0, np.nan, 0.0)[:, None, None, None]
    # NVIDIA does not say what a row without any token gives: such a row attends to its first position.
    lengths = tf.maximum(lengths, 1)

    def ordered(result_BNTD: tf.Tensor) -> tf.Tensor:
        """[B, T, N, D], 0 in padding, whatever cuDNN leaves there."""
        result_BTND = tf.transpose(result_BNTD, [0, 2, 1, 3])
        return tf.where(inside_BT11, result_BTND, tf.cast(outside_B111, result_BTND.dtype))

    @tf.custom_gradient
    def differentiable(query, key, value):
        def gradient(d_context):
            operands = [query, key, value, logs_of_sums, d_context, context, lengths, lengths]
            kinds = [matrices] * 3 + [statistics] + [matrices] * 2 + [numbers] * 2
            call = CustomCall(BACKWARD, config_of(BACKWARD, matrices), kinds, [by_head] * 3)
            return [ordered(d_input) for d_input in run(call, operands)]

        kinds = [matrices] * 3 + [numbers] * 2
        call = CustomCall(FORWARD, config_of(FORWARD, matrices), kinds, [by_head, statistics])
        context_BNTD, logs_of_sums = run(call, [query, key, value, lengths, lengths])
        context = ordered(context_BNTD)
        return context, gradient

    return differentiable(query, key, value)


def is_chosen(attention: str, xla: str, config: BertConfig, dtype: str) -> bool:
    """Whether training calls cuDNN, by the flags `--attention` and `--xla`.

    Args:
      config, dtype: the model's configuration, and the dtype of its activations.

    Raises InputError: `--attention cudnn` is not possible here.
    """
    if attention != "cudnn":  # `auto` too: neither values nor times of cuDNN's attention were seen on a GPU yet
        return False
    if reason := _reason_against(xla, config, dtype):
        raise InputError(f"--attention cudnn: {reason}")
    return True


def _reason_against(xla: str, config: BertConfig, dtype: str) -> str | None:
    """Why training cannot call cuDNN, and what to change; None if it can."""
    head_size = config.hidden_size // config.num_attention_heads
    if config.attention_probs_dropout_prob:
        rate = config.attention_probs_dropout_prob
        return f"attention_probs_dropout_prob must be 0 in the model's configuration, got {rate}"
    if head_size % HEAD_MULTIPLE or head_size > LARGEST_HEAD:
        return f"the head size must be a multiple of {HEAD_MULTIPLE} up to {LARGEST_HEAD}, got {head_size}"
    if tf.as_dtype(dtype) not in ELEMENT_TYPES:
        return f"the precision must be bf16 or fp16, got {dtype} (--precision)"
    capability = _compute_capability()
    if capability is None:
        return "it needs an NVIDIA GPU"
    if capability < OLDEST_CAPABILITY:
        needed, here = (".".join(map(str, version)) for version in (OLDEST_CAPABILITY, capability))
        return f"it needs a GPU of compute capability {needed} or higher, got {here}"
    return "it needs --xla on, got off" if xla == "off" else None


def _compute_capability() -> tuple[int, int] | None:
    """Of the first visible GPU; None without an NVIDIA GPU."""
    gpus = tf.config.get_visible_devices("GPU")
    return tf.config.experimental.get_device_details(gpus[0]).get("compute_capability") if gpus else None


def config_of(target: str, matrices: Array) -> dict:
    """The call's `backend_config`: XLA's CudnnfMHABackendConfig (xla/service/gpu/backend_configs.proto).

    Args:
      matrices: of Q, K and V.
    """
    B, T, N, D = matrices.shape
    algorithm = {
        "algo_id": "0",
        "math_type": "TENSOR_OP_MATH",
        "tuning_knobs": {"17": "1", "24": "0"},
        "is_cudnn_frontend": True,
        "workspace_size": "0",
    }
    layout = {
        "dim_level_types": [],
        "dim_unique": [],
        "dim_ordered": [],
        "minor_to_major": ["3", "2", "1", "0"],
        "tiles": [],
        "element_size_in_bits": "0",
        "memory_space": "0",
        "index_primitive_type": "PRIMITIVE_TYPE_INVALID",
        "pointer_primitive_type": "PRIMITIVE_TYPE_INVALID",
        "dynamic_shape_metadata_prefix_bytes": "0",
    }
    scores = {
        "element_type": ELEMENT_TYPES[matrices.dtype],
        "dimensions": [str(B), str(N), str(T), str(T)],
        "tuple_shapes": [],
        "layout": layout,
        "is_dynamic_dimension": [False] * 4,
    }
    products = {
        f"{name}_dot_dimension_numbers": {
            "lhs_contracting_dimensions": [str(left)],
            "rhs_contracting_dimensions": [str(right)],
            "lhs_batch_dimensions": [str(dimension) for dimension in left_common],
            "rhs_batch_dimensions": [str(dimension) for dimension in right_common],
        }
        for name, (left, right, left_common, right_common) in PRODUCTS[target].items()
    }
    attention = {
        "algorithm": algorithm,
        "fmha_scale": D**-0.5,
        "intermediate_tensor_shape": scores,
        "is_flash_attention": True,
        "mask_type": "PADDING",
        **products,
        "dropout_rate": 0.0,
        "seed": 42,  # of dropout, so never used
        "sliding_window_length": 0,
        "max_seg_per_batch": 1,
        "is_paged_attention": False,
    }
    return {"operation_queue_id": "0", "cudnn_fmha_backend_config": attention}
