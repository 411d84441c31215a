"""Whether a training takes cuDNN's attention (bert/ops_cudnn.py)."""

from bert.cudnn_check import trouble
from bert.model import Bert
from bert.ops_cudnn import TYPES
from distributed.world import World


def why_not_cudnn(model: Bert, world: World, has_fixed_shapes: bool) -> str:
    """What keeps a training of this model on these ranks from it; "" if nothing does, the same on
    every rank. On a GPU it is tried out."""
    if not (has_fixed_shapes and world.device.is_gpu):
        return "it is a part of steps that XLA compiles for a GPU, which are none here"
    config = model.config
    if config.attention_probs_dropout_prob:
        return (
            "this model's attention has dropout, and cuDNN's is no function of seed and step;"
            " --attention_probs_dropout_prob 0 trains without it"
        )
    if model.compute_dtype not in [dtype.name for dtype in TYPES]:
        return "it computes in 16 bits: --precision bf16 or fp16"
    size = config.hidden_size // config.num_attention_heads
    found = trouble(config.num_attention_heads, size, model.compute_dtype)
    for rank, reason in enumerate(world.all_gather(found)):
        if reason:
            return f"on rank {rank} it does not compute what it should ({reason})"
    return ""
