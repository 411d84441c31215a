"""What a result depends on besides its flags: versions, machine, commit."""

import contextlib
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import ringbase

PACKAGES = ("ringbert", "tensorflow", "tensorflow-cpu", "keras", "numpy", "transformers", "tokenizers", "mpi4py",
            "datasets")  # fmt: skip


def versions() -> dict[str, str]:
    """The installed versions of the packages that a result depends on."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def git_commit() -> str | None:
    """The commit of RingBERT's own checkout; None if it is installed otherwise.

    It is not asked of the folder where the user works: a downloaded folder's `.git/config` can name programs that
    git would run.
    """
    checkout = Path(ringbase.__file__).parent.parent
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(checkout), "describe", "--always", "--dirty"]
    if (checkout / ".git").exists():
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip() or None
    return None


def environment() -> dict[str, object]:
    """Facts that a result depends on besides its flags: versions, machine, git commit of RingBERT."""
    return {
        "python": platform.python_version(),
        "packages": versions(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "git_commit": git_commit(),
        "command": sys.argv,
    }
