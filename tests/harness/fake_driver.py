"""Builds a libcuda.so.1 whose GPUs are those of an environment variable; see tests/fakes/libcuda.c."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "fakes" / "libcuda.c"
COMPILER = shutil.which("gcc") or shutil.which("cc")


def build(folder: Path, *flags: str) -> Path:
    """Compiles the driver into this folder and returns the folder."""
    assert COMPILER
    command = [COMPILER, "-shared", "-fPIC", *flags, str(SOURCE), "-o", str(folder / "libcuda.so.1")]
    subprocess.run(command, check=True)
    return folder


def environment(folder: Path, gpus: str, **others: str) -> Mapping[str, str]:
    """What makes a process load the driver in `folder` and see these GPUs."""
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))
    return {"LD_LIBRARY_PATH": path, "FAKE_GPUS": gpus, "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", **others}
