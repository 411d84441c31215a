"""What runs on GPUs, as far as it can be known without one: kernels for every operation, bytes and FLOP."""

import importlib.metadata
import sys

import pytest
from harness.jobs import shell
from harness.mpi import ENVIRONMENT, ROOT

from benchmarks.gpu_roofline import kernels


@pytest.mark.timeout(3600)
def test_gpus_have_a_kernel_for_every_operation(tmp_path):
    """With TensorFlow's GPU wheel, without CUDA, 2 GB, in a folder that goes before the installed packages."""
    package = importlib.metadata.packages_distributions()["tensorflow"][0]
    wheel = f"tensorflow=={importlib.metadata.version(package)}"
    install = ("-m", "pip", "install", "-q", "--no-deps", "--no-cache-dir", f"--target={tmp_path}")
    shell(sys.executable, *install, wheel, wait_s=1200)
    path = f"{tmp_path}:{ENVIRONMENT['PYTHONPATH']}"
    done = shell(sys.executable, ROOT / "tests/soak/gpu/gpu_kernels.py", PYTHONPATH=path, wait_s=1500)
    assert done.stdout.splitlines()[-1].endswith(" functions, 0 operations without a kernel on GPUs")


def test_bytes_and_flop_of_compiled_code(goldens):
    """`goldens/roofline.hlo` is what XLA made for an H200 (JAX 0.10.2, `benchmarks/jax_compile.py`) of

    y = x @ w                    bfloat16 [64, 128] by [128, 256], in four parts that are summed by the next kernel
    z = tanh(y + b)              float32 [64, 256]
    z[:, :64] * 2, z.sum(0), table[ids] + 1, with a table [1000, 32] and 64 ids
    """
    parts = 4 * 64 * 256 * 4
    found = kernels((goldens / "roofline.hlo").read_text())
    assert {kernel.name: (kernel.bytes_moved, kernel.flops) for kernel in found} == {
        "gemm_fusion_dot": (64 * 128 * 2 + 128 * 256 * 2 + parts, 2 * 64 * 128 * 256),
        "loop_tanh_fusion": (parts + 256 * 4 + 64 * 256 * 4, 0),  # it sums the parts
        "loop_convert_fusion": (64 * 64 * 4 + 64 * 64 * 2, 0),  # only the slice is read
        "input_reduce_fusion": (64 * 256 * 4 + 256 * 4, 0),
        "loop_add_fusion": (64 * 32 * 4 + 64 * 4 + 64 * 32 * 4, 0),  # 64 rows of the table, and the ids
    }
