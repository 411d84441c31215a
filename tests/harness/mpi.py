"""The checkout, and the environment and time limit of programs that tests start."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A program that takes so long hangs: on a machine with nothing else to do none takes 30 s.
HANGS_S = 300
# What the programs' libraries read when they are imported; they compute on the CPU, whose bits we
# compare.
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    "KERAS_BACKEND": "tensorflow",
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TRANSFORMERS_VERBOSITY": "error",
}
