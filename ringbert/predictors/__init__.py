"""Prediction from Python: `QuestionAnswering`, `Classifier`, `Tagger` and `Features` of `ringbert`.

    import ringbert
    answer = ringbert.QuestionAnswering("squad_output")("Who wrote it?", "Ada wrote it in 1843.")

They join no ranks, so they also work in a notebook, and in one process of an MPI job.
"""

import sys

from distributed.devices import imported_tensorflow
from ringbase.errors import InputError
from tasks.runs.environment import set_environment

if "keras" not in sys.modules:
    set_environment()
imported_tensorflow()  # before anything else here needs it

import keras  # noqa: E402

if keras.backend.backend() != "tensorflow":
    raise InputError(
        f"Keras runs on {keras.backend.backend()} in this process: set the environment variable "
        "KERAS_BACKEND=tensorflow before Keras is imported"
    )

from ringbert.predictors.base import TaskPredictor  # noqa: E402
from ringbert.predictors.question_answering import Answer, QuestionAnswering  # noqa: E402
from ringbert.predictors.texts import Classifier, Entity, Prediction, Tagger  # noqa: E402
from ringbert.predictors.vectors import Embedder, Features, TextFeatures  # noqa: E402
from tasks.export.program import export  # noqa: E402
