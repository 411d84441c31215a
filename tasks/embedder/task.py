"""The task of bert-embedder: vectors of texts, near for an anchor and its positive.

Tensors have their shape as a suffix: B rows of attention, one for each text, P pairs, W the width
of a vector.
"""

import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from bert.batch import Batch, Grouping, batch_of
from bert.heads import EMBEDDINGS, Head
from distributed.joint import ANCHOR, POSITIVE, InBatchLoss
from distributed.rows import BatchRows, Rows
from distributed.run import Run
from ringbase.ragged import offsets_of, padded
from ringbase.settings import fields_of
from tasks.embedder.pooling import PROMPTS, files_of, prompts_file_of, said_by
from tasks.embedder.reader import PairReader
from tasks.embedder.reading import Pairs
from tasks.embedder.scoring import Search
from tasks.embedder.settings import DEFAULTS, LossSettings, Pooling, VectorSettings
from tasks.runs.details import Details, Record
from tasks.runs.resolve.spec import Start
from tasks.runs.rows.sets import DataSet
from tasks.runs.task import Scores, Task, Tensors

Data = DataSet[Pairs]
EPOCH = 1 << 40  # more rows than a data set has: a step may hold a row in two epochs
OF_TEXTS = ("row_id", "slot", "digest", "anchor", "positive")


@dataclass(frozen=True)
class EmbedTask(PairReader, Task[Pairs, np.ndarray]):
    """Pairs with hard negatives or scores. The results are the vectors of `Texts`, float32
    [texts, W]."""

    contrast: LossSettings = field(default_factory=LossSettings)
    texts_per_row: int = 2
    trains_on_scores: bool = False  # the squared error of cosines, instead of the joint loss
    metric: str = "eval_ndcg@10"

    @property
    def head(self) -> Head:
        return EMBEDDINGS[self.pooling, self.normalize]

    @property
    def pooling(self) -> Pooling:
        return self.vectors.pooling or DEFAULTS["pooling"]

    @property
    def normalize(self) -> bool:
        return self.vectors.normalize is not False

    @property
    def joint(self) -> tuple[InBatchLoss, Callable] | None:
        if self.trains_on_scores:
            return None
        return InBatchLoss(self.contrast.temperature, self.contrast.both_ways), texts_of

    def files(self, width: int) -> Mapping:
        shape = self.pooling, self.normalize, width, self.max_seq_length
        return {**files_of(*shape), **self.assets}

    @property
    def assets(self) -> Mapping:
        return {PROMPTS: prompts_file_of(self.vectors)}

    def _search(self, data: Data, vectors: np.ndarray) -> Search:
        pairs = data.examples()
        return Search(pairs, self.texts_of(pairs), vectors)

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

    def outputs(self, vectors_BW: tf.Tensor) -> Tensors:
        return {"vector": vectors_BW}

    def scores(self, kind: str, data: Data, vectors: np.ndarray) -> Scores:
        if data.source.kind == "predict":
            return {}
        values = self._search(data, vectors).scores()
        return {f"{kind}_{name}": value for name, value in values.items()}

    def records(self, data: Data, vectors: np.ndarray) -> Iterable[Record]:
        if data.source.kind == "predict":
            return ()
        return self._search(data, vectors).records()

    def write(self, run: Run, data: Data, vectors: np.ndarray) -> None:
        """Writes the vectors of the texts in the order of the rows: vectors.npy, and
        vectors.parquet with the texts."""
        pairs = data.examples()
        texts = [row[ANCHOR] for row in pairs.rows]
        vectors = vectors[[row[ANCHOR] for row in self.texts_of(pairs).rows]]
        file = io.BytesIO()
        np.save(file, vectors)
        run.write_bytes("vectors.npy", file.getvalue())
        values = pa.array(vectors.reshape(-1))
        lists = pa.FixedSizeListArray.from_arrays(values, vectors.shape[1])
        file = io.BytesIO()
        pq.write_table(pa.table({"text": texts, "vector": lists}), file)
        run.write_bytes("vectors.parquet", file.getvalue())

    def details(self, data: Data, vectors: np.ndarray) -> Details:
        return Details(sections=[self._search(data, vectors).distribution()])


def texts_of(batch: Batch) -> tuple[list[np.ndarray], np.ndarray]:
    """The texts of a batch, and which rows of attention have one."""
    has_text = batch["slot"] >= 0
    return [batch[name][has_text] for name in OF_TEXTS], has_text


def most_texts(pairs: Rows) -> int:
    """The most texts of a row."""
    return int(np.diff(pairs.column("sizes")[1]).max())


def has_scores(pairs: Rows) -> bool:
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


def of_model(head: Head, start: Start) -> EmbedTask | None:
    """The task of a trained model, for export, if its folder says how to make vectors."""
    most = start.bert_config.num_positions
    said = {"max_seq_length": most, **said_by(start.weights, most), **start.saved}
    if "pooling" not in said:
        return None
    known = {field.name for field in fields_of(VectorSettings)}
    return EmbedTask(VectorSettings(**{name: said[name] for name in said if name in known}))
