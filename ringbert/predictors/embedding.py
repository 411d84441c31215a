"""Vectors of texts by a model that bert-embedder has trained, or one of sentence-transformers, by
the same code as bert-embedder."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy import ndarray

from bert.configuration import BertConfig
from bert.heads import EMBEDDINGS, Head
from ringbert.predictors.base import LoadSettings, TrainedPredictor, checked_texts
from tasks.embedder.pooling import said_by
from tasks.embedder.reading import Pairs
from tasks.embedder.rows import texts_of
from tasks.embedder.settings import DEFAULTS, VectorSettings
from tasks.embedder.task import EmbedTask
from tasks.runs.start import Start


@dataclass(frozen=True, kw_only=True)
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
    Raises ringbert.InputError, one line that names the argument.

    >>> embedder = Embedder("vectors")
    >>> embedder(["a fine film", "two dull hours"]).shape == (2, len(embedder("a fine film")))
    True
    """

    pooling: str | None = None
    normalize: bool | None = None

    settings_class = EmbedSettings
    longest: ClassVar[int] = 128

    def said_by(self, start: Start) -> Mapping[str, Any]:
        return said_by(start.weights, start.bert_config.num_positions, self.pooling)

    @property
    def head(self) -> Head:
        settings = {**DEFAULTS, **self.options}
        return EMBEDDINGS[settings["pooling"], settings["normalize"]]

    def make_task(self, bert_config: BertConfig) -> EmbedTask:
        return EmbedTask(self.settings)

    def __call__(self, texts: str | Iterable[str]) -> ndarray:
        """The vectors of texts, in their order."""
        items, is_single = checked_texts(texts, "texts", takes_empty=False)
        pairs = Pairs(items)
        vectors = self.results(self.set_of(pairs))
        place_of = {text: place for place, text in enumerate(texts_of(pairs))}
        found = vectors[[place_of[text] for (text,) in items]]
        return found[0] if is_single else found

    def similarities(self, texts: Iterable[str], others: Iterable[str]) -> ndarray:
        """The cosines of texts with others, float32 [texts, others]."""
        one, other = (_units(self([*part])) for part in (texts, others))
        return one @ other.T

    def nearest(
        self, texts: Iterable[str], corpus: Sequence[str], top_k: int = 10
    ) -> list[list[tuple[str, float]]]:
        """For each text the nearest of a corpus, with their cosines, the nearest first."""
        found = []
        for row in self.similarities(texts, corpus):
            best = np.argsort(-row, kind="stable")[:top_k].tolist()
            found.append([(corpus[place], float(row[place])) for place in best])
        return found


def _units(vectors: ndarray) -> ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
