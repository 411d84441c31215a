"""Every operation of the programs' graphs has a kernel on GPUs, and the host waits for none of their results.

TensorFlow's registry of kernels shows it without a GPU (tests/programs/gpu_kernels.py).
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tests/programs/gpu_kernels.py"
# bert.model with the attention's draws split, as they once were.
WITH_SPLIT = """
import sys
sys.path.insert(0, {folder!r})
import gpu_kernels
import tensorflow as tf
from bert import model

def group_draws(draws, group):
    first, last = group.draws
    sizes = tf.concat([first, last - first, tf.size(draws)[None] - last], 0)
    return tf.reshape(tf.split(draws, sizes)[1], group.scores_shape)

model.group_draws = group_draws
gpu_kernels.main(["--only=bert-squad --precision=bf16 --xla=off --packing=off"])
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def gpu_wheel(tmp_path_factory) -> Iterator[str]:
    """A folder with TensorFlow's GPU wheel, without CUDA, about 2 GB. It goes before the installed packages."""
    folder, version = tmp_path_factory.mktemp("gpu_wheel"), importlib.metadata.version(tensorflow_package())
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-cache-dir", f"--target={folder}"]
    try:
        subprocess.run([*install, f"tensorflow=={version}"], check=True, timeout=1200)
        yield str(folder)
    finally:
        shutil.rmtree(folder)


def tensorflow_package() -> str:
    """The package that TensorFlow was installed from."""
    return importlib.metadata.packages_distributions()["tensorflow"][0]


def audit(gpu_wheel: str, *arguments: str) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": f"{gpu_wheel}{os.pathsep}{ROOT}", "CUDA_VISIBLE_DEVICES": "-1"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=1200, check=False
    )


def test_gpus_have_a_kernel_for_every_operation_and_the_host_waits_for_none(gpu_wheel):
    done = audit(gpu_wheel, str(PROGRAM))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(" functions, 0 of them not for GPUs")
    for program in ("squad", "classifier labels", "classifier numbers", "pretraining", "features"):
        assert f"bert-{program} --precision=fp16" in done.stdout


def test_an_operation_without_a_kernel_is_named(gpu_wheel):
    done = audit(gpu_wheel, "-c", WITH_SPLIT.format(folder=str(PROGRAM.parent)))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "no kernel        1 SplitV, int32, int8, GPU" in done.stdout
