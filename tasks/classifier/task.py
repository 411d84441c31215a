"""The task of bert-classifier: the label of a text or a pair of texts, or a number.

Tensors have their shape as a suffix: B rows, L labels.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import tensorflow as tf

from bert.batch import Batch, Grouping, batch_of, num_examples
from bert.heads import CLASSIFIER, Head
from distributed.rows import Rows
from distributed.run import Run
from ringbase.errors import InputError
from ringbase.files import parse_json
from ringbase.ragged import padded
from tasks.classifier.losses import Weighing, losses_of, outputs_of
from tasks.classifier.reader import LabelReader
from tasks.classifier.reading import Source, Texts
from tasks.classifier.scoring import metrics, queries_of, table_of
from tasks.classifier.several import THRESHOLDS
from tasks.classifier.targets import Target, target_of
from tasks.runs.details import Details, Record
from tasks.runs.flags import print_whole
from tasks.runs.ranking import BEST, ranked_groups, search_scores
from tasks.runs.resolve.labels import CLASSIFICATION, Labels, labels_of
from tasks.runs.resolve.spec import Start
from tasks.runs.rows.sets import DataSet
from tasks.runs.task import Scores, Task, Tensors

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
    smoothing: float = 0.0  # the flag --label_smoothing_factor
    ranks: bool = False  # scores also how the second texts of each first text are ranked
    head = CLASSIFIER

    @cached_property
    def target(self) -> Target:
        """What the labels are, with the thresholds of several."""
        return target_of(self.labels, self.has_several, self.thresholds)

    @property
    def metric(self) -> str:
        return f"eval_{self.metrics[0]}" if not self.ranks else f"eval_ndcg@{BEST}"

    def batch(self, fields: dict, grouping: Grouping | None = None) -> Batch:
        fields, batch = batch_of(fields, grouping)
        label = self.target.truth(fields["label"])
        return batch | {"label": padded(label, len(batch["first_tokens"]))}

    def weights(self, batch: Batch) -> dict[str, float]:
        label = batch["label"][: num_examples(batch)]
        return {"loss": self.target.weight(label, self.weight_of_label)}

    def loss(self, scores_BL: tf.Tensor, batch: Batch) -> Tensors:
        """The sum over rows of the target's loss."""
        weighing = Weighing(self.weight_of_label, self.smoothing)
        losses_B = losses_of(self.target, scores_BL, batch["label"], weighing)
        return {"loss": tf.reduce_sum(losses_B * batch["is_example"])}

    def outputs(self, scores_BL: tf.Tensor) -> Tensors:
        return outputs_of(self.target, scores_BL)

    def truth(self, data: Data) -> np.ndarray:
        """The true labels of a set, as the target has them."""
        return self.target.truth(data.rows.column("label"))

    def scores(self, kind: str, data: Data, scores_BL: np.ndarray) -> Scores:
        if data.examples().labels is None:
            return {}
        truth = self.truth(data)
        predicted, losses_B = self.target.measured(truth, scores_BL)
        values = metrics(self.metrics, truth, predicted)
        values["loss"] = float(np.mean(losses_B))
        if self.ranks:
            ranked = ranked_groups(data.examples().first, truth, predicted)
            values |= search_scores([group.ranks for group in ranked])
        return {f"{kind}{data.suffix}_{name}": value for name, value in values.items()}

    def records(self, data: Data, scores_BL: np.ndarray) -> Iterator[Record]:
        if data.is_printed:
            return iter(())
        return self.target.records(data.examples().rows(), scores_BL)

    def cases(self, data: Data, scores_BL: np.ndarray) -> Iterator[Record]:
        """Where documents are ranked, the queries."""
        texts = data.examples()
        if not self.ranks or texts.labels is None:
            return self.records(data, scores_BL)
        predicted, _ = self.target.measured(self.truth(data), scores_BL)
        return queries_of(texts, ranked_groups(texts.first, self.truth(data), predicted), predicted)

    def write(self, run: Run, data: Data, scores_BL: np.ndarray) -> None:
        """Writes Google's test_results.tsv (probabilities, no header) and GLUE's submission file
        (ids and labels, or numbers clipped to the task's range), of the user's own files a table
        with the texts too. Of lines of standard input it only prints a line for each: the label, a
        tab and its probability, or a number. Several labels of a text are written by `in_a_cell`.
        """
        source = data.source
        assert isinstance(source, Source)
        lines = self.target.lines(scores_BL, source.task.range)
        if data.is_printed:
            print_whole("\n".join(lines.printed), sys.stdout)
            return
        results = ["\t".join(map(str, row)) + "\n" for row in lines.shown.tolist()]
        run.write(f"test_results{source.suffix}.tsv", "".join(results))
        columns: dict = {"index": data.tables["ids"].column("id"), **lines.columns}
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
        return {**self.target.calibrated(self.truth(data), scores_BL)}

    def taught(self, settings: Mapping) -> "LabelTask":
        thresholds = settings.get(THRESHOLDS)
        return replace(self, thresholds=thresholds) if isinstance(thresholds, dict) else self

    def details(self, data: Data, scores_BL: np.ndarray) -> Details:
        rows = data.examples().rows()
        return self.target.details(data.suffix, rows, self.truth(data), scores_BL)


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


def of_model(head: Head, start: Start) -> LabelTask | None:
    """The task of a trained model with this head, for export."""
    if head is not CLASSIFIER:
        return None
    config = start.bert_config
    has_several = config.problem_type == CLASSIFICATION[1]
    return LabelTask(labels=labels_of(config), has_several=has_several)
