"""Which GPU a rank takes, and how exactly it multiplies, on machines that are made up (harness/fake_gpus.py)."""

import threading
from pathlib import Path
from unittest import mock

import keras
import pytest
import tensorflow as tf
from harness.fake_gpus import Machine, installed

from distributed.devices import DeviceSettings
from distributed.world import World
from tasks.job import set_precision

ONE, TWO = "0000:01:00.0", "0000:02:00.0"


def joined(machine: Machine, **settings) -> World:
    hook = mock.patch.object(threading, "excepthook", threading.excepthook)  # which joining replaces
    with hook, installed(machine), World.join(DeviceSettings(**settings), "prog", is_script=True) as world:
        return world


@pytest.mark.parametrize("settings", [{}, {"device": "gpu", "deterministic": True}])
def test_one_rank_takes_the_first_gpu_and_no_more_memory_than_it_needs(settings):
    machine = Machine([ONE, TWO])
    world = joined(machine, **settings)
    assert world.device.is_gpu
    assert machine.seen.pop("deterministic", False) == ("deterministic" in settings)
    assert machine.seen == {"visible": [ONE], "grows": [ONE]}
    assert any("Fake" in note for note in world.device.notes)


@pytest.mark.parametrize(("gpus", "device"), [([ONE], "cpu"), ([], "auto")])
def test_a_cpu_hides_the_gpus(gpus, device):
    machine = Machine(gpus)
    assert not joined(machine, device=device, deterministic=True).device.is_gpu
    assert machine.seen == {"visible": []}  # and needs no other kernels to be deterministic


@pytest.mark.parametrize(("device", "is_present"), [("auto", True), ("gpu", True), ("gpu", False)])
def test_a_gpu_that_cannot_be_used_is_an_error_and_not_a_cpu(device, is_present, capsys, monkeypatch):
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: is_present if str(path) == "/dev/nvidia0" else exists(path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(SystemExit) as stop:
        joined(Machine([]), device=device)
    assert stop.value.code == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert "--device cpu" in line
    assert ("/dev/nvidia0" in line) == is_present


@pytest.mark.parametrize(
    ("gpus", "precision", "flag", "tf32"),
    [
        ([ONE], "fp32", False, False),
        ([ONE], "fp32", True, True),
        ([ONE], "bf16", False, True),
        ([], "fp32", False, True),
    ],
)  # CPUs know no TF32: there it is as TensorFlow has it
def test_float32_products_are_exact_on_gpus_unless_tf32_is_wanted(gpus, precision, flag, tf32, monkeypatch):
    policy, before = keras.config.dtype_policy(), tf.config.experimental.tensor_float_32_execution_enabled()
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: gpus)
    try:
        note = set_precision(precision, flag)
        assert tf.config.experimental.tensor_float_32_execution_enabled() is tf32
    finally:
        keras.config.set_dtype_policy(policy)
        tf.config.experimental.enable_tensor_float_32_execution(before)
    assert (note is not None) == bool(gpus)
    assert "TF32" in note if gpus and tf32 else not note or "--tf32" in note
