"""Whether cuDNN's attention computes on this device what bert/ops.py computes. It was written
without a GPU, and cuDNN's versions and cards differ."""

from collections.abc import Callable
from functools import partial

import tensorflow as tf
from tensorflow import Tensor

from bert import ops, ops_cudnn
from bert.modern import in_blocks
from bert.ops import Dropout, Heads, wide
from bert.passes import MASKED_SCORE
from ringbase.errors import one_line

TOLERANCE = 0.03  # the largest relative error, of norms, of results in 16 bits
LENGTHS = (128, 77, 1, 0)  # tokens of the rows
WINDOW = 32
Over = Callable[[Heads, Tensor], Tensor]  # attention over heads, with a mask
# how the encoders call it: in whole rows, and within windows
USES: dict[str, Callable[[Over, Heads, Tensor], Tensor]] = {
    "whole rows": lambda attention, heads, mask: attention(heads, mask),
    "windows": partial(in_blocks, window=WINDOW),
}


def trouble(
    num_heads: int, size: int, dtype: str, by: ops_cudnn.Attention = ops_cudnn.CUDNN
) -> str:
    """Why heads of this size and dtype cannot use cuDNN's attention here, in one line: an error, or
    a context and gradients that are not those of bert/ops.py. "" if they can."""

    def plain(heads, mask):
        no_dropout = Dropout(0.0, None, 0)
        return ops.attention(heads, mask, None, no_dropout, None)

    fused = partial(ops_cudnn.attention_by, by)
    by_xla = partial(tf.function, jit_compile=True, autograph=False)
    heads, d_context, has_token_BT = on_trial(num_heads, size)
    for use, attend in USES.items():
        right = results(partial(attend, plain), heads, d_context, has_token_BT)
        cast = [tf.cast(x, dtype) for x in heads]
        try:
            ours = by_xla(results)(partial(attend, fused), cast, d_context, has_token_BT)
        except tf.errors.OpError as failure:
            return f"{use}: {one_line(failure)}"
        for name, found, expected in zip(("context", *"QKV"), ours, right, strict=True):
            error = float(tf.norm(found - expected) / tf.norm(expected))
            if not error <= TOLERANCE:  # not a number is none
                return (
                    f"{use}: {name} or its gradient differs by {error:.2g}, at most {TOLERANCE:g}"
                    " is rounding"
                )
    return ""


def on_trial(num_heads: int, size: int) -> tuple[Heads, Tensor, Tensor]:
    """Random heads and a gradient of the context, float32 [B, N, T, D], and which places have a
    token, float32 [B, T]."""
    has_token_BT = tf.sequence_mask(LENGTHS, max(LENGTHS), tf.float32)
    shape = [4, *has_token_BT.shape[:1], num_heads, max(LENGTHS), size]
    *heads, d_context = tf.unstack(tf.random.stateless_normal(shape, [1, 2]))
    # the loss reads no place without a token
    return heads, d_context * has_token_BT[:, None, :, None], has_token_BT


def results(
    attend: Callable[[Heads, Tensor], Tensor], heads: Heads, d_context: Tensor, has_token: Tensor
) -> list[Tensor]:
    """The context, and the gradients of query, key and value, where there are tokens."""
    mask_B11T = ((1.0 - has_token) * MASKED_SCORE)[:, None, None]
    with tf.GradientTape() as tape:
        tape.watch(heads)
        context = attend(heads, tf.cast(mask_B11T, heads[0].dtype))
    gradients = tape.gradient(context, heads, tf.cast(d_context, context.dtype))
    # 0 times what is not a number is no number either
    return [wide(x) * has_token[:, None, :, None] for x in (context, *gradients)]
