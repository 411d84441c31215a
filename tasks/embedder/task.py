"""The task of bert-embedder: vectors of texts, near for an anchor and its positive.

Tensors have their shape as a suffix: B rows of attention, one for each text, P pairs, W the width
of a vector.
"""

import hashlib
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from bert.batch import Batch, Grouping, batch_of
from bert.heads import EMBEDDINGS, Head
from distributed.joint import ANCHOR, POSITIVE, InBatchLoss
from distributed.rows import BatchRows, Rows, ragged
from distributed.run import Run
from ringbase.ragged import offsets_of, padded
from ringbase.settings import flat
from tasks.embedder.pooling import files_of
from tasks.embedder.reader import PairReader
from tasks.embedder.reading import Pairs
from tasks.embedder.scoring import Search
from tasks.embedder.settings import DEFAULTS, LossSettings, Pooling
from tasks.runs.cache import Tables, with_facts
from tasks.runs.details import Details
from tasks.runs.task import DataSet, Record, Scores, Task, Tensors
from tasks.runs.texts import Preparation, rows_of_texts

Data = DataSet[Pairs]
EPOCH = 1 << 40  # more rows than a data set has: a step may hold a row in two epochs
OF_TEXTS = ("row_id", "slot", "digest", "anchor", "positive")


@dataclass(frozen=True)
class EmbedTask(PairReader, Task[Pairs, np.ndarray]):
    """Pairs with hard negatives or scores. The results are the vectors of `Pairs.places`, float32
    [texts, W]."""

    contrast: LossSettings = field(default_factory=LossSettings)
    texts_per_row: int = 2
    trains_on_scores: bool = False  # the squared error of cosines, instead of the joint loss
    metric: str = "eval_ndcg@10"

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
    def fixed(self) -> Mapping:
        return {**self.settings, **flat(self.contrast)}

    @property
    def joint(self) -> tuple[InBatchLoss, Callable] | None:
        if self.trains_on_scores:
            return None
        return InBatchLoss(self.contrast.temperature, self.contrast.both_ways), texts_of

    def files(self, width: int) -> Mapping:
        return files_of(self.pooling, self.normalize, width, self.max_seq_length)

    def trained_on(self, pairs: Rows) -> "EmbedTask":
        """The task for the training on these rows."""
        most = int(np.diff(pairs.column("sizes")[1]).max())
        return replace(self, texts_per_row=most, trains_on_scores=_has_scores(pairs))

    def evaluated_on(self, pairs: Rows) -> "EmbedTask":
        return replace(self, metric="eval_spearman") if _has_scores(pairs) else self

    # -- training ----------------------------------------------------------------------------------

    def lengths(self, rows: BatchRows, numbers: np.ndarray) -> np.ndarray:
        sizes: Any = rows.take(numbers)["sizes"]
        return sizes[0].astype(np.int64)

    def batch(self, fields: dict, grouping: Grouping | None = None) -> Batch:
        if "sizes" not in fields:  # texts to embed
            return batch_of(fields, grouping)[1]
        ids, _ = fields["input_ids"]
        digests, _ = fields["digests"]
        sizes, edges = fields["sizes"]
        starts = edges[:-1]
        counts = np.diff(edges)
        texts = {
            "input_ids": (ids, offsets_of(sizes)),
            "sentence_a_tokens": sizes,
            "slot": np.arange(len(sizes)) - np.repeat(starts, counts),
            "digest": digests,
        }
        of_rows = {
            "row_id": fields["epoch"] * EPOCH + fields["row"],
            "anchor": digests[starts],
            "positive": digests[starts + POSITIVE],
            "score": fields["score"],
        }
        for name, column in of_rows.items():
            texts[name] = np.repeat(column, counts)
        texts, batch = batch_of(texts, grouping)
        size = len(batch["first_tokens"])
        for name in OF_TEXTS:
            batch[name] = padded(texts[name].astype(np.int64), size, -1)
        if self.trains_on_scores:
            batch |= _pairs_of(texts, size)
        return batch

    def weights(self, batch: Batch) -> dict[str, float]:
        """The number of pairs."""
        return {"loss": float((batch["slot"] == ANCHOR).sum())}

    def loss(self, vectors_BW: tf.Tensor, batch: Batch) -> Tensors:
        """The sum of the squared errors of the pairs' cosines."""
        units_BW = tf.math.l2_normalize(vectors_BW, -1)
        anchors_PW = tf.gather(units_BW, batch["pair_anchor"])
        others_PW = tf.gather(units_BW, batch["pair_other"])
        cosines_P = tf.reduce_sum(anchors_PW * others_PW, 1)
        losses_P = tf.square(cosines_P - batch["pair_score"])
        return {"loss": tf.reduce_sum(losses_P * batch["is_pair"])}

    # -- rows and results --------------------------------------------------------------------------

    def tables(self, pairs: Pairs, preparation: Preparation) -> Tables:
        """A row of `pairs` has `input_ids`, those of its texts one after another ([CLS] text
        [SEP]), `sizes` (the tokens of each text; both lists of int32), `digests` (of each text, a
        list of int64) and `score` (float32, NaN without one). A row of `texts` has the columns of
        `rows_of_texts`, for the texts of `Pairs.places`."""
        texts = [*pairs.places()]
        second = [None] * len(texts)
        columns, fit = rows_of_texts(preparation, texts, second, self.max_seq_length)
        ids = [row.values.to_numpy() for row in columns["input_ids"]]
        sizes = np.array([*map(len, ids)])
        digests = np.array([*map(digest_of, texts)])
        places = pairs.places_in_rows()
        num_rows, num_columns = places.shape
        ids_of_rows = []
        for row in places:
            ids_of_rows.append(np.concatenate([ids[place] for place in row]))
        joined = {
            "input_ids": ragged(ids_of_rows, pa.int32()),
            "sizes": ragged(sizes[places], pa.int32()),
            "digests": ragged(digests[places], pa.int64()),
            "score": pa.array(pairs.scores or [np.nan] * num_rows, pa.float32()),
        }
        notes = [f"{num_rows:,} pairs, {len(texts):,} texts"]
        if num_columns == 1:
            notes = [f"{num_rows:,} texts"]
        if fit["rows_cut"]:
            notes.append(f"{fit['rows_cut']:,} cut to --max_seq_length {self.max_seq_length}")
        return with_facts({"texts": columns, "pairs": joined}, {"notes": notes, **fit})

    def outputs(self, vectors_BW: tf.Tensor) -> Tensors:
        return {"vector": vectors_BW}

    def scores(self, kind: str, data: Data, vectors: np.ndarray) -> Scores:
        if data.source.kind == "predict":
            return {}
        values = Search(data.examples(), vectors).scores()
        return {f"{kind}_{name}": value for name, value in values.items()}

    def records(self, data: Data, vectors: np.ndarray) -> Iterable[Record]:
        if data.source.kind == "predict":
            return ()
        return Search(data.examples(), vectors).records()

    def write(self, run: Run, data: Data, vectors: np.ndarray) -> None:
        """Writes the vectors of the texts in the order of the rows: vectors.npy, and
        vectors.parquet with the texts."""
        pairs = data.examples()
        texts = [row[ANCHOR] for row in pairs.rows]
        anchors = pairs.places_in_rows()[:, ANCHOR]
        vectors = vectors[anchors]
        file = io.BytesIO()
        np.save(file, vectors)
        run.write_bytes("vectors.npy", file.getvalue())
        values = pa.array(vectors.reshape(-1))
        lists = pa.FixedSizeListArray.from_arrays(values, vectors.shape[1])
        file = io.BytesIO()
        pq.write_table(pa.table({"text": texts, "vector": lists}), file)
        run.write_bytes("vectors.parquet", file.getvalue())

    def details(self, data: Data, vectors: np.ndarray) -> Details:
        return Details(sections=[Search(data.examples(), vectors).distribution()])


def texts_of(batch: Batch) -> tuple[list[np.ndarray], np.ndarray]:
    """The texts of a batch, and which rows of attention have one."""
    has_text = batch["slot"] >= 0
    return [batch[name][has_text] for name in OF_TEXTS], has_text


def _has_scores(pairs: Rows) -> bool:
    return not np.isnan(pairs.column("score")).any()


def _pairs_of(texts: dict, size: int) -> Batch:
    """The rows of attention of each pair's texts, and its score; as many as there are rows."""
    anchors = _rows_of_slot(texts, ANCHOR)
    others = _rows_of_slot(texts, POSITIVE)
    columns = {
        "pair_anchor": anchors.astype(np.int32),
        "pair_other": others.astype(np.int32),
        "pair_score": texts["score"][anchors].astype(np.float32),
        "is_pair": np.ones(len(anchors), np.float32),
    }
    return {name: padded(column, size) for name, column in columns.items()}


def _rows_of_slot(texts: dict, slot: int) -> np.ndarray:
    """The rows of the anchors, or of the positives, in the order of their pairs."""
    rows = np.flatnonzero(texts["slot"] == slot)
    return rows[np.argsort(texts["row_id"][rows], kind="stable")]


def digest_of(text: str) -> int:
    """An int64 that stands for a text on every rank."""
    value = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(value, signed=True)
