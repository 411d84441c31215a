"""What runs on a new GPU machine, as far as it runs without one: counting bytes and FLOP, and keeping findings.

`goldens/roofline.hlo` is what XLA made for an H200 (JAX 0.10.2, `benchmarks/jax_compile.py`) of

    y = x @ w                    bfloat16 [64, 128] by [128, 256], in four parts that are summed by the next kernel
    z = tanh(y + b)              float32 [64, 256]
    z[:, :64] * 2, z.sum(0), table[ids] + 1, with a table [1000, 32] and 64 ids
"""

import sys
from pathlib import Path

import pytest
from benchmarks.gpu_first.runner import Journal, Step, run_all

from benchmarks.gpu_roofline import H200, Kernel, kernels

ROOT = Path(__file__).resolve().parents[3]


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


def test_a_kernel_takes_the_longer_of_its_two_times():
    for moved, flops, dtype, seconds in (
        (4_800_000_000, 0, "", 1e-3),
        (0, 989_000_000_000, "bf16", 1e-3),
        (9_600_000_000, 989_000_000_000, "f16", 2e-3),
    ):
        assert Kernel("name.3", "product", "bf16[1]", moved, flops, dtype).seconds(H200) == pytest.approx(seconds)


def test_findings_are_kept_when_steps_fail_or_hang(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    codes = {
        "broken": "say('b', 'before the end'); raise SystemExit('x')",
        "hangs": "import time; time.sleep(100)",
    }
    say = "from benchmarks.gpu_first.findings import say\n"
    steps = [Step(name, [sys.executable, "-c", say + code], 10) for name, code in codes.items()]
    assert not run_all(steps, tmp_path, minutes=2)
    journal = Journal(tmp_path)
    assert [entry["text"] for entry in journal.entries if "text" in entry] == ["before the end"]
    assert [entry["status"] for entry in journal.entries if "status" in entry] == [1, None]
