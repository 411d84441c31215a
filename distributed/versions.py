"""What a result depends on besides its flags: versions, machine, commit."""

import contextlib
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import ringbase
from distributed import launcher

PACKAGES = (
    "ringbert",
    "tensorflow",
    "tensorflow-cpu",
    "keras",
    "numpy",
    "transformers",
    "tokenizers",
    "mpi4py",
    "datasets",
)


def versions() -> dict[str, str]:
    """The installed versions of the packages that a result depends on."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def environment() -> dict[str, object]:
    """The facts for run.json; the commit is that of RingBERT's own checkout, if there is one."""
    launched_by = os.environ.get(launcher.COMMAND)
    if not launched_by and "SLURM_JOB_ID" in os.environ:
        launched_by = f"srun, job {os.environ['SLURM_JOB_ID']}"
    checkout = Path(ringbase.__file__).parent.parent
    described = ""
    # Not of the folder where the user works: a downloaded .git/config can name programs that git
    # would run.
    command = ["git", "-c", "core.fsmonitor=false", "describe", "--always", "--dirty"]
    if (checkout / ".git").exists():
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            described = subprocess.run(
                command, cwd=checkout, capture_output=True, text=True, timeout=10
            ).stdout
    return {
        "python": platform.python_version(),
        "packages": versions(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "git_commit": described.strip() or None,
        "command": sys.argv,
        "launched_by": launched_by or None,
    }
