"""`bert-corpus` as a program that `run_timed` times."""

import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

# Modules that a build imports while it works. The programs it is compared with import everything at the start.
IMPORTED_LATER = ("bert.corpus.build", "bert.weights", "distributed.world", "numpy.random", "pyarrow.compute")


def prepare(arguments: Sequence[str]) -> Callable[[], object]:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    for name in (*IMPORTED_LATER, "transformers"):
        importlib.import_module(name)
    return partial(importlib.import_module("tasks.corpus.__main__").main, arguments)
