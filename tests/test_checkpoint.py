"""Checkpoints are whole or not there, and any number of ranks goes on from them.

tests/programs/checkpoints.py is run three times over one folder: on one rank until SIGUSR1 and then SIGKILL in the
middle of a write, on two ranks until SIGUSR1 to one of them, and on one rank to the end.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from mpi import Done, alone, mpirun

SMALL_DISK_BYTES = 128 * 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def first(folder: Path) -> Done:
    return alone("checkpoints.py", "first", folder)


@pytest.fixture(scope="module")
def second(folder: Path, first: Done) -> Done:
    return mpirun(2, "checkpoints.py", "second", folder)


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A file system that is soon full, or "" where we may not mount one (a limit on file sizes must do)."""
    at = tmp_path_factory.mktemp("small")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "tmpfs", str(at)]
    may = os.geteuid() == 0 and shutil.which("mount") is not None
    if not may or subprocess.run(mount, capture_output=True).returncode != 0:
        yield ""
        return
    yield str(at)
    subprocess.run(["umount", str(at)], check=True)


def state(folder: Path, step: int) -> dict:
    return json.loads((folder / "run" / "checkpoints" / f"step-{step:08d}" / "state.json").read_text())


def test_one_rank_stops_at_step_7_and_is_killed_in_a_later_write(folder: Path, first: Done) -> None:
    assert first.status == -signal.SIGKILL, first
    assert "stopped by SIGUSR1 after step 7 of 20, saved" in first.stderr, first
    assert state(folder, 7)["position"] == 7 * 14
    assert not (folder / "killed" / "checkpoints" / "step-00000003").exists()


def test_two_ranks_go_on_and_stop_though_one_of_them_got_the_signal(folder: Path, second: Done) -> None:
    assert second.status == 75, second
    assert second.stderr.count("stopped by SIGUSR1 after step 14 of 20, saved") == 1, second
    assert "Traceback" not in second.stderr, second
    assert state(folder, 14)["position"] == 14 * 14
    logged = [json.loads(line)["step"] for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert logged == list(range(1, 15))


def test_one_rank_ends_it_and_no_damage_goes_unnoticed(folder: Path, second: Done, small_disk: str) -> None:
    assert second.status == 75
    assert alone("checkpoints.py", "third", folder, small_disk).json() == {"step": 20}
    assert state(folder, 20)["global_batch_size"] == 14
