"""Every operation of the programs' graphs has a kernel on GPUs, and the host waits for none of their results."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = ROOT / "tests/soak/gpu/gpu_kernels.py"
# A graph with an operation that once cost the attention of every layer a way to the host and back.
WITH_SPLIT = """
import gpu_kernels
import tensorflow as tf

findings = gpu_kernels.Findings()
function = tf.function(lambda x: tf.split(x, [1, 2])).get_concrete_function(tf.TensorSpec([3], tf.int8))
findings.add(function.graph)
print(findings.no_kernel)
"""

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def gpu_wheel(tmp_path_factory):
    """A folder with TensorFlow's GPU wheel, without CUDA, about 2 GB. It goes before the installed packages."""
    folder = tmp_path_factory.mktemp("gpu_wheel")
    package = importlib.metadata.packages_distributions()["tensorflow"][0]
    wheel = f"tensorflow=={importlib.metadata.version(package)}"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-cache-dir", f"--target={folder}"]
    try:
        subprocess.run([*install, wheel], check=True, timeout=1200)
        yield folder
    finally:
        shutil.rmtree(folder)


def audit(gpu_wheel: Path, *arguments: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join(map(str, (gpu_wheel, ROOT, ROOT / "tests", PROGRAM.parent)))
    environment = os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=1500
    )


def test_gpus_have_a_kernel_for_every_operation_and_the_host_waits_for_none(gpu_wheel):
    done = audit(gpu_wheel, str(PROGRAM))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(" functions, 0 of them not for GPUs")


def test_an_operation_without_a_kernel_is_found(gpu_wheel):
    done = audit(gpu_wheel, "-c", WITH_SPLIT)
    assert done.returncode == 0, done.stderr
    assert "SplitV" in done.stdout
