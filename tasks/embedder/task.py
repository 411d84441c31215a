"""The task of bert-embedder: vectors of texts, near for an anchor and its positive.

Tensors have their shape as a suffix: B rows of attention, one for each text, P pairs, W the width
of a vector.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from bert.batch import Batch, Grouping, batch_of
from bert.heads import EMBEDDINGS, Head
from distributed.joint import ANCHOR, POSITIVE, InBatchLoss, Texts
from distributed.rows import BatchRows, Rows
from distributed.run import Run
from ringbase.ragged import padded
from ringbase.settings import flat
from tasks.embedder import rows
from tasks.embedder.details import cosines_of, section_of_mistakes
from tasks.embedder.pooling import files_of
from tasks.embedder.reading import Pairs, Source, read
from tasks.embedder.scoring import correlations, ranks_of_relevant, relevant_of
from tasks.embedder.settings import DEFAULTS, LossSettings, Pooling, VectorSettings
from tasks.runs.cache import Tables
from tasks.runs.details import Details
from tasks.runs.ranking import search_scores
from tasks.runs.task import DataSet, Record, Scores, Task
from tasks.runs.texts import Preparation

EPOCH = 1 << 40  # more rows than a data set has: a step may hold a row in two epochs
OF_TEXTS = ("row_id", "slot", "digest", "anchor", "positive")


@dataclass(frozen=True)
class EmbedTask(Task[Pairs, np.ndarray]):
    """Pairs with hard negatives or scores. The results are the vectors of `rows.texts_of`, float32
    [texts, W]."""

    vectors: VectorSettings = field(default_factory=VectorSettings)
    contrast: LossSettings = field(default_factory=LossSettings)
    settings: Mapping[str, object] = field(default_factory=dict)
    texts_per_row: int = 2
    trains_on_scores: bool = False  # the squared error of cosines, instead of the joint loss
    metric: str = "eval_ndcg@10"
    name, version, table, train_table = "embedder", rows.VERSION, "texts", "pairs"

    @property
    def head(self) -> Head:  # type: ignore[override]
        return EMBEDDINGS[self.pooling, self.normalize]

    @property
    def pooling(self) -> Pooling:
        return self.vectors.pooling or DEFAULTS["pooling"]

    @property
    def normalize(self) -> bool:
        return self.vectors.normalize is not False

    @property
    def max_seq_length(self) -> int:
        return self.vectors.max_seq_length or DEFAULTS["max_seq_length"]

    @property
    def fixed(self) -> Mapping[str, object]:
        return {**self.settings, **flat(self.contrast)}

    @property
    def joint(self) -> tuple[InBatchLoss, Callable[[Batch], tuple[Texts, np.ndarray]]] | None:
        if self.trains_on_scores:
            return None
        return InBatchLoss(self.contrast.temperature, self.contrast.both_ways), texts_of

    def files(self, width: int) -> Mapping[str, object]:
        return files_of(self.pooling, self.normalize, width, self.max_seq_length)

    def trained_on(self, pairs: Rows) -> "EmbedTask":
        """The task for the training on these rows."""
        most = int(np.diff(pairs.column("sizes")[1]).max())
        is_scored = not np.isnan(pairs.column("score")).any()
        return replace(self, texts_per_row=most, trains_on_scores=is_scored)

    def evaluated_on(self, pairs: Rows) -> "EmbedTask":
        is_scored = not np.isnan(pairs.column("score")).any()
        return replace(self, metric="eval_spearman" if is_scored else "eval_ndcg@10")

    # -- training ----------------------------------------------------------------------------------

    def lengths(self, rows: BatchRows, numbers: np.ndarray) -> np.ndarray:
        sizes: Any = rows.take(numbers)["sizes"]
        return sizes[0].astype(np.int64)

    def batch(self, fields: dict[str, Any], grouping: Grouping | None = None) -> Batch:
        if "sizes" not in fields:  # texts to embed
            return batch_of(fields, grouping)[1]
        (sizes, edges), (digests, _) = fields["sizes"], fields["digests"]
        counts, starts = np.diff(edges), edges[:-1]
        texts = {
            "input_ids": (fields["input_ids"][0], np.concatenate([[0], np.cumsum(sizes)])),
            "sentence_a_tokens": sizes,
            "row_id": np.repeat(fields["epoch"] * EPOCH + fields["row"], counts),
            "slot": np.arange(len(sizes)) - np.repeat(starts, counts),
            "digest": digests,
            "anchor": np.repeat(digests[starts], counts),
            "positive": np.repeat(digests[starts + POSITIVE], counts),
            "score": np.repeat(fields["score"], counts),
        }
        texts, batch = batch_of(texts, grouping)
        size = len(batch["first_tokens"])
        batch |= {name: padded(texts[name].astype(np.int64), size, -1) for name in OF_TEXTS}
        if self.trains_on_scores:
            batch |= _pairs_of(texts, size)
        return batch

    def weights(self, batch: Batch) -> dict[str, float]:
        """The number of pairs."""
        return {"loss": float((batch["slot"] == ANCHOR).sum())}

    def loss(self, vectors_BW: tf.Tensor, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The sum of the squared errors of the pairs' cosines."""
        units_BW = tf.math.l2_normalize(vectors_BW, -1)
        one_PW, other_PW = (
            tf.gather(units_BW, batch[name]) for name in ("pair_anchor", "pair_other")
        )
        errors_P = tf.reduce_sum(one_PW * other_PW, 1) - batch["pair_score"]
        return {"loss": tf.reduce_sum(tf.square(errors_P) * batch["is_pair"])}

    # -- rows and results --------------------------------------------------------------------------

    def read(self, source: Source) -> Pairs:
        return read(source)

    def key(self, source: Source, pairs: Callable[[], Pairs]) -> object:
        return self.max_seq_length, pairs()

    def tables(self, pairs: Pairs, preparation: Preparation) -> Tables:
        return rows.tables(pairs, preparation, self.max_seq_length)

    def outputs(self, vectors_BW: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"vector": vectors_BW}

    def scores(self, kind: str, data: DataSet[Pairs], vectors: np.ndarray) -> Scores:
        if data.source.kind == "predict":
            return {}
        search = Search(data.examples(), vectors)
        if search.pairs.scores:
            values = correlations(search.cosines, search.pairs.scores)
        else:
            values = search_scores(search.ranks)
        return {f"{kind}_{name}": value for name, value in values.items()}

    def records(self, data: DataSet[Pairs], vectors: np.ndarray) -> Iterator[Record]:
        if data.source.kind != "predict":
            yield from Search(data.examples(), vectors).records()

    def write(self, run: Run, data: DataSet[Pairs], vectors: np.ndarray) -> None:
        """Writes the vectors of the texts in the order of the rows: vectors.npy, and
        vectors.parquet with the texts."""
        pairs = data.examples()
        place_of = {text: place for place, text in enumerate(rows.texts_of(pairs))}
        texts = [row[ANCHOR] for row in pairs.rows]
        rows.write_vectors(run, texts, vectors[[place_of[text] for text in texts]])

    def details(self, data: DataSet[Pairs], vectors: np.ndarray) -> Details:
        search = Search(data.examples(), vectors)
        sections = [cosines_of(search.cosines, search.others())]
        sections.append(section_of_mistakes([*search.records()]))
        return Details(sections=sections)


def texts_of(batch: Batch) -> tuple[Texts, np.ndarray]:
    """The texts of a batch, and which rows of attention have one."""
    has_text = batch["slot"] >= 0
    return Texts(*(batch[name][has_text] for name in OF_TEXTS)), has_text


class Search:
    """Pairs and the unit vectors of their texts."""

    def __init__(self, pairs: Pairs, vectors: np.ndarray):
        self.pairs, self.texts = pairs, rows.texts_of(pairs)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        self.units = vectors / np.maximum(lengths, 1e-12)
        self.anchors, self.positives = rows.places_of(pairs, self.texts)

    @cached_property
    def cosines(self) -> np.ndarray:
        """Of each pair."""
        return (self.units[self.anchors] * self.units[self.positives]).sum(1)

    def others(self) -> np.ndarray:
        """The cosines of each anchor and the positive of a row far from it, if that is another."""
        far = np.roll(self.positives, max(1, len(self.positives) // 2))
        is_other = far != self.positives
        return (self.units[self.anchors] * self.units[far]).sum(1)[is_other]

    @cached_property
    def documents(self) -> np.ndarray:
        """The places of the texts among which anchors search: all that are not anchors only."""
        place_of = {text: place for place, text in enumerate(self.texts)}
        others = [text for row in self.pairs.rows for text in row[POSITIVE:]]
        return np.array([place_of[text] for text in dict.fromkeys([*others, *self.pairs.corpus])])

    @cached_property
    def queries(self) -> Mapping[int, np.ndarray]:
        return relevant_of(self.anchors, self.positives)

    @cached_property
    def ranks(self) -> list[np.ndarray]:
        """Of each query's positives among all documents."""
        at = {place: number for number, place in enumerate(self.documents.tolist())}
        relevant = [np.array([at[place] for place in found]) for found in self.queries.values()]
        own = [at.get(place, -1) for place in self.queries]
        places = [*self.queries]
        return ranks_of_relevant(self.units[places], self.units[self.documents], relevant, own)

    def records(self) -> Iterator[Record]:
        if self.pairs.scores:
            for row, score, cosine in zip(
                self.pairs.rows, self.pairs.scores, self.cosines.tolist(), strict=True
            ):
                fields = {"anchor": row[0], "positive": row[1], "score": score, "cosine": cosine}
                yield Record(fields, abs(cosine - score))
            return
        for (place, found), ranks in zip(self.queries.items(), self.ranks, strict=True):
            products = self.units[self.documents] @ self.units[place]
            products[self.documents == place] = -np.inf
            best = int(products.argmax())
            positive = int(found[ranks.argmin()])
            cosine = float(self.units[positive] @ self.units[place])
            fields = {
                "anchor": self.texts[place],
                "positive": self.texts[positive],
                "rank": int(ranks.min()) + 1,
                "cosine": cosine,
                "nearest": self.texts[self.documents[best]],
                "nearest_cosine": float(products[best]),
            }
            lead = float(products[best]) - cosine
            yield Record(fields, lead if ranks.min() else None)


def _pairs_of(texts: dict[str, Any], size: int) -> Batch:
    """The rows of attention of each pair's texts, and its score; as many as there are rows."""
    rows_of_slot = {}
    for slot in (ANCHOR, POSITIVE):
        places = np.flatnonzero(texts["slot"] == slot)
        rows_of_slot[slot] = places[np.argsort(texts["row_id"][places], kind="stable")]
    anchors, others = rows_of_slot[ANCHOR], rows_of_slot[POSITIVE]
    return {
        "pair_anchor": padded(anchors.astype(np.int32), size),
        "pair_other": padded(others.astype(np.int32), size),
        "pair_score": padded(texts["score"][anchors].astype(np.float32), size),
        "is_pair": padded(np.ones(len(anchors), np.float32), size),
    }
