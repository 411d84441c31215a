"""The task of bert-classifier: the label of a text or a pair of texts, or a number.

Tensors have their shape as a suffix: B rows, L labels.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf
from scipy.special import expit, log_softmax, softmax

from bert.batch import Batch, Grouping, batch_of, num_examples
from bert.heads import CLASSIFIER
from distributed.rows import Rows, ragged
from distributed.run import Run
from ringbase.errors import InputError
from ringbase.files import parse_json
from ringbase.ragged import padded
from tasks.classifier.details import least_sure, one_label, several_labels
from tasks.classifier.reader import LabelReader
from tasks.classifier.reading import Texts
from tasks.classifier.scoring import metrics, table_of
from tasks.classifier.several import HALF, THRESHOLDS, in_a_cell, targets, thresholds_of
from tasks.runs.cache import Tables, with_facts
from tasks.runs.details import Details
from tasks.runs.ranking import BEST, ranks_in_groups, search_scores
from tasks.runs.resolve.labels import Labels
from tasks.runs.task import DataSet, Record, Scores, Task, Tensors, named_outputs
from tasks.runs.texts import Preparation, rows_of_texts

Data = DataSet[Texts]
LEAST_WEIGHT = 1e-6  # of a label; its inverse is the greatest


@dataclass(frozen=True)
class LabelTask(LabelReader, Task[Texts, np.ndarray]):
    """Texts with a label, or with several, or a number. The results are the scores, float32
    [B, L]."""

    metrics: tuple[str, ...] = ("accuracy",)  # names in `scoring.metrics`
    class_weights: str | None = None  # the flag
    settings: Mapping = field(default_factory=dict)
    weight_of_label: np.ndarray | None = None  # float32 [L]; None for equal weights
    thresholds: Mapping[str, float] = field(default_factory=dict)  # of several labels
    ranks: bool = False  # scores also how the second texts of each first text are ranked
    head = CLASSIFIER

    @property
    def metric(self) -> str:
        return f"eval_{self.metrics[0]}" if not self.ranks else f"eval_ndcg@{BEST}"

    @property
    def fixed(self) -> Mapping:
        return {"max_seq_length": self.max_seq_length, "class_weights": self.class_weights}

    def weighted(self, rows: Rows) -> "LabelTask":
        """The task with the weights that `class_weights` gives the labels of these rows."""
        weights = weights_of_labels(self.class_weights, self.labels, rows)
        return replace(self, weight_of_label=weights)

    def batch(self, fields: dict, grouping: Grouping | None = None) -> Batch:
        fields, batch = batch_of(fields, grouping)
        label = self._targets(fields["label"])
        return batch | {"label": padded(label, len(batch["first_tokens"]))}

    def weights(self, batch: Batch) -> dict[str, float]:
        count = num_examples(batch)
        if self.weight_of_label is None or self.has_several:
            return {"loss": float(count)}
        label = batch["label"][:count]
        weights = self.weight_of_label[label]
        return {"loss": float(weights.sum(dtype=np.float64))}

    def loss(self, scores_BL: tf.Tensor, batch: Batch) -> Tensors:
        """Weighted sum over rows of the cross-entropy, of the mean over labels of each one's when a
        text may have several, or of the squared error when the label is a number."""
        label, weight_of_label = batch["label"], self.weight_of_label
        if self.has_several:
            losses_BL = tf.nn.sigmoid_cross_entropy_with_logits(label, scores_BL)
            weights_L = 1.0 if weight_of_label is None else weight_of_label
            losses_B = tf.reduce_mean(losses_BL * weights_L, 1)
        elif label.dtype.is_floating:
            losses_B = tf.square(scores_BL[:, 0] - label)
        else:
            losses_B = tf.nn.sparse_softmax_cross_entropy_with_logits(label, scores_BL)
            if weight_of_label is not None:
                losses_B *= tf.gather(weight_of_label, label)
        return {"loss": tf.reduce_sum(losses_B * batch["is_example"])}

    def tables(self, texts: Texts, preparation: Preparation) -> Tables:
        """Tokenizes texts.

        A row of `examples` has the columns of `rows_of_texts` and `label` (its index in `labels`,
        int32, -1 without a label; if `labels` is None, the number itself, float32, NaN without a
        label; with `has_several` a list of indices). A row of `ids` has the `id` of the example.
        The facts are those of `Preparation.rows`.
        """
        first = texts.first
        second: Sequence = texts.second or [None] * len(first)
        examples, fit = rows_of_texts(preparation, first, second, self.max_seq_length)
        examples["label"] = self._label_column(texts)
        empty = [text for text in (*first, *second) if text is not None and not text.strip()]
        cut = f"cut to --max_seq_length {self.max_seq_length}"
        counts = {cut: fit["rows_cut"], "with an empty text": len(empty), **texts.counts}
        notes = [f"{len(first):,} examples"]
        notes += [f"{count:,} {text}" for text, count in counts.items() if count]
        ids = {"id": pa.array(texts.ids)}
        return with_facts({"examples": examples, "ids": ids}, {"notes": notes, **fit})

    def _label_column(self, texts: Texts) -> pa.Array:
        """The numbers of the labels, or the numbers themselves; see `tables`."""
        size = len(texts.first)
        if self.labels is None:
            return pa.array(texts.labels or [np.nan] * size, pa.float32())
        number_of = {label: number for number, label in enumerate(self.labels)}
        if not self.has_several:
            labels = texts.labels or [None] * size
            return pa.array([number_of.get(label, -1) for label in labels], pa.int32())
        lists = []
        for names in texts.labels or [()] * size:
            lists.append(np.array([number_of[label] for label in names]))
        return ragged(lists, pa.int32())

    def outputs(self, scores_BL: tf.Tensor) -> Tensors:
        if self.labels is None:
            return {"value": scores_BL[:, 0]}
        if self.has_several:
            return {"probabilities": tf.math.sigmoid(scores_BL), "logits": scores_BL}
        return named_outputs(scores_BL, self.labels)

    def labelled(self, scores_BL: np.ndarray) -> tuple[np.ndarray, list[tuple[str, ...]]]:
        """The probability of each label, float64 [B, L], and the labels of each text: the most
        probable one; where it may have several, those whose probability is above their
        threshold."""
        labels = self.labels or ()
        exact_BL = scores_BL.astype(float)
        if not self.has_several:
            best_B = scores_BL.argmax(1)
            return softmax(exact_BL, 1), [(labels[best],) for best in best_B]
        shares_BL = expit(exact_BL)
        is_above_BL = self._above(shares_BL)
        return shares_BL, [tuple(itertools.compress(labels, row_L)) for row_L in is_above_BL]

    def _above(self, shares_BL: np.ndarray) -> np.ndarray:
        """Which of several labels have a probability above their threshold, bool [B, L]."""
        thresholds_L = [self.thresholds.get(label, HALF) for label in self.labels or ()]
        return shares_BL > thresholds_L

    def true_labels(self, data: Data) -> np.ndarray:
        """The numbers of the labels, or the numbers themselves, [B]; where a text may have several,
        bool [B, L]."""
        column = self._targets(data.rows.column("label"))
        return column > 0 if self.has_several else column

    def _targets(self, column: Any) -> np.ndarray:
        """A column of labels as an array: [B], or float32 [B, L] where a text may have several."""
        return targets(column, len(self.labels or ())) if self.has_several else column

    def scores(self, kind: str, data: Data, scores_BL: np.ndarray) -> Scores:
        if data.examples().labels is None:
            return {}
        true = self.true_labels(data)
        exact_BL = scores_BL.astype(np.float64)
        if self.labels is None:
            predicted: np.ndarray = exact_BL[:, 0]
            losses = np.square(predicted - true)
        elif self.has_several:
            predicted = scores_BL > 0
            losses = np.logaddexp(0, exact_BL) - true * scores_BL
        else:
            predicted = scores_BL.argmax(1)
            logs_BL = log_softmax(exact_BL, 1)
            losses = -logs_BL[np.arange(len(true)), true]
        values = metrics(self.metrics, true, predicted)
        values["loss"] = float(np.mean(losses))
        if self.ranks:
            ranks = ranks_in_groups(data.examples().first, true, predicted)
            values |= search_scores(ranks)
        return {f"{kind}{data.source.suffix}_{name}": value for name, value in values.items()}

    def records(self, data: Data, scores_BL: np.ndarray) -> Iterator[Record]:
        """How wrong a number is counts as its sureness; of several labels that of the surest wrong
        one."""
        if data.is_printed:
            return
        rows = data.examples().rows()
        if self.labels is None:
            for fields, value in zip(rows, scores_BL[:, 0].tolist(), strict=True):
                error = abs(value - fields["label"]) if "label" in fields else None
                yield Record(fields | {"prediction": value}, error)
            return
        shares_BL, chosen = self.labelled(scores_BL)
        for fields, names, shares in zip(rows, chosen, self._by_label(shares_BL), strict=True):
            prediction: Any = names
            if self.has_several:
                wrong = set(names).symmetric_difference(fields.get("label", names))
                distances = [abs(shares[label] - HALF) for label in wrong]
                sureness = mistake = max(distances, default=None)
            else:
                prediction = names[0]
                sureness = shares[prediction]
                is_wrong = fields.get("label", prediction) != prediction
                mistake = sureness if is_wrong else None
            fields |= {"prediction": prediction}
            shown = fields | {"sureness": sureness}
            yield Record(fields | {"probabilities": shares}, mistake, shown)

    def _by_label(self, shares_BL: np.ndarray) -> list[dict[str, float]]:
        return [dict(zip(self.labels or (), row, strict=True)) for row in shares_BL.tolist()]

    def write(self, run: Run, data: Data, scores_BL: np.ndarray) -> None:
        """Writes Google's test_results.tsv (probabilities, no header) and GLUE's submission file
        (ids and labels, or numbers clipped to the task's range), of the user's own files a table
        with the texts too. Of lines of standard input it only prints a line for each: the label, a
        tab and its probability, or a number. Several labels of a text are written by `in_a_cell`.
        """
        source = data.source
        columns: dict = {}
        if self.labels is None:
            shown = scores_BL
            numbers = scores_BL[:, 0].tolist()
            clipped = np.clip(numbers, *source.task.range)
            columns["prediction"] = [f"{number:.3f}" for number in clipped]
            lines = map(str, numbers)
        else:
            shown, chosen = self.labelled(scores_BL)
            if self.has_several:
                columns["prediction"] = in_a_cell(chosen, self.labels)
            else:
                columns["prediction"] = [names[0] for names in chosen]
            probabilities = []
            for names, shares in zip(chosen, self._by_label(shown), strict=True):
                probabilities.append(",".join(f"{shares[label]:.4f}" for label in names))
            columns["probability"] = probabilities
            lines = map("\t".join, zip(*columns.values(), strict=True))
        if data.is_printed:
            print(*lines, sep="\n", flush=True)
            return
        results = ["\t".join(map(str, row)) + "\n" for row in shown.tolist()]
        run.write(f"test_results{source.suffix}.tsv", "".join(results))
        columns = {"index": data.tables["ids"].column("id"), **columns}
        if source.part.submission:
            columns.pop("probability", None)
            run.write(source.part.submission, table_of(columns))
            return
        texts = data.examples()
        columns["text"] = texts.first
        if texts.second:
            columns["second text"] = texts.second
        run.write(f"predictions{source.suffix}.tsv", table_of(columns))

    def calibrated(self, data: Data, scores_BL: np.ndarray) -> dict:
        """The threshold of each label, where a text may have several."""
        if not (self.has_several and self.labels):
            return {}
        thresholds = thresholds_of(self.true_labels(data), scores_BL).tolist()
        return {THRESHOLDS: dict(zip(self.labels, thresholds, strict=True))}

    def taught(self, settings: Mapping) -> "LabelTask":
        thresholds = settings.get(THRESHOLDS)
        return replace(self, thresholds=thresholds) if isinstance(thresholds, dict) else self

    def details(self, data: Data, scores_BL: np.ndarray) -> Details:
        if self.labels is None:
            return Details()
        true = self.true_labels(data)
        if self.has_several:
            shares_BL, _ = self.labelled(scores_BL)
            return several_labels(self.labels, true, self._above(shares_BL))
        details = one_label(data.suffix, self.labels, true, scores_BL.argmax(1))
        doubtful = least_sure(data.suffix, self.records(data, scores_BL))
        return details._replace(sections=[*details.sections, doubtful])


def weights_of_labels(setting: str | None, labels: Labels, rows: Rows) -> np.ndarray | None:
    """The weight of each label, float32 [L], from LABEL=WEIGHT,… or a JSON object, or for
    "balanced" from the training set, as in scikit-learn: n / (L * examples with the label)."""
    if setting is None:
        return None
    if labels is None:
        raise InputError("--class_weights needs labels, which a regression does not have")
    if setting == "balanced":
        column = rows.column("label")
        numbers = column[0] if isinstance(column, tuple) else column
        counts = np.bincount(numbers, minlength=len(labels))
        if not counts.all():
            raise InputError(
                f"--class_weights balanced: no example has label {labels[counts.argmin()]}"
            )
        return (counts.sum() / (len(labels) * counts)).astype(np.float32)
    if setting.startswith("{"):
        pairs = [*parse_json(setting, "--class_weights: ").items()]
    else:
        pairs = [part.rpartition("=")[::2] for part in setting.split(",")]
    try:
        weights = np.array([float(dict(pairs)[name]) for name in labels], np.float32)
    except (ValueError, KeyError, TypeError):
        weights = np.zeros(1, np.float32)
    is_usable = (weights >= LEAST_WEIGHT) & (weights <= 1 / LEAST_WEIGHT)
    if len(pairs) != len(labels) or not is_usable.all():
        raise InputError(
            "--class_weights must be LABEL=WEIGHT,… or, for labels with commas, a JSON object,"
            f" with each of the labels {', '.join(labels)} and weights from {LEAST_WEIGHT:g} to"
            f" {1 / LEAST_WEIGHT:g}, got {setting}"
        )
    return weights
