"""Makes tests/goldens/cudnn_calls.hlo: the two custom calls that JAX writes for attention by cuDNN.

    python scripts/jax_cudnn_calls.py

needs jax (0.10.2 made the stored file), but no GPU. The calls are those of the gradient of
`jax.nn.dot_product_attention` with lengths of rows, for query, key and value of bfloat16 [4, 24, 12, 64].
"""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
from jax._src.cudnn import fused_attention_stablehlo

PATH = Path(__file__).resolve().parent.parent / "tests" / "goldens" / "cudnn_calls.hlo"
SHAPE = (4, 24, 12, 64)


def output_sum(query, key, value, lengths):
    """The sum of the attention's output."""
    output = jax.nn.dot_product_attention(
        query, key, value, query_seq_lengths=lengths, key_value_seq_lengths=lengths, implementation="cudnn"
    )
    return output.astype(jnp.float32).sum()


def main() -> None:
    """Writes the file."""
    fused_attention_stablehlo.check_cudnn_version = lambda: 91002  # there is none to ask
    fused_attention_stablehlo.check_compute_capability = lambda _: True
    matrices = jax.ShapeDtypeStruct(SHAPE, jnp.bfloat16)
    lengths = jax.ShapeDtypeStruct(SHAPE[:1], jnp.int32)
    traced = jax.jit(jax.grad(output_sum, (0, 1, 2))).trace(matrices, matrices, matrices, lengths)
    text = traced.lower(lowering_platforms=("cuda",)).as_text("hlo")
    calls = [line.strip() for line in text.splitlines() if "__cudnn$" in line]
    PATH.write_text("\n".join(re.sub(r"metadata=\{[^}]*\}, ", "", call) for call in calls) + "\n")


if __name__ == "__main__":
    main()
