"""Finds the real data sets: the folder in RINGBERT_DATA, else what ../shared/data/unpack.sh unpacks, once.

Tests that need them are skipped, with the reason, where they cannot be had.
"""

import fcntl
import functools
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

UNPACK = Path(__file__).resolve().parents[3] / "shared" / "data" / "unpack.sh"


@functools.cache
def _folder() -> tuple[Path | None, str]:
    """The folder of all data sets, or None and the reason."""
    if given := os.environ.get("RINGBERT_DATA"):
        return Path(given), f"RINGBERT_DATA is {given}"
    if not UNPACK.is_file():
        return None, "no real data: RINGBERT_DATA is not set and ../shared/data/unpack.sh does not exist"
    with (Path(tempfile.gettempdir()) / "ringbert-real-data.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tests run in several processes
        done = subprocess.run(
            ["bash", UNPACK, "--model"], capture_output=True, text=True, timeout=280, check=False
        )
    if done.returncode:  # without a network the data sets are there and the model is not
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return Path.home() / ".cache" / "ringbert-data", f"unpack.sh --model failed: {last}"
    return Path(done.stdout.split("\n")[-2]), "unpacked by ../shared/data/unpack.sh"


def real(name: str) -> Path:
    """The file or folder `name` of the real data; skips the test when it is absent."""
    folder, reason = _folder()
    if folder is None or not (folder / name).exists():
        pytest.skip(f"{name} is not there: {reason}")
    return folder / name
