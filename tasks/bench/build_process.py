"""`bert-corpus` as a program that `run_timed` times."""

import importlib
from collections.abc import Callable, Sequence
from functools import partial

# What a build imports on its way. Programs beside which it is measured import everything before they start.
IMPORTED_LATER = ("bert.corpus.build", "bert.weights", "distributed.world", "numpy.random", "pyarrow.compute")


def prepare(arguments: Sequence[str]) -> Callable[[], object]:
    from transformers import BertTokenizerFast

    from tasks import corpus

    assert BertTokenizerFast is not None  # transformers imports a class on first use
    for name in IMPORTED_LATER:
        importlib.import_module(name)
    return partial(corpus.main, arguments)
