"""RingBERT: BERT pretraining and fine-tuning across GPUs and machines, on TensorFlow and Keras 3, over MPI.

The front door for Python and notebooks: the programs, and the models that they have trained, by the names in
`__all__`, which are loaded when they are first used. docs/python.md describes them. Importing it loads neither
TensorFlow nor MPI.
"""

import importlib
from typing import TYPE_CHECKING

from ringbase import __version__

if TYPE_CHECKING:
    from ringbase.errors import InputError
    from tasks.launching import Classification, Pretraining, Result, Squad, launch
    from tasks.predictors import Answer, Classifier, Features, Prediction, QuestionAnswering, TextFeatures

__all__ = [
    "Answer",
    "Classification",
    "Classifier",
    "Features",
    "InputError",
    "Prediction",
    "Pretraining",
    "QuestionAnswering",
    "Result",
    "Squad",
    "TextFeatures",
    "__version__",
    "launch",
]

_MODULES = {
    "InputError": "ringbase.errors",
    **dict.fromkeys(("Classification", "Pretraining", "Result", "Squad", "launch"), "tasks.launching"),
    **dict.fromkeys(("Classifier", "Features", "QuestionAnswering"), "tasks.predictors"),
    **dict.fromkeys(("Answer", "Prediction", "TextFeatures"), "tasks.predictors"),
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'ringbert' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value  # found without this function from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
