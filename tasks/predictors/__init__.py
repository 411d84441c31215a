"""Prediction from Python: `ringbert.QuestionAnswering`, `ringbert.Classifier`, `ringbert.Features`.

    import ringbert
    answer = ringbert.QuestionAnswering("squad_output")("Who wrote it?", "Ada wrote it in 1843.")

They read a folder that RingBERT's programs wrote, a Hugging Face folder, a TensorFlow checkpoint of Google's, or a
model of the hub. They join no ranks, so they also work in a notebook, and in one process of an MPI job.
"""

import tasks.predictors.tensorflow  # noqa: F401  before the modules that import it
from tasks.predictors.classifier import Classifier, Prediction
from tasks.predictors.features import Features, TextFeatures
from tasks.predictors.question_answering import Answer, QuestionAnswering

__all__ = ["Answer", "Classifier", "Features", "Prediction", "QuestionAnswering", "TextFeatures"]
