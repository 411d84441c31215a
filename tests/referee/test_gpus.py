"""Which GPU a rank takes, and how exactly it multiplies, on machines that are made up
(harness/fake_gpus.py)."""

import threading
from pathlib import Path
from unittest import mock

import keras
import pytest
import tensorflow as tf
from harness.fake_gpus import machine

from distributed.devices import DeviceSettings
from distributed.world import World
from tasks.runs.execute.job import set_precision

ONE, TWO = ("0000:01:00.0", "0000:02:00.0")
TAKEN = {"visible": [ONE], "grows": [ONE]}  # the first one, and no more memory than it needs


def joined(gpus, **settings):
    # which joining replaces
    hook = mock.patch.object(threading, "excepthook", threading.excepthook)
    with (
        hook,
        machine(gpus) as done,
        World.join(DeviceSettings(**settings), "prog", is_script=True) as world,
    ):
        return world.device, done


@pytest.mark.parametrize(
    ("gpus", "settings", "expected"),
    [
        ([ONE, TWO], {}, TAKEN),
        ([ONE], {"device": "gpu", "deterministic": True}, TAKEN | {"deterministic": True}),
        # its kernels are deterministic
        ([ONE], {"device": "cpu", "deterministic": True}, {"visible": []}),
        ([], {}, {"visible": []}),
    ],
)
def test_the_device_of_one_rank(gpus, settings, expected):
    device, done = joined(gpus, **settings)
    assert done == expected
    assert device.is_gpu == any("Fake" in note for note in device.notes) == bool(done["visible"])


@pytest.mark.parametrize(("device", "is_present"), [("auto", True), ("gpu", True), ("gpu", False)])
def test_a_gpu_that_cannot_be_used_is_an_error_and_not_a_cpu(
    device, is_present, capsys, monkeypatch
):
    # tests/jobs/test_places.py has real device files
    files = [Path("/dev/nvidia0")] if is_present else []
    glob = Path.glob
    monkeypatch.setattr(
        Path, "glob", lambda path, *of: files if str(path) == "/dev" else glob(path, *of)
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(SystemExit) as stop:
        joined([], device=device)
    assert stop.value.code == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert "--device cpu" in line
    assert ("/dev/nvidia0 (a CPU build)" in line) == is_present


@pytest.mark.parametrize(
    ("gpus", "precision", "flag", "tf32"),  # CPUs know no TF32: there it is as TensorFlow has it
    [
        (1, "fp32", False, False),
        (1, "fp32", True, True),
        (1, "bf16", False, True),
        (0, "fp32", False, True),
    ],
)
def test_float32_products_are_exact_on_gpus_unless_tf32_is_wanted(
    gpus, precision, flag, tf32, monkeypatch
):
    policy = keras.config.dtype_policy()
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [ONE] * gpus)
    try:
        note = set_precision(precision, flag)
        assert tf.config.experimental.tensor_float_32_execution_enabled() is tf32
    finally:
        keras.config.set_dtype_policy(policy)
        tf.config.experimental.enable_tensor_float_32_execution(before)
    assert (note is None, "in TF32" in (note or "")) == (not gpus, tf32 and gpus > 0)
