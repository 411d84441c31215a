"""Paths, the environment of programs that tests start, and the mpirun command that starts one on several ranks."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from distributed.launch import parse_args
from distributed.mpirun import build_command, find_mpi

ROOT = Path(__file__).resolve().parents[2]
# What the programs' libraries read when they are imported; they compute on the CPU, whose bits we compare.
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    "KERAS_BACKEND": "tensorflow",
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TRANSFORMERS_VERBOSITY": "error",
}


def command_of(np: int, argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> list[str]:
    """The command line that starts `argv` on `np` ranks of this machine."""
    return build_command(find_mpi(), parse_args([f"-np={np}", "--", *argv]), environment)
