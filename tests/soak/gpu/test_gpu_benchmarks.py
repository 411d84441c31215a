"""What runs on a new GPU machine, as far as it runs without one: counting bytes and FLOP.

`goldens/roofline.hlo` is what XLA made for an H200 (JAX 0.10.2, `benchmarks/jax_compile.py`) of

    y = x @ w                    bfloat16 [64, 128] by [128, 256], in four parts that are summed by the next kernel
    z = tanh(y + b)              float32 [64, 256]
    z[:, :64] * 2, z.sum(0), table[ids] + 1, with a table [1000, 32] and 64 ids
"""

from benchmarks.gpu_roofline import kernels


def test_bytes_and_flop_of_compiled_code(goldens):
    parts = 4 * 64 * 256 * 4
    found = kernels((goldens / "roofline.hlo").read_text())
    assert {kernel.name: (kernel.bytes_moved, kernel.flops) for kernel in found} == {
        "gemm_fusion_dot": (64 * 128 * 2 + 128 * 256 * 2 + parts, 2 * 64 * 128 * 256),
        "loop_tanh_fusion": (parts + 256 * 4 + 64 * 256 * 4, 0),  # it sums the parts
        "loop_convert_fusion": (64 * 64 * 4 + 64 * 64 * 2, 0),  # only the slice is read
        "input_reduce_fusion": (64 * 256 * 4 + 256 * 4, 0),
        "loop_add_fusion": (64 * 32 * 4 + 64 * 4 + 64 * 32 * 4, 0),  # 64 rows of the table, and the ids
    }
