"""RingBERT: BERT pretraining and fine-tuning across GPUs and machines, on TensorFlow and Keras 3,
over MPI.

The front door for Python and notebooks: the programs, and the models that they have trained, by the
names in `__all__`, which are loaded when they are first used. docs/python.md describes them.
Importing it loads neither TensorFlow nor MPI.
"""

import importlib
from typing import TYPE_CHECKING

from ringbase import __version__
from ringbase.notices import hide_on_import

if TYPE_CHECKING:
    from ringbase.errors import InputError
    from ringbert.job import Script
    from ringbert.jobs import Classification, Embedding, Pretraining, Squad, Tagging
    from ringbert.launching import Result, launch
    from ringbert.predictors import (
        Answer,
        Classifier,
        Embedder,
        Entity,
        Features,
        Prediction,
        QuestionAnswering,
        Tagger,
        TaskPredictor,
        TextFeatures,
        export,
    )
    from ringbert.reporting import report
    from ringbert.searching.results import Found, search

__all__ = [
    "Answer",
    "Classification",
    "Classifier",
    "Embedder",
    "Embedding",
    "Entity",
    "Features",
    "Found",
    "InputError",
    "Prediction",
    "Pretraining",
    "QuestionAnswering",
    "Result",
    "Script",
    "Squad",
    "Tagger",
    "Tagging",
    "TaskPredictor",
    "TextFeatures",
    "__version__",
    "export",
    "launch",
    "report",
    "search",
]
# where they are, the cheapest first
_MODULES = (
    "ringbase.errors",
    "ringbert.jobs",
    "ringbert.job",
    "ringbert.launching",
    "ringbert.reporting",
    "ringbert.searching.results",
    "ringbert.predictors",
)

# TensorFlow's, whoever imports it later in this process
hide_on_import()


def __getattr__(name: str) -> object:
    for module in map(importlib.import_module, _MODULES if name in __all__ else ()):
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module 'ringbert' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
