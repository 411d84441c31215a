"""The task of bert-embedder: vectors of texts, near for an anchor and its positive.

Tensors have their shape as a suffix: B rows of attention, one for each text, P pairs, W the width
of a vector.
"""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from bert.batch import Batch, Grouping, batch_of
from bert.heads import EMBEDDINGS, Head
from distributed.joint import ANCHOR, POSITIVE, SHORTEST, InBatchLoss, JointLoss, NestedLoss
from distributed.rows import BatchRows, Rows
from distributed.run import Run
from distributed.world import World
from ringbase.ragged import offsets_of, padded
from ringbase.settings import fields_of
from tasks.embedder.distillation import Distillation, candidates_of
from tasks.embedder.mining import Mining, mine, write_mined
from tasks.embedder.pooling import PROMPTS, files_of, prompts_file_of, said_by
from tasks.embedder.reader import LABEL, TEACHER, PairReader
from tasks.embedder.reading import Pairs
from tasks.embedder.scoring import MAIN_SCORES, Search
from tasks.embedder.settings import DEFAULTS, LossSettings, Pooling, VectorSettings
from tasks.runs.details import Details, Record
from tasks.runs.resolve.command import Stream
from tasks.runs.resolve.spec import Start
from tasks.runs.rows.sets import DataSet
from tasks.runs.task import Decoder, Scores, Task, Tensors

Data = DataSet[Pairs]
PLAIN = Stream()
EPOCH = 1 << 40  # more rows than a data set has: a step may hold a row in two epochs
OF_TEXTS = ("row_id", "slot", "digest", "anchor", "positive")


@dataclass(frozen=True)
class EmbedTask(PairReader, Task[Pairs, np.ndarray]):
    """Pairs with hard negatives or scores. The results are the vectors of `Texts`, float32
    [texts, W]."""

    contrast: LossSettings = field(default_factory=LossSettings)
    texts_per_row: int = 2
    trains_on_scores: bool = False  # the squared error of cosines, instead of the joint loss
    distillation: Distillation | None = None  # of a teacher's scores, instead of both
    metric: str = "eval_ndcg@10"
    mining: Mining | None = None  # of the set to predict
    stream: Stream = PLAIN

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
    def joint(self) -> tuple[JointLoss, Callable] | None:
        if self.trains_on_scores or self.distillation:
            return None
        contrast = self.contrast
        loss: JointLoss = InBatchLoss(
            contrast.temperature, contrast.both_ways, contrast.guide_margin
        )
        if self.vectors.sizes:
            loss = NestedLoss(loss, self.vectors.sizes, self.normalize)
        return loss, texts_of

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
            "anchor": fields.get(LABEL, digests[starts]),
            "positive": digests[starts + POSITIVE],
            "score": fields["score"],
        }
        for name, column in of_rows.items():
            texts[name] = np.repeat(column, counts)
        if self.distillation:
            texts[TEACHER], _ = fields[TEACHER]
        texts, batch = batch_of(texts, grouping)
        size = len(batch["first_tokens"])
        for name in OF_TEXTS:
            batch[name] = padded(texts[name].astype(np.int64), size, -1)
        if self.trains_on_scores:
            batch |= _pairs_of(texts, size)
        if self.distillation:
            batch |= candidates_of(texts, size)
        return batch

    @property
    def terms(self) -> tuple[str, ...]:
        if self.joint is None:
            return super().terms
        loss, _ = self.joint
        return tuple(loss.terms)

    def weights(self, batch: Batch) -> dict[str, float]:
        """The number of pairs, or of what a teacher's scores are compared in."""
        if self.distillation:
            return {"loss": self.distillation.weight(batch)}
        return dict.fromkeys(self.terms, float((batch["slot"] == ANCHOR).sum()))

    def loss(self, vectors_BW: tf.Tensor, batch: Batch) -> Tensors:
        """The sum of the squared errors of the pairs' cosines, or of a teacher's scores, of each
        size of the vectors."""
        if self.distillation:
            return {"loss": tf.add_n(self._distilled(self.distillation, vectors_BW, batch))}
        losses = []
        for size in (vectors_BW.shape[-1], *self._sizes_below(vectors_BW.shape[-1])):
            units_BW = tf.math.l2_normalize(vectors_BW[:, :size], -1)
            anchors_PW = tf.gather(units_BW, batch["pair_anchor"])
            others_PW = tf.gather(units_BW, batch["pair_other"])
            cosines_P = tf.reduce_sum(anchors_PW * others_PW, 1)
            losses_P = tf.square(cosines_P - batch["pair_score"])
            losses.append(tf.reduce_sum(losses_P * batch["is_pair"]))
        return {"loss": tf.add_n(losses)}

    def _distilled(
        self, distillation: Distillation, vectors_BW: tf.Tensor, batch: Batch
    ) -> list[tf.Tensor]:
        losses = []
        for size in (vectors_BW.shape[-1], *self._sizes_below(vectors_BW.shape[-1])):
            part_BW = vectors_BW[:, :size]
            if self.normalize:
                part_BW = tf.math.l2_normalize(part_BW, -1)
            anchors_CW = tf.gather(part_BW, batch["candidate_anchor"])
            candidates_CW = tf.gather(part_BW, batch["candidate"])
            products_C = tf.reduce_sum(anchors_CW * candidates_CW, 1)
            losses.append(distillation.loss(products_C, batch))
        return losses

    def _sizes_below(self, width: int) -> list[int]:
        return [size for size in self.vectors.sizes if size < width]

    # -- rows and results --------------------------------------------------------------------------

    def outputs(self, vectors_BW: tf.Tensor) -> Tensors:
        outputs = {"vector": vectors_BW}
        for size in self._sizes_below(vectors_BW.shape[-1]):
            part_BW = vectors_BW[:, :size]
            if self.normalize:
                part_BW = tf.math.l2_normalize(part_BW, -1)
            outputs[f"vector_{size}"] = part_BW
        return outputs

    def decoder(self, data: Data) -> "Truncation":
        return Truncation(self.vectors.truncate_dim, self.normalize)

    def scores(self, kind: str, data: Data, vectors: np.ndarray) -> Scores:
        """Those of the vectors, and the main ones of each smaller size."""
        if data.source.kind == "predict":
            return {}
        values = self._search(data, vectors).scores()
        scores = {f"{kind}_{name}": value for name, value in values.items()}
        for size in self._sizes_below(vectors.shape[1]):
            of_size = self._search(data, vectors[:, :size]).scores()
            for name in MAIN_SCORES:
                if name in of_size:
                    scores[f"{kind}_{name}_{size}"] = of_size[name]
        return scores

    def records(self, data: Data, vectors: np.ndarray) -> Iterable[Record]:
        if data.source.kind == "predict":
            return ()
        return self._search(data, vectors).records()

    def finished(self, data: Data, vectors: np.ndarray | None, world: World) -> Any:
        """The vectors, or what was mined with them."""
        if not self.mining or data.source.kind != "predict":
            return vectors
        search = None
        if vectors is not None:
            search = self._search(data, vectors)
        return mine(search, self.mining, world)

    def write(self, run: Run, data: Data, results: Any) -> None:
        """Writes the vectors of the texts in the order of the rows: vectors.npy, and
        vectors.parquet with the texts. Or what was mined: mined.jsonl."""
        if self.mining:
            write_mined(run, results, self.mining)
        else:
            self._write_vectors(run, data, results)

    def _write_vectors(self, run: Run, data: Data, vectors: np.ndarray) -> None:
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


class Truncation(Decoder):
    """Keeps the first `size` numbers of each vector, all of them with None; unit vectors are made
    unit vectors again."""

    def __init__(self, size: int | None, normalizes: bool):
        self._size = size
        self._normalizes = normalizes

    def results(self, kept: Sequence[np.ndarray]) -> np.ndarray:
        vectors = np.array(kept)
        if self._size is None:
            return vectors
        part = vectors[:, : self._size]
        if not self._normalizes:
            return part.copy()
        lengths = np.linalg.norm(part, axis=1, keepdims=True)
        return part / np.maximum(lengths, SHORTEST)


def texts_of(batch: Batch) -> tuple[list[np.ndarray], np.ndarray]:
    """The texts of a batch, and which rows of attention have one."""
    has_text = batch["slot"] >= 0
    return [batch[name][has_text] for name in OF_TEXTS], has_text


def most_texts(pairs: Rows) -> int:
    """The most texts of a row."""
    return int(np.diff(pairs.column("sizes")[1]).max())


def has_labels(pairs: Rows) -> bool:
    return LABEL in pairs.table.column_names


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
