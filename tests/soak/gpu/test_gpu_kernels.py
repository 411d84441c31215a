"""Every operation of the programs' graphs has a kernel on GPUs."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.timeout(3600)
def test_gpus_have_a_kernel_for_every_operation(tmp_path):
    """With TensorFlow's GPU wheel, without CUDA, 2 GB, in a folder that goes before the installed packages."""
    package = importlib.metadata.packages_distributions()["tensorflow"][0]
    wheel = f"tensorflow=={importlib.metadata.version(package)}"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-cache-dir", f"--target={tmp_path}"]
    subprocess.run([*install, wheel], check=True, timeout=1200)
    path = os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "tests", ROOT / "tests/soak/gpu")))
    environment = os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-m", "gpu_kernels"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(" functions, 0 operations without a kernel on GPUs")
