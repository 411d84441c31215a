"""The checkout, and the environment of programs that tests start."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What the programs' libraries read when they are imported; they compute on the CPU, whose bits we
# compare.
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    "KERAS_BACKEND": "tensorflow",
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TRANSFORMERS_VERBOSITY": "error",
}
