"""XLA for GPUs takes the calls of cuDNN's attention that TensorFlow exports: compiled for an H200
without one, with `jax[cuda12]` (5.4 GB). cuDNN itself is asked only on a GPU."""

import json
import re
import sys
import venv

import pytest
from harness.jobs import shell


@pytest.mark.timeout(3600)
def test_a_step_with_cudnns_attention_compiles_for_an_h200(tmp_path):
    venv.create(tmp_path / "jax", with_pip=True)
    python = tmp_path / "jax/bin/python"
    pip = "-m", "pip", "install", "--quiet", "--no-cache-dir"
    shell(python, *pip, "jax[cuda12]", wait_s=1500)
    program = "benchmarks.gpu_compile", f"--jax_python={python}", "--precision=bf16"
    # long enough for blocks of local layers: 8 windows of 64 places
    shape = "--size=modernbert-base", "--batch_size=2", "--seq_length=1024"
    for attention in ("own", "cudnn"):
        file = f"--output_file={tmp_path}/{attention}"
        shell(sys.executable, "-m", *program, *shape, f"--attention={attention}", file, wait_s=900)
    own, cudnn = ((tmp_path / f"{name}.hlo").read_text() for name in ("own", "cudnn"))
    assert "__cudnn$fmha" not in own
    named = re.findall(r'custom_call_target="__cudnn\$fmha(\w+)"', cudnn)
    # 22 layers, every third of them global
    assert {name: named.count(name) for name in set(named)} == {
        "Softmax": 8,
        "SoftmaxBackward": 8,
        "ScaleBiasSoftmax": 14,
        "ScaleBiasSoftmaxBackward": 14,
    }
    calls = [line for line in cudnn.splitlines() if "__cudnn$fmha" in line]
    for call in calls:  # cuDNN reads strides from these layouts: all row-major
        layouts = re.findall(r"\w+\[\d+(?:,\d+){3}\]\{([\d,]+)", call.partition("custom-call(")[0])
        assert layouts
        assert set(layouts) == {"3,2,1,0"}
        assert "is_flash_attention" in call
    # [2, 12, 1024, 1024]: a matrix of scores
    assert "[2,12,1024,1024]" in own
    assert "[2,12,1024,1024]" not in re.sub(r"backend_config=\{.*", "", cudnn)
    of_own, of_cudnn = (
        json.loads((tmp_path / f"{name}.memory.json").read_text())["temporary"]
        for name in ("own", "cudnn")
    )
    assert of_cudnn < of_own
