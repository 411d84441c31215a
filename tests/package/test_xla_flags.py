"""The flags that XLA gets: those of the installed TensorFlow, and never two of one name."""

import importlib.metadata
import os
import subprocess
import sys

import pytest

from bert import set_xla_flags
from distributed.launcher import share_of_cores
from tasks.runs.environment import tuning_folder

PARALLEL = "--xla_gpu_force_compilation_parallelism"
COMPILES = """
import tensorflow as tf
print(tf.function(lambda x: 2 * x, jit_compile=True)(tf.constant(21)).numpy())"""


@pytest.fixture
def flags(monkeypatch):
    """What XLA_FLAGS says after it said something, as a list."""

    def flags(given, *arguments):
        monkeypatch.setenv("XLA_FLAGS", given)
        set_xla_flags(*arguments)
        return os.environ["XLA_FLAGS"].split()

    return flags


def test_what_the_user_says_stays(flags, tmp_path):
    all_of_ours = flags("", 4, tmp_path)
    assert f"{PARALLEL}=4" in all_of_ours
    assert f"--xla_gpu_per_fusion_autotune_cache_dir={tmp_path}" in all_of_ours
    assert len(all_of_ours) == len(flags("")) + 3
    own = flags(f"{PARALLEL}=2 --xla_gpu_autotune_level=0", 4, tmp_path)
    assert own[:2] == [f"{PARALLEL}=2", "--xla_gpu_autotune_level=0"]
    assert sum(flag.startswith(PARALLEL) for flag in own) == 1
    assert flags("flags.txt", 4, tmp_path) == ["flags.txt"]  # a file that holds them


def test_a_version_that_nobody_has_tried_gets_no_flags_for_gpus(flags, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.99.1")
    assert flags("", 4, tmp_path) == flags("")


@pytest.mark.slow
def test_the_installed_xla_knows_them(flags, tmp_path):
    """It ends the process for a flag that it does not know."""
    known = " ".join(flags("", 2, tmp_path))
    for given, is_known in ((known, True), (f"{known} --xla_gpu_unheard_of=1", False)):
        environment = {**os.environ, "XLA_FLAGS": given}
        command = [sys.executable, "-c", COMPILES]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert (done.returncode == 0) == is_known, done.stderr
        assert ("42" in done.stdout) == is_known


def test_the_cores_of_a_machine_are_divided_among_its_ranks(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert share_of_cores() == 16
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "8")
    assert share_of_cores() == 2
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "64")
    assert share_of_cores() == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 4, 5})  # bound by the launcher
    assert share_of_cores() == 3


def test_a_tuning_folder_is_the_user_s_alone_and_of_one_setting(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGBERT_CACHE", str(tmp_path))
    folder = tuning_folder()
    assert folder == tuning_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=0")
    assert tuning_folder() != folder
    monkeypatch.delenv("XLA_FLAGS")
    folder = tuning_folder()
    folder.chmod(0o777)
    assert tuning_folder() is None
    monkeypatch.setenv("RINGBERT_CACHE", "/proc/nothing")
    assert tuning_folder() is None
