"""Hidden-state vectors of texts and of their tokens, by the same code as bert-features."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args, overload

import numpy as np

from ringbase.errors import InputError
from tasks.classifier.settings import ExampleSettings
from tasks.features.program import batch_of_texts, states_of
from tasks.predict import Predictor
from tasks.predictors.inputs import LONGEST_SHOWN, TextOrPair, checked_texts, text_rows
from tasks.predictors.loading import Precision, checked_batch_size, load

Pooling = Literal["mean", "cls"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TextFeatures:
    """The vectors of a text, or of a pair of texts, of n tokens.

    Attributes:
      tokens: [CLS], the tokens of the text, [SEP], and for a pair those of the second text and [SEP]; as the
        vocabulary writes them (`##ing`).
      offsets: int32 [n, 2], the start and end of each token in its text, in characters; (0, 0) for [CLS]
        and [SEP].
      vectors: float32 [n, H], the hidden state of each token.
      pooled: float32 [H], one vector for the whole text: the mean of `vectors`, [CLS] and [SEP] included, or the
        vector of [CLS].
    """

    tokens: tuple[str, ...]
    offsets: np.ndarray
    vectors: np.ndarray
    pooled: np.ndarray

    def __repr__(self) -> str:
        text = " ".join(self.tokens).replace(" ##", "")
        text = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
        num_tokens, size = self.vectors.shape
        return f"TextFeatures({text!r}, {num_tokens} tokens, vectors of {size} numbers)"


class Features:
    """Vectors of texts: `Features(folder)(texts)`, or only one per text: `Features(folder).pooled(texts)`.

    The vectors are those of bert-features (there rounded to six decimals). Calls from several threads are computed
    one after the other.

    Args:
      folder: a folder that one of the programs wrote (`--output_dir` or its `model/`), a Hugging Face folder, a
        TensorFlow checkpoint of Google's, or a hub name.
      layer: the layer whose output is taken: 0 is the first layer, -1 the last.
      pooling: how token vectors become one: "mean", or "cls" for the vector of [CLS].
      precision: "fp32", "bf16" or "fp16", the number format of matrix products. The Keras policy of the process
        stays as it is.
      batch_size: texts of `max_seq_length` tokens in a batch; more if they are shorter.
      max_seq_length: the most tokens of a text or pair; longer ones are cut, with a warning. None: as in the run
        that wrote the folder, else as many as the model has positions.
      model_revision: commit, tag or branch of a hub model.
    Raises ringbase.errors.InputError, one line that names the argument: the folder holds no BERT, or an argument
      is wrong.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        layer: int = -1,
        pooling: Pooling = "mean",
        precision: Precision = "fp32",
        batch_size: int = 8,
        max_seq_length: int | None = None,
        model_revision: str | None = None,
    ):
        self._batch_size = checked_batch_size(batch_size)
        if pooling not in get_args(Pooling):
            raise InputError(f"pooling must be one of {', '.join(get_args(Pooling))}, got {pooling!r:.80}")
        self._trained = load(folder, "features", precision, model_revision)
        config = self._trained.config
        self.pooling, self.layer = pooling, layer
        self.settings = self._trained.settings_of(
            ExampleSettings, {"max_seq_length": max_seq_length}, max_seq_length=config.max_position_embeddings
        )
        layers = int(config.num_hidden_layers)
        if type(layer) is not int or not -layers <= layer < layers:
            raise InputError(f"layer must be an integer from {-layers} to {layers - 1}, got {layer!r:.80}")
        job, length = self._trained.job, self.settings.max_seq_length
        states = states_of(job.model, [layer % layers + 1])  # 0 is the embeddings' output
        self._predictor = Predictor(job, batch_of_texts, length, states)

    def __repr__(self) -> str:
        length = f"max_seq_length={self.settings.max_seq_length}"
        return self._trained.shown(self, f"layer={self.layer}", f"pooling={self.pooling!r}", length)

    @overload
    def __call__(self, texts: TextOrPair) -> TextFeatures: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, texts: Iterable[TextOrPair]) -> list[TextFeatures]: ...
    def __call__(self, texts: TextOrPair | Iterable[TextOrPair]) -> TextFeatures | list[TextFeatures]:
        """The vectors of a text, of a pair (text, second text), or of each item in a list of these.

        A tuple of two strings is a pair. Raises InputError: `texts` is empty, or has an item that is empty or no
        string.
        """
        checked, is_single = checked_texts(texts)
        trained = self._trained
        rows, spans = text_rows(checked, trained.tokenizer, self.settings.max_seq_length, trained.job.run)
        ids, offsets = rows.column("input_ids")

        def features(number: int, states_T1H: np.ndarray) -> TextFeatures:
            tokens, vectors = (
                trained.tokenizer.pieces(ids[offsets[number] : offsets[number + 1]]),
                states_T1H[:, 0],
            )
            return TextFeatures(tuple(tokens), spans[number], vectors.copy(), self._pooled(vectors))

        results = self._predictor(rows, self._batch_size, features, "features")
        assert results is not None
        return results[0] if is_single else results

    def pooled(self, texts: TextOrPair | Iterable[TextOrPair]) -> np.ndarray:
        """Only the pooled vectors, float32 [H] for a single text, [n, H] for a list. Token vectors are dropped at
        once, so that long lists fit in memory. Raises InputError as a call."""
        checked, is_single = checked_texts(texts)
        trained = self._trained
        rows, _ = text_rows(checked, trained.tokenizer, self.settings.max_seq_length, trained.job.run)
        keep = lambda _, states_T1H: self._pooled(states_T1H[:, 0])  # noqa: E731
        results = self._predictor(rows, self._batch_size, keep, "features")
        assert results is not None
        return results[0] if is_single else np.stack(results)

    def _pooled(self, vectors: np.ndarray) -> np.ndarray:
        return vectors[0].copy() if self.pooling == "cls" else vectors.mean(0)
