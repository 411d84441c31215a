"""The programs' outsides: what importing them pulls in, out of memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"tensorflow", "keras", "mpi4py", "transformers", "datasets", "matplotlib"}


def python(*arguments: str, path: str = str(ROOT), cwd: Path = ROOT) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=cwd, capture_output=True, text=True, timeout=200
    )


PROGRAMS = (
    "squad",
    "classifier",
    "pretraining",
    "features",
    "corpus",
    "bench",
    "doctor",
    "report",
    "ask",
    "export",
)


@pytest.mark.parametrize("module", [*(f"tasks.{name}" for name in PROGRAMS), "distributed.launch"])
def test_help_needs_no_heavy_import(module):
    done = python("-c", f"import sys, {module}; print(*sys.modules)")
    assert not HEAVY & set(done.stdout.split()), done.stderr
    helped = python("-m", module, "--help")
    assert helped.returncode == 0
    assert "usage: bert-" in helped.stdout


@pytest.mark.slow
@pytest.mark.parametrize("is_for_users", [False, True])
def test_programs_do_without_what_keras_may_import(is_for_users):
    """They start faster, and can import it later. A user's process has all of it."""
    code = f"""
import importlib.util, sys
from tasks.job import OPTIONAL_IN_KERAS, import_tensorflow
import_tensorflow(is_for_users={is_for_users})
print(sorted(set(OPTIONAL_IN_KERAS) & sys.modules.keys()))
print(sorted(filter(importlib.util.find_spec, OPTIONAL_IN_KERAS)))
import sklearn.metrics
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    imported, installed = done.stdout.splitlines()
    assert "sklearn" in installed
    assert imported == (installed if is_for_users else "[]")


def test_without_tensorflow_one_line_names_the_extras(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ModuleNotFoundError(\"No module named 'tensorflow'\")\n")
    flags = (f"--output_dir={tmp_path}/x", "--do_predict", "--predict_file=y")
    done = python("-m", "tasks.squad", *flags, path=f"{tmp_path}:{ROOT}")
    assert done.returncode == 1
    assert done.stderr.startswith("bert-squad: error: TensorFlow is not installed")
    assert "pip install '.[cpu]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_out_of_memory_names_the_flags():
    import numpy as np
    import tensorflow as tf

    from distributed.gradient import out_of_memory_is_input_error
    from ringbert.errors import InputError
    from tasks.fit import MEMORY_ADVICE

    batch = {"input_ids": np.zeros((32, 384), np.int32)}
    message = r"shape \(32, 384\): lower --train_batch_size .*, or raise --gradient_accumulation_steps"
    with pytest.raises(InputError, match=message), out_of_memory_is_input_error(batch, MEMORY_ADVICE):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
