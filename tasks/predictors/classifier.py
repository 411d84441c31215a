"""Labels texts and pairs of texts with a model that bert-classifier has trained, by the same code."""

import math
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import overload

import numpy as np
from scipy.special import softmax

from ringbase.errors import InputError
from tasks.classifier.named_tasks import is_on_pairs
from tasks.classifier.settings import ExampleSettings
from tasks.classifier.task import LabelTask, labels_of
from tasks.predict import Predictor
from tasks.predictors.inputs import TextOrPair, checked_texts, text_rows
from tasks.predictors.loading import Precision, checked_batch_size, load


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a classifier says about a text, or about a pair of texts.

    Attributes:
      label: the name of the most probable label.
      probability: its probability, the softmax over the scores of all labels. It is not calibrated.
      probabilities: the probability of each label by its name, in the model's order; their sum is 1.
      value: None. For a regression model the predicted number; `label` is then the number as text, as in
        predictions.tsv, `probability` is NaN and `probabilities` is empty.
    """

    label: str
    probability: float
    probabilities: Mapping[str, float]
    value: float | None = None


class Classifier:
    """Labels texts: `Classifier(folder)(texts)`.

    The probabilities are those of bert-classifier's test_results.tsv. Calls from several threads are computed one
    after the other.

    Args:
      folder: a folder that bert-classifier wrote (`--output_dir` or its `model/`), a Hugging Face folder, a
        TensorFlow checkpoint of Google's, or a hub name.
      precision: "fp32", "bf16" or "fp16", the number format of matrix products. The Keras policy of the process
        stays as it is.
      batch_size: texts of `max_seq_length` tokens in a batch; more if they are shorter.
      max_seq_length: the most tokens of a text or pair; longer ones are cut, with a warning. None: as in the run
        that wrote the folder, else as many as the model has positions.
      model_revision: commit, tag or branch of a hub model.
    Attributes:
      labels: the labels' names in the model's order; empty for a regression model.
    Raises ringbase.errors.InputError, one line that names the argument: the folder holds no classifier, or an
      argument is wrong.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        precision: Precision = "fp32",
        batch_size: int = 8,
        max_seq_length: int | None = None,
        model_revision: str | None = None,
    ):
        self._batch_size = checked_batch_size(batch_size)
        self._trained = load(folder, "classifier", precision, model_revision)
        config, job = self._trained.config, self._trained.job
        if config.problem_type == "multi_label_classification":
            raise InputError(
                f"folder {self._trained.name} holds a model that gives a text several labels: it is not supported"
            )
        self.settings = self._trained.settings_of(
            ExampleSettings, {"max_seq_length": max_seq_length}, max_seq_length=config.max_position_embeddings
        )
        self.labels: tuple[str, ...] = labels_of(config) or ()
        self.is_regression = not self.labels
        self._warns_of_single_texts = is_on_pairs(self._trained.settings)
        length = self.settings.max_seq_length
        self._predictor = Predictor(job, LabelTask(length).batch, length)

    def __repr__(self) -> str:
        kind = "a regression" if self.is_regression else f"{len(self.labels)} labels"
        return self._trained.shown(self, kind, f"max_seq_length={self.settings.max_seq_length}")

    @overload
    def __call__(self, texts: TextOrPair) -> Prediction: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, texts: Iterable[TextOrPair]) -> list[Prediction]: ...
    def __call__(self, texts: TextOrPair | Iterable[TextOrPair]) -> Prediction | list[Prediction]:
        """The label of a text, of a pair (text, second text), or of each item in a list of these.

        A tuple of two strings is a pair. Warns once of single texts if the run that wrote the folder was trained
        on pairs. Raises InputError: `texts` is empty, or has an item that is empty or no string.
        """
        checked, is_single = checked_texts(texts)
        trained = self._trained
        if self._warns_of_single_texts and any(second is None for _, second in checked):
            self._warns_of_single_texts = False
            warnings.warn("the model was trained on pairs of texts: give tuples (text, second text)", stacklevel=2)
        rows, _ = text_rows(checked, trained.tokenizer, self.settings.max_seq_length, trained.job.run)
        scores = np.array(self._predictor(rows, self._batch_size))
        if self.is_regression:
            results = [Prediction(str(value), math.nan, {}, value) for value in scores[:, 0].tolist()]
        else:
            results = [
                Prediction(self.labels[best], row[best], dict(zip(self.labels, row, strict=True)))
                for best, row in zip(scores.argmax(1), softmax(scores.astype(float), 1).tolist(), strict=True)
            ]
        return results[0] if is_single else results
