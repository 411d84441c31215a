"""RingBERT: BERT pretraining and fine-tuning across GPUs and machines, on TensorFlow and Keras 3, over MPI.

Importing it loads neither TensorFlow nor MPI. `bert`, `distributed` and `tasks` are built on its modules: errors,
atomic files, hashes, ragged arrays and settings. They need only the standard library and NumPy.

From Python and from notebooks, the programs and the models that they have trained are used by the names in
`__all__`, which are loaded when they are first used. docs/python.md describes them.
"""

import importlib
import importlib.metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringbert.errors import InputError
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
    "launch",
]

try:
    __version__ = importlib.metadata.version("ringbert")
except importlib.metadata.PackageNotFoundError:
    __version__ = "unknown (not installed)"

_MODULES = {
    "InputError": "ringbert.errors",
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
