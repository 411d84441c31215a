"""`bert-corpus` as a program that `run_timed` times."""

import importlib
from collections.abc import Callable, Sequence
from functools import partial

# Modules that a build imports while it works. The programs it is compared with import everything at the start.
IMPORTED_LATER = ("tasks.corpus.program", "numpy.random")


def prepare(arguments: Sequence[str]) -> Callable[[], object]:
    from transformers import BertTokenizerFast

    from tasks.corpus.__main__ import main

    assert BertTokenizerFast is not None  # transformers imports a class on first use
    for name in IMPORTED_LATER:
        importlib.import_module(name)
    return partial(main, arguments)
