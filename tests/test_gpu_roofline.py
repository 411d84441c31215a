"""Bytes and FLOP of kernels in HLO, compared with those counted by hand; predictions made of them.

`goldens/roofline.hlo` is what XLA made for an H200 (JAX 0.10.2, `benchmarks/jax_compile.py`) of

    y = x @ w                    bfloat16 [64, 128] by [128, 256], in four parts that are summed by the next kernel
    z = tanh(y + b)              float32 [64, 256]
    z[:, :64] * 2, z.sum(0), table[ids] + 1, with a table [1000, 32] and 64 ids

without metadata and configuration. `goldens/roofline_calls.hlo` is written by hand.
"""

from pathlib import Path

import pytest

from benchmarks import gpu_compile
from benchmarks.gpu_roofline import H200, Kernel, Prediction, kernels, predict

GOLDENS = Path(__file__).resolve().parent / "goldens"


def counted(name: str) -> dict[str, tuple[str, int, int]]:
    text = (GOLDENS / name).read_text()
    return {kernel.name: (kernel.kind, kernel.bytes_moved, kernel.flops) for kernel in kernels(text)}


def test_bytes_and_flop_of_compiled_code():
    parts = 4 * 64 * 256 * 4
    assert counted("roofline.hlo") == {
        "gemm_fusion_dot": ("product", 64 * 128 * 2 + 128 * 256 * 2 + parts, 2 * 64 * 128 * 256),
        "loop_tanh_fusion": ("reduction", parts + 256 * 4 + 64 * 256 * 4, 0),  # it sums the parts
        "loop_convert_fusion": ("loop", 64 * 64 * 4 + 64 * 64 * 2, 0),  # only the slice is read
        "input_reduce_fusion": ("reduction", 64 * 256 * 4 + 256 * 4, 0),
        "loop_add_fusion": ("loop", 64 * 32 * 4 + 64 * 4 + 64 * 32 * 4, 0),  # 64 rows of the table, and the ids
    }


def test_bytes_and_flop_of_library_calls_and_scatters():
    matrices = 2 * 24 * 4 * 8 * 2
    assert counted("roofline_calls.hlo") == {
        "view": ("loop", 3 * 8 * 4, 0),  # a slice of a bitcast
        # Two products of [24, 8] by [8, 24] for each of 2 rows and 4 heads.
        "call": ("attention", 4 * matrices + 2 * 2 * 4 + 2 * 4 * 24 * 4, 2 * 2 * (2 * 4 * 24 * 24 * 8)),
        "blas": ("product", 2 * 6 * 10 * 2 + 6 * 6 * 2, 2 * 6 * 6 * 10),
        # The rows that are added, their ids, and as many rows of the table, which are read and written.
        "new": ("scatter", 64 * 32 * 4 + 64 * 4 + 2 * 64 * 32 * 4, 0),
    }


def test_a_kernel_takes_the_longer_of_its_two_times():
    def kernel(bytes_moved: int, flops: int, dtype: str) -> Kernel:
        return Kernel("name.3", "product", "bf16[1]", bytes_moved, flops, dtype)

    each = [
        (kernel(4_800_000_000, 0, ""), 1e-3),
        (kernel(0, 989_000_000_000, "bf16"), 1e-3),
        (kernel(4_800_000_000, 134_000_000_000, "f32"), 2e-3),  # no TF32
        (kernel(9_600_000_000, 989_000_000_000, "f16"), 2e-3),
    ]
    for one, seconds in each:
        assert one.seconds(H200) == pytest.approx(seconds)
    together = Prediction([one for one, _ in each], H200)
    assert together.seconds == pytest.approx(6e-3)
    assert together.share_of_peak == pytest.approx(4 / 6)
    assert "the model's error is unknown until it is measured on a GPU" in str(together)


def test_text_that_is_no_module_is_refused():
    with pytest.raises(ValueError, match="no ENTRY computation"):
        predict("HloModule nothing\n")


def test_the_compiler_needs_the_other_python(tmp_path, capsys):
    for flags, message in (
        ([], "--jax_python must be given"),
        (["--jax_python=false", f"--hlo_dir={tmp_path}", "--size=0"], "--size must be tiny, minilm"),
    ):
        with pytest.raises(SystemExit) as stop:
            gpu_compile.main(flags)
        assert message in f"{stop.value.code} {capsys.readouterr().err}"
