"""Finds the real data sets: the folder in RINGBERT_DATA, else what ../shared/data/unpack.sh
unpacks, once.

Tests that need them are skipped, with the reason, where they cannot be had.
"""

import fcntl
import functools
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from harness.mpi import HANGS_S

UNPACK = Path(__file__).resolve().parents[3] / "shared" / "data" / "unpack.sh"


@functools.cache
def _folder():
    """The folder of all data sets, and what a skipped test says about it."""
    if given := os.environ.get("RINGBERT_DATA"):
        return Path(given), f"RINGBERT_DATA is {given}"
    folder = Path.home() / ".cache" / "ringbert-data"
    if not UNPACK.is_file():
        return (
            folder,
            "public data, not part of this repository; RINGBERT_DATA names a folder with it",
        )
    with (Path(tempfile.gettempdir()) / "ringbert-real-data.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tests run in several processes
        done = subprocess.run(
            ["bash", UNPACK, "--model"], capture_output=True, text=True, timeout=HANGS_S
        )
    # Without a network the data sets are there and the model is not.
    return folder, f"unpack.sh --model: exit status {done.returncode} {done.stderr[-200:]}"


def real(name):
    """The file or folder `name` of the real data; skips the test when it is absent."""
    folder, reason = _folder()
    if not (folder / name).exists():
        pytest.skip(f"{name} is not there: {reason}")
    return folder / name
