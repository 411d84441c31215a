"""Labels and vectors of texts and of pairs of texts, by the same code as bert-classifier and
bert-features."""

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, overload

import numpy as np
import pyarrow as pa

from bert.heads import CLASSIFIER, FEATURES
from distributed.rows import Rows
from ringbase.errors import InputError
from ringbase.settings import setting
from tasks.classifier.named_tasks import is_on_pairs
from tasks.classifier.scoring import labelled
from tasks.classifier.settings import ExampleSettings
from tasks.classifier.several import THRESHOLDS
from tasks.classifier.task import CLASSIFICATION, LabelTask, labels_of
from tasks.features.program import batch_of_texts, states_of
from tasks.predict import Predictor
from tasks.predictors.loading import LoadSettings, TrainedPredictor, checked_texts, warn_of_unknown
from tasks.texts import rows_of_texts

TextOrPair = str | tuple[str, str]
Pooling = Literal["mean", "cls"]
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class TextSettings(LoadSettings, ExampleSettings):
    """How texts become rows and batches, and for `Features` which vectors are computed."""

    layer: int = setting(-1)
    pooling: Pooling = setting("mean")


class TextPredictor(TrainedPredictor, Generic[Result]):
    """What `Classifier` and `Features` share."""

    settings_class = TextSettings

    @overload
    def __call__(self, texts: TextOrPair) -> Result: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, texts: Iterable[TextOrPair]) -> list[Result]: ...
    def __call__(self, texts: TextOrPair | Iterable[TextOrPair]) -> Result | list[Result]:
        """The result for a text, for a pair of texts, which is a tuple, or for each item in a list
        of these."""
        if isinstance(texts, list) and not texts:
            return []
        items, is_single = checked_texts(texts, "texts", takes_pairs=True, takes_empty=True)
        results = self._results(items, self.rows_of(items))
        return results[0] if is_single else results

    def _results(self, items: list[tuple[str, ...]], rows: Rows) -> list[Result]:
        """What the predictor says of texts, which are also given as rows."""
        raise NotImplementedError

    def rows_of(self, texts: list[tuple[str, ...]]) -> Rows:
        """Rows with the columns `input_ids`, `sentence_a_tokens` and `label` (0). Warns when some
        are cut to `max_seq_length` tokens, or many of their tokens are [UNK]."""
        most = self.settings.max_seq_length
        first, second = zip(*((*text, None)[:2] for text in texts), strict=True)
        columns, fit, cut = rows_of_texts(self._preparation, first, second, most)
        warn_of_unknown(fit["unknown_share"], self._tokenizer)
        if cut.any():
            warnings.warn(
                f"{cut.sum():,} tokens beyond max_seq_length {most} are cut off", stacklevel=3
            )
        return Rows(pa.table(columns | {"label": np.zeros(len(texts), np.int32)}))


# -- labels ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prediction:
    """The most probable label of a text or a pair of texts, its probability (the softmax over the
    scores of all labels, which is not calibrated), and the probability of each label, in the
    model's order.

    `labels` are all that the text has: that one, or of a model for several labels those above their
    thresholds, perhaps none; the probabilities are then each label's own.

    Of a regression model `value` is the predicted number, `label` the number as text, `probability`
    NaN and `probabilities` empty.
    """

    label: str
    probability: float
    probabilities: Mapping[str, float]
    value: float | None = None
    labels: tuple[str, ...] = ()


@dataclass(kw_only=True, eq=False)
class Classifier(TextPredictor[Prediction]):
    """Labels texts: `Classifier(folder)(texts)`. The probabilities are those of bert-classifier.

    Args:
      folder, precision, model_revision: as those of `QuestionAnswering`; bert-classifier trains the
        model.
      batch_size: texts of `max_seq_length` tokens in a batch; more if they are shorter.
      max_seq_length: the most tokens of a text or pair; longer ones are cut, with a warning. None:
        as in the run
        that wrote the folder, else as many as the model has positions.
    A call warns of single texts if the run that wrote the folder was trained on pairs. The
    attribute `labels` has their names in the model's order; it is empty for a regression model.
    Raises ringbert.InputError, one line that names the argument.
    """

    head, trained_by = CLASSIFIER, "bert-classifier"

    def __post_init__(self) -> None:
        super().__post_init__()
        config, length = self._model.config, self.settings.max_seq_length
        self.labels: tuple[str, ...] = labels_of(config) or ()
        has_several = config.problem_type == CLASSIFICATION[1]
        self._thresholds = self._of_run.get(THRESHOLDS, {}) if has_several else None
        self._predictor = Predictor(
            self._model, LabelTask(length).batch, length, self._job, compiles=False
        )

    def _results(self, items: list[tuple[str, ...]], rows: Rows) -> list[Prediction]:
        if is_on_pairs(self._of_run) and any(len(item) == 1 for item in items):
            warnings.warn(
                "the model was trained on pairs of texts: give tuples (text, second text)",
                stacklevel=3,
            )
        scores_BL = np.array(self._predictor(rows, self.settings.batch_size))
        if not self.labels:
            return [
                Prediction(str(value), math.nan, {}, value) for value in scores_BL[:, 0].tolist()
            ]
        names = [self.labels[number] for number in scores_BL.argmax(1).tolist()]
        shares_BL, chosen = labelled(self.labels, scores_BL, self._thresholds)
        probabilities = [dict(zip(self.labels, row, strict=True)) for row in shares_BL.tolist()]
        found = zip(names, probabilities, chosen, strict=True)
        return [Prediction(name, each[name], each, labels=labels) for name, each, labels in found]


# -- vectors ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class TextFeatures:
    """The vectors of a text, or of a pair of texts, of n tokens.

    Attributes:
      tokens: [CLS], the text's as the vocabulary writes them (`##ing`), [SEP], and for a pair the
        second's, [SEP].
      offsets: int32 [n, 2], the start and end of each token in its text (characters); (0, 0) for
        [CLS] and [SEP].
      vectors: float32 [n, H], the hidden state of each token.
      pooled: float32 [H]: the mean of `vectors`, [CLS] and [SEP] included, or the vector of [CLS].
    """

    tokens: tuple[str, ...]
    offsets: np.ndarray
    vectors: np.ndarray
    pooled: np.ndarray


@dataclass(kw_only=True, eq=False)
class Features(TextPredictor[TextFeatures]):
    """Vectors of texts: `Features(folder)(texts)`, or only one per text:
    `Features(folder).pooled(texts)`.

    The vectors are those of bert-features, there rounded to six decimals.

    Args:
      layer: the layer whose output is taken: 0 is the first layer, -1 the last.
      pooling: how token vectors become one: "mean", or "cls" for the vector of [CLS].
      the others: as those of `Classifier`.
    Raises ringbert.InputError, one line that names the argument.
    """

    layer: int = -1
    pooling: Pooling = "mean"

    head = FEATURES

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = self._model.config.num_hidden_layers
        if not -layers <= self.layer < layers:
            raise InputError(
                f"layer must be an integer from {-layers} to {layers - 1}, got {self.layer}"
            )
        # 0 is the embeddings' output
        states = states_of(self._model, [self.layer % layers + 1])
        length = self.settings.max_seq_length
        self._predictor = Predictor(
            self._model, batch_of_texts, length, self._job, states, compiles=False
        )

    def _results(self, items: list[tuple[str, ...]], rows: Rows) -> list[TextFeatures]:
        special = np.zeros((1, 2), np.int32)
        (ids, offsets), heads = rows.column("input_ids"), rows.column("sentence_a_tokens")

        def features(number: int, states_T1H: np.ndarray) -> TextFeatures:
            tokens = self._tokenizer.pieces(ids[offsets[number] : offsets[number + 1]])
            first, *second = self._tokenizer.encode(items[number])[1]
            parts = [special, first[: heads[number] - 2], special]
            for spans in second:
                more = self._tokenizer.separators - 1
                parts += [special] * more + [
                    spans[: len(tokens) - heads[number] - more - 1],
                    special,
                ]
            pooled = self._pooled(number, states_T1H)
            return TextFeatures(
                tuple(tokens), np.concatenate(parts), states_T1H[:, 0].copy(), pooled
            )

        results: Any = self._predictor(rows, self.settings.batch_size, features, "features")
        return results

    def pooled(self, texts: TextOrPair | Iterable[TextOrPair]) -> np.ndarray:
        """Only the pooled vectors, float32 [H] for a single text, [n, H] for a list. Token vectors
        are dropped at once, so that long lists fit in memory."""
        items, is_single = checked_texts(texts, "texts", takes_pairs=True, takes_empty=True)
        results: Any = self._predictor(
            self.rows_of(items), self.settings.batch_size, self._pooled, "features"
        )
        return results[0] if is_single else np.stack(results)

    def _pooled(self, _: int, states_T1H: np.ndarray) -> np.ndarray:
        return states_T1H[0, 0].copy() if self.pooling == "cls" else states_T1H[:, 0].mean(0)
