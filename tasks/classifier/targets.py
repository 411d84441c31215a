"""What the label of a text is: one of several, some of them, or a number. Without TensorFlow, whose
part is losses.py.

Arrays have their shape as a suffix: B rows, L labels.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy import ndarray
from scipy.special import expit, log_softmax, softmax

from distributed.rows import ragged
from tasks.classifier.details import least_sure, one_label, several_labels
from tasks.classifier.several import HALF, THRESHOLDS, in_a_cell, targets, thresholds_of
from tasks.runs.details import Details, Record
from tasks.runs.resolve.labels import Labels

Fields = dict[str, Any]  # of an example: its texts, and its label if it has one


class Lines(NamedTuple):
    """Predictions as files have them."""

    shown: ndarray  # test_results.tsv: probabilities [B, L], or numbers [B, 1]
    columns: dict[str, list[str]]  # of predictions.tsv
    printed: list[str]  # a line for each text of standard input


class Target(ABC):
    """A kind of label: how it is stored, predicted, measured and written."""

    labels: tuple[str, ...]  # their names in the model's order; none of a number

    @abstractmethod
    def column(self, found: Sequence | None, size: int) -> pa.Array:
        """The column "label" of the labels that were read of so many examples, if any were."""

    def truth(self, column: Any) -> ndarray:
        """That column, as `Rows` give it, as an array of the batch."""
        return column

    def weight(self, label_B: ndarray, weight_of_label: ndarray | None) -> float:
        """By how much the losses of a batch are divided."""
        return float(len(label_B))

    @abstractmethod
    def measured(self, truth: ndarray, scores_BL: ndarray) -> tuple[ndarray, ndarray]:
        """What is predicted, in the form of `truth`, and the loss of each row."""

    @abstractmethod
    def records(self, rows: Iterable[Fields], scores_BL: ndarray) -> Iterator[Record]:
        """What predictions.jsonl and the page have of each text."""

    @abstractmethod
    def lines(self, scores_BL: ndarray, limits: tuple[float, float]) -> Lines:
        """What files have of the predictions. `limits`: those of submitted numbers."""

    def calibrated(self, truth: ndarray, scores_BL: ndarray) -> Mapping[str, Any]:
        """Settings that an evaluation finds for predictions."""
        return {}

    def details(
        self, suffix: str, rows: Iterable[Fields], truth: ndarray, scores_BL: ndarray
    ) -> Details:
        """What the report shows of an evaluation of the set with this suffix."""
        return Details()


@dataclass(frozen=True)
class Number(Target):
    """Regression: the squared error."""

    labels: tuple[str, ...] = ()

    def column(self, found: Sequence | None, size: int) -> pa.Array:
        return pa.array(found or [np.nan] * size, pa.float32())

    def measured(self, truth: ndarray, scores_BL: ndarray) -> tuple[ndarray, ndarray]:
        predicted_B = scores_BL.astype(np.float64)[:, 0]
        return predicted_B, np.square(predicted_B - truth)

    def records(self, rows: Iterable[Fields], scores_BL: ndarray) -> Iterator[Record]:
        """How wrong a number is counts as its sureness."""
        for fields, value in zip(rows, scores_BL[:, 0].tolist(), strict=True):
            error = abs(value - fields["label"]) if "label" in fields else None
            yield Record(fields | {"prediction": value}, error)

    def lines(self, scores_BL: ndarray, limits: tuple[float, float]) -> Lines:
        numbers = scores_BL[:, 0].tolist()
        clipped = np.clip(numbers, *limits)
        columns = {"prediction": [f"{number:.3f}" for number in clipped]}
        return Lines(scores_BL, columns, [*map(str, numbers)])


class NamedLabels(Target):
    """Labels with names, each with a probability."""

    @abstractmethod
    def labelled(self, scores_BL: ndarray) -> tuple[ndarray, list[tuple[str, ...]]]:
        """The probability of each label, float64 [B, L], and the labels of each text."""

    @abstractmethod
    def record(self, fields: Fields, names: tuple[str, ...], shares: Mapping[str, float]) -> Record:
        """That of a text with these labels and probabilities."""

    @abstractmethod
    def cells(self, chosen: Sequence[tuple[str, ...]]) -> list[str]:
        """The labels of each text in a cell of a table."""

    def records(self, rows: Iterable[Fields], scores_BL: ndarray) -> Iterator[Record]:
        shares_BL, chosen = self.labelled(scores_BL)
        for fields, names, shares in zip(rows, chosen, self._by_label(shares_BL), strict=True):
            yield self.record(fields, names, shares)

    def lines(self, scores_BL: ndarray, limits: tuple[float, float]) -> Lines:
        shares_BL, chosen = self.labelled(scores_BL)
        probabilities = []
        for names, shares in zip(chosen, self._by_label(shares_BL), strict=True):
            probabilities.append(",".join(f"{shares[label]:.4f}" for label in names))
        columns = {"prediction": self.cells(chosen), "probability": probabilities}
        printed = [*map("\t".join, zip(*columns.values(), strict=True))]
        return Lines(shares_BL, columns, printed)

    def _by_label(self, shares_BL: ndarray) -> list[dict[str, float]]:
        return [dict(zip(self.labels, row, strict=True)) for row in shares_BL.tolist()]

    def _numbers(self) -> dict[str, int]:
        return {label: number for number, label in enumerate(self.labels)}


@dataclass(frozen=True)
class OneLabel(NamedLabels):
    """One label of several: the cross-entropy, weighted by labels."""

    labels: tuple[str, ...]

    def column(self, found: Sequence | None, size: int) -> pa.Array:
        number_of = self._numbers()
        labels = found or [None] * size
        return pa.array([number_of.get(label, -1) for label in labels], pa.int32())

    def weight(self, label_B: ndarray, weight_of_label: ndarray | None) -> float:
        if weight_of_label is None:
            return super().weight(label_B, None)
        return float(weight_of_label[label_B].sum(dtype=np.float64))

    def labelled(self, scores_BL: ndarray) -> tuple[ndarray, list[tuple[str, ...]]]:
        """The most probable label."""
        best_B = scores_BL.argmax(1)
        return softmax(scores_BL.astype(float), 1), [(self.labels[best],) for best in best_B]

    def measured(self, truth: ndarray, scores_BL: ndarray) -> tuple[ndarray, ndarray]:
        logs_BL = log_softmax(scores_BL.astype(np.float64), 1)
        return scores_BL.argmax(1), -logs_BL[np.arange(len(truth)), truth]

    def record(self, fields: Fields, names: tuple[str, ...], shares: Mapping[str, float]) -> Record:
        (prediction,) = names
        sureness = shares[prediction]
        is_wrong = fields.get("label", prediction) != prediction
        fields |= {"prediction": prediction}
        shown = fields | {"sureness": sureness}
        return Record(fields | {"probabilities": shares}, sureness if is_wrong else None, shown)

    def cells(self, chosen: Sequence[tuple[str, ...]]) -> list[str]:
        return [name for (name,) in chosen]

    def details(
        self, suffix: str, rows: Iterable[Fields], truth: ndarray, scores_BL: ndarray
    ) -> Details:
        details = one_label(suffix, self.labels, truth, scores_BL.argmax(1))
        doubtful = least_sure(suffix, self.records(rows, scores_BL))
        return details._replace(sections=[*details.sections, doubtful])


@dataclass(frozen=True)
class SeveralLabels(NamedLabels):
    """Any number of labels: the mean over labels of each one's cross-entropy."""

    labels: tuple[str, ...]
    thresholds: Mapping[str, float] = field(default_factory=dict)  # of probabilities

    def column(self, found: Sequence | None, size: int) -> pa.Array:
        number_of = self._numbers()
        lists = []
        for names in found or [()] * size:
            lists.append(np.array([number_of[label] for label in names]))
        return ragged(lists, pa.int32())

    def truth(self, column: Any) -> ndarray:
        """float32 [B, L], 1 for each label."""
        return targets(column, len(self.labels))

    def labelled(self, scores_BL: ndarray) -> tuple[ndarray, list[tuple[str, ...]]]:
        """Those whose probability is above their threshold."""
        shares_BL = expit(scores_BL.astype(float))
        chosen = []
        for is_above_L in self._above(shares_BL):
            chosen.append(tuple(itertools.compress(self.labels, is_above_L)))
        return shares_BL, chosen

    def _above(self, shares_BL: ndarray) -> ndarray:
        return shares_BL > [self.thresholds.get(label, HALF) for label in self.labels]

    def measured(self, truth: ndarray, scores_BL: ndarray) -> tuple[ndarray, ndarray]:
        true_BL = truth > 0
        losses_BL = np.logaddexp(0, scores_BL.astype(np.float64)) - true_BL * scores_BL
        return scores_BL > 0, losses_BL

    def record(self, fields: Fields, names: tuple[str, ...], shares: Mapping[str, float]) -> Record:
        """As sure as its surest wrong label."""
        wrong = set(names).symmetric_difference(fields.get("label", names))
        distances = [abs(shares[label] - HALF) for label in wrong]
        sureness = max(distances, default=None)
        fields |= {"prediction": names}
        shown = fields | {"sureness": sureness}
        return Record(fields | {"probabilities": shares}, sureness, shown)

    def cells(self, chosen: Sequence[tuple[str, ...]]) -> list[str]:
        return in_a_cell(chosen, self.labels)

    def calibrated(self, truth: ndarray, scores_BL: ndarray) -> Mapping[str, Any]:
        """The threshold of each label."""
        thresholds = thresholds_of(truth > 0, scores_BL).tolist()
        return {THRESHOLDS: dict(zip(self.labels, thresholds, strict=True))}

    def details(
        self, suffix: str, rows: Iterable[Fields], truth: ndarray, scores_BL: ndarray
    ) -> Details:
        shares_BL, _ = self.labelled(scores_BL)
        return several_labels(self.labels, truth > 0, self._above(shares_BL))


def target_of(
    labels: Labels, has_several: bool, thresholds: Mapping[str, float] | None = None
) -> Target:
    """The kind of labels: these, of which a text may have several, or a number for None."""
    if labels is None:
        return Number()
    return SeveralLabels(labels, thresholds or {}) if has_several else OneLabel(labels)
