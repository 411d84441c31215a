"""The step of `--step whole`, without GPUs: on several processes of JAX's CPU runtime, which has
collectives of its own, and compiled for eight H200."""

import json
import socket
import subprocess
import sys
import venv

import pytest
from harness.jobs import install, shell
from harness.mpi import ROOT

from benchmarks.gpu_sums import schedule

TINY = ("--size=tiny", "--batch_size=2", "--seq_length=64", "--precision=fp32")


def losses_and_norms(file, num_ranks, packages):
    """Those of each rank."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ranks = []
    for rank in range(num_ranks):
        numbers = map(str, (rank, num_ranks, port))
        command = [sys.executable, "-m", "benchmarks.jax_ranks", file, *numbers]
        variables = {"PYTHONPATH": str(packages), "PATH": "/usr/bin:/bin"}
        ranks.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=variables)
        )
    found = []
    for rank in ranks:
        printed, _ = rank.communicate(timeout=900)
        assert rank.returncode == 0
        lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
        found.append([(line["loss"], line["norm"]) for line in lines])
    return found


@pytest.mark.timeout(3600)
def test_ranks_with_sums_inside_train_as_one(tmp_path):
    """All have one batch. Each sum has as many equal numbers as ranks: 2 and 4, so it is exact."""
    install("jax", into=tmp_path / "jax")
    one = tmp_path / "one"
    shell(sys.executable, "-m", "benchmarks.gpu_compile", *TINY, f"--output_file={one}")
    (alone,) = losses_and_norms(f"{one}.mlir", 1, tmp_path / "jax")
    assert alone[-1] < alone[0]
    for num_ranks in (2, 4):
        file = tmp_path / f"step-{num_ranks}"
        flags = *TINY, f"--ranks={num_ranks}", f"--output_file={file}"
        shell(sys.executable, "-m", "benchmarks.gpu_sums", *flags)
        for of_rank in losses_and_norms(f"{file}.mlir", num_ranks, tmp_path / "jax"):
            assert of_rank == [pytest.approx(step, rel=1e-6) for step in alone]


@pytest.mark.timeout(3600)
def test_sums_begin_while_gradients_are_computed(tmp_path):
    """Compiled for eight H200 by JAX's XLA (`jax[cuda12]`, 5.4 GB)."""
    venv.create(tmp_path / "jax", with_pip=True)
    python = tmp_path / "jax/bin/python"
    shell(python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "jax[cuda12]", wait_s=1500)
    found = {}
    for sums in ("layers", "joined"):
        file = tmp_path / sums
        flags = f"--jax_python={python}", f"--sums={sums}", f"--output_file={file}"
        shell(sys.executable, "-m", "benchmarks.gpu_sums", *flags, wait_s=1500)
        found[sums] = schedule(file.with_suffix(".hlo").read_text(), 460e9, 8)
    layers, joined = found["layers"], found["joined"]
    assert (len(layers.sums), len(joined.sums)) == (14, 1)  # 12 layers, the rest, the loss
    assert layers.sums[0].start_s < layers.step_s / 2
    assert layers.exposed_s < joined.exposed_s / 4
