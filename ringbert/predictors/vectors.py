"""Vectors of texts: of any model by the same code as bert-features, and of a model that
bert-embedder has trained, or one of sentence-transformers, by the same code as bert-embedder."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy import ndarray

from bert.configuration import BertConfig
from bert.heads import EMBEDDINGS, FEATURES, Head
from ringbase.errors import InputError
from ringbase.results import Result
from ringbase.settings import setting, shown
from ringbert.predictors.base import Items, LoadSettings, TrainedPredictor, checked_texts
from ringbert.predictors.texts import LabelSettings, TextOrPair, TextPredictor
from tasks.embedder.pooling import said_by, unheeded_in
from tasks.embedder.reading import Pairs
from tasks.embedder.settings import DEFAULTS, PromptName, VectorSettings
from tasks.embedder.task import EmbedTask
from tasks.features.task import FeaturesTask, states_of
from tasks.runs.resolve.spec import Start
from tasks.runs.rows.sets import DataSet

# of a text's token vectors; bert-embedder may know more
FeaturePooling = Literal["mean", "cls"]


class FeatureSettings(LabelSettings):
    """How texts become rows and batches, and which vectors are computed."""

    layer: int = setting(-1)
    pooling: FeaturePooling = setting("mean")


@dataclass(frozen=True, slots=True, eq=False)
class TextFeatures(Result):
    """The vectors of a text, or of a pair of texts, of n tokens.

    Attributes:
      tokens: [CLS], the text's as the vocabulary writes them (`##ing`), [SEP], and for a pair the
        second's, [SEP].
      offsets: int32 [n, 2], the start and end of each token in its text (characters); (0, 0) for
        [CLS] and [SEP].
      vectors: float32 [n, H], the hidden state of each token.
      pooled: float32 [H]: the mean of `vectors`, [CLS] and [SEP] included, or the vector of [CLS].

    >>> TextFeatures(("[CLS]", "[SEP]"), np.zeros((2, 2)), np.ones((2, 4)), np.ones(4)).tokens
    ('[CLS]', '[SEP]')
    """

    tokens: tuple[str, ...]
    offsets: ndarray
    vectors: ndarray
    pooled: ndarray


@dataclass(kw_only=True, eq=False)
class Features(TextPredictor[TextOrPair, TextFeatures]):
    """Vectors of texts: `Features(folder)(texts)`, or only one per text:
    `Features(folder).pooled(texts)`.

    The vectors are those of bert-features, there rounded to six decimals.

    Args:
      layer: the layer whose output is taken: 0 is the first layer, -1 the last.
      pooling: how token vectors become one: "mean", or "cls" for the vector of [CLS].
      the others: as those of `Classifier`.
    Raises ringbert.InputError, one line that names the argument.

    >>> features = Features("reviews")
    >>> len(features("a fine film").vectors) >= 5  # [CLS], the text's tokens, [SEP]
    True
    >>> len(features.pooled(["a fine film", "two dull hours"]))
    2
    """

    layer: int = -1
    pooling: FeaturePooling = "mean"

    head = FEATURES
    settings_class = FeatureSettings

    def make_task(self, bert_config: BertConfig) -> FeaturesTask:
        return FeaturesTask(self.settings.max_seq_length)

    def forward(self) -> Callable:
        layers = self._model.config.num_hidden_layers
        layer = self.settings.layer
        if not -layers <= layer < layers:
            raise InputError(
                f"layer must be an integer from {-layers} to {layers - 1}, got {layer}"
            )
        # 0 is the embeddings' output
        return states_of(self._model, [layer % layers + 1])

    def results_of(self, items: Items, data: DataSet) -> list[TextFeatures]:
        tokenizer = self._tokenization.tokenizer
        special = np.zeros((1, 2), np.int32)
        ids, offsets = data.rows.column("input_ids")
        first_tokens = data.rows.column("sentence_a_tokens")
        more_separators = [special] * (tokenizer.separators - 1)

        def features(number, states_T1H):
            tokens = tokenizer.pieces(ids[offsets[number] : offsets[number + 1]])
            _, (first, *second) = tokenizer.encode(items[number])
            num_first = first_tokens[number]
            parts = [special, first[: num_first - 2], special]
            for spans in second:
                num_second = len(tokens) - num_first - len(more_separators) - 1
                parts += [*more_separators, spans[:num_second], special]
            places = np.concatenate(parts)
            states_TH = states_T1H[:, 0].copy()
            pooled_H = self._pooled(number, states_T1H)
            return TextFeatures(tuple(tokens), places, states_TH, pooled_H)

        results: Any = self._predictor(data.rows, self.settings.batch_size, features, "features")
        return results

    def pooled(self, texts: TextOrPair | Iterable[TextOrPair]) -> ndarray:
        """Only the pooled vectors, float32 [H] for a single text, [n, H] for a list. Token vectors
        are dropped at once, so that long lists fit in memory."""
        items, is_single = checked_texts(texts, "texts", takes_pairs=True, takes_empty=True)
        if not items:
            return np.zeros((0, self._model.config.hidden_size), np.float32)
        rows = self.rows_of(items).rows
        vectors: Any = self._predictor(rows, self.settings.batch_size, self._pooled, "features")
        return vectors[0] if is_single else np.stack(vectors)

    def _pooled(self, _: int, states_T1H: ndarray) -> ndarray:
        if self.settings.pooling == "cls":
            return states_T1H[0, 0].copy()
        return states_T1H[:, 0].mean(0)


class EmbedSettings(LoadSettings, VectorSettings):
    """How texts become rows and vectors."""


@dataclass(kw_only=True, eq=False)
class Embedder(TrainedPredictor):
    """Vectors of texts: `Embedder(folder)(texts)` is float32 [texts, width], of one text [width].

    Args:
      folder, precision, model_revision: as those of `QuestionAnswering`; the folder may be one of
        sentence-transformers with mean or cls pooling.
      batch_size: texts of `max_seq_length` tokens in a batch; more if they are shorter.
      max_seq_length: the most tokens of a text; longer ones are cut.
      pooling: "mean" of a text's tokens, or "cls". normalize: whether vectors have the length 1.
        The default of these three is as in the run or folder, else 128, "mean" and True.
      query_prompt, document_prompt: what stands before a query, and before a document, of a search.
      prompt_name: "query" or "document", which of the two stands before other texts, or "none".
      max_query_length: the most tokens of a query with its prompt.
        The default of these four is as in the run or folder, else none.
      truncate_dim: how many of the first numbers of a vector are kept; all by default. Unit vectors
        are made unit vectors again.
    Raises ringbert.InputError, one line that names the argument.

    >>> embedder = Embedder("vectors")
    >>> embedder(["a fine film", "two dull hours"]).shape == (2, len(embedder("a fine film")))
    True
    """

    pooling: str | None = None
    normalize: bool | None = None
    query_prompt: str | None = None
    document_prompt: str | None = None
    prompt_name: str | None = None
    max_query_length: int | None = None
    truncate_dim: int | None = None

    settings_class = EmbedSettings
    longest = 128

    @property
    def head(self) -> Head:
        settings = {**DEFAULTS, **self.options}
        return EMBEDDINGS[settings["pooling"], settings["normalize"]]

    def said_by(self, start: Start) -> Mapping[str, Any]:
        for line in unheeded_in(start.weights, start.words.lower_case):
            warnings.warn(line, stacklevel=4)
        return said_by(start.weights, start.bert_config.num_positions, self.pooling)

    def make_task(self, bert_config: BertConfig) -> EmbedTask:
        self.settings.check_width(bert_config.hidden_size)
        return EmbedTask(self.settings)

    def __call__(
        self, texts: str | Iterable[str], prompt_name: PromptName | None = None
    ) -> ndarray:
        """The vectors of texts, in their order: of queries, documents, or, with "none", of texts
        without a prompt. By default they are what the embedder's `prompt_name` says."""
        if prompt_name not in (None, *get_args(PromptName)):
            names = ", ".join(get_args(PromptName))
            raise InputError(f"prompt_name must be one of {names}, got {shown(prompt_name)}")
        items, is_single = checked_texts(texts, "texts", takes_empty=True)
        vectors = self._vectors(items, prompt_name)
        return vectors[0] if is_single else vectors

    def _vectors(self, items: Items, prompt_name: PromptName | None) -> ndarray:
        """The vectors of checked texts [texts, width]."""
        if not items:
            width = self.settings.truncate_dim or self._model.config.hidden_size
            return np.zeros((0, width), np.float32)
        pairs = Pairs(items, prompt_name=prompt_name)
        vectors = self.results(self.set_of(pairs))  # of each text once
        return vectors[np.concatenate(self.task.texts_of(pairs).rows)]

    def similarities(self, texts: Iterable[str], others: Iterable[str]) -> ndarray:
        """The cosines of texts with others, as queries with documents, float32 [texts, others]."""
        items, _ = checked_texts(texts, "texts", takes_empty=True)
        other_items, _ = checked_texts(others, "others", takes_empty=True)
        return self._cosines(items, other_items)

    def _cosines(self, items: Items, others: Items) -> ndarray:
        queries = _units(self._vectors(items, "query"))
        documents = _units(self._vectors(others, "document"))
        return queries @ documents.T

    def nearest(
        self, texts: Iterable[str], corpus: Iterable[str], top_k: int = 10
    ) -> list[list[tuple[str, float]]]:
        """For each text the nearest of a corpus, with their cosines, the nearest first."""
        if not isinstance(top_k, int | np.integer) or top_k < 1:
            raise InputError(f"top_k must be an integer from 1, got {shown(top_k)}")
        items, _ = checked_texts(texts, "texts", takes_empty=True)
        documents, _ = checked_texts(corpus, "corpus", takes_empty=True)
        candidates = [text for (text,) in documents]
        nearest = []
        for cosines in self._cosines(items, documents):
            best = np.argsort(-cosines, kind="stable")[:top_k]
            best_texts = [candidates[place] for place in best]
            best_cosines = cosines[best].tolist()
            nearest.append([*zip(best_texts, best_cosines, strict=True)])
        return nearest


def _units(vectors: ndarray) -> ndarray:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12)
