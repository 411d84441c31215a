"""Which GPU a rank takes, and how exactly it multiplies, on machines that are made up (harness/fake_gpus.py)."""

import threading
from unittest import mock

import keras
import pytest
import tensorflow as tf
from harness.fake_gpus import Machine, installed
from harness.mpi import mpirun

from distributed.devices import DeviceSettings, choose_gpu
from distributed.world import World
from ringbase.errors import InputError
from tasks.job import set_precision

ONE, TWO = "a/0000:01:00.0/9.0", "b/0000:02:00.0/9.0"
THREE = "c/0000:03:00.0/9.0"


def joined(machine: Machine, **settings) -> World:
    hook = mock.patch.object(threading, "excepthook", threading.excepthook)  # which joining replaces
    with hook, installed(machine), World.join(DeviceSettings(**settings), "prog", saves_on_signals=False) as world:
        return world


@pytest.mark.parametrize("device", ["auto", "gpu"])
def test_one_rank_takes_the_first_gpu_and_no_more_memory_than_it_needs(device):
    machine = Machine([ONE, TWO])
    world = joined(machine, device=device)
    assert world.device.is_gpu
    assert machine.seen == {"visible": [ONE], "grows": [ONE]}
    assert any("Fake" in note for note in world.device.notes)


@pytest.mark.parametrize(("gpus", "device"), [([ONE], "cpu"), ([], "auto"), ([], "cpu")])
def test_a_cpu_hides_the_gpus(gpus, device):
    machine = Machine(gpus)
    assert joined(machine, device=device, deterministic=True).device == "cpu"
    assert machine.seen == {"visible": []}  # and needs no other kernels to be deterministic


def test_deterministic_asks_tensorflow_for_it():
    machine = Machine([ONE])
    joined(machine, deterministic=True)
    assert machine.seen["deterministic"]


@pytest.mark.parametrize(
    ("machine", "device"),
    [
        (Machine([ONE], error=("cuInit", 999)), "auto"),
        (Machine([ONE], error=("cuDeviceGetCount", 46)), "auto"),
        (Machine([ONE], seen_by_tensorflow=[]), "auto"),
        (Machine([ONE, TWO], seen_by_tensorflow=[ONE]), "auto"),
        (Machine([]), "gpu"),
        (Machine(["a/0000:01:00.0/5.2"]), "auto"),  # TensorFlow has no kernels for it
    ],
)
def test_a_gpu_that_cannot_be_used_is_an_error_and_not_a_cpu(machine, device, capsys):
    with pytest.raises(SystemExit) as stop:
        joined(machine, device=device)
    assert stop.value.code == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert "--device cpu" in line


@pytest.mark.slow
def test_ranks_that_see_the_gpus_in_other_orders_take_one_each():
    seen = [f"{ONE},{TWO},{THREE}", f"{THREE},{TWO},{ONE}", TWO]
    result = mpirun(3, "gpus.py", *seen, timeout=240).json()
    assert sorted(result) == [["0000:01:00.0"], ["0000:02:00.0"], ["0000:03:00.0"]]


def test_more_ranks_than_gpus_must_say_that_they_share():
    with pytest.raises(InputError, match="--share_gpus"):
        choose_gpu([["a"], ["a"]], 1)
    assert choose_gpu([["a"], ["a"]], 1, share_gpus=True) == 0


@pytest.mark.parametrize(
    ("gpus", "precision", "flag", "tf32"),
    [
        ([ONE], "fp32", False, False),
        ([ONE], "fp32", True, True),
        ([ONE], "bf16", False, True),
        ([ONE], "fp16", False, True),
        ([], "fp32", False, True),  # as TensorFlow has it; CPUs know no TF32
    ],
)
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
