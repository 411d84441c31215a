"""`bert-corpus` as a program that `run_timed` times."""

import importlib
from collections.abc import Callable, Sequence
from functools import partial

# Modules that a build imports while it works. The programs it is compared with import everything at the start.
IMPORTED_LATER = ("bert.corpus.build", "bert.weights", "distributed.world", "numpy.random", "pyarrow.compute")


def prepare(arguments: Sequence[str]) -> Callable[[], object]:
    from transformers import BertTokenizerFast

    from tasks import corpus

    assert BertTokenizerFast is not None  # transformers imports a class on first use
    for name in IMPORTED_LATER:
        importlib.import_module(name)
    return partial(corpus.main, arguments)
