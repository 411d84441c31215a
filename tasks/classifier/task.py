"""The task of bert-classifier: the label of a text or a pair of texts, or a number.

Tensors have their shape as a suffix: B rows, L labels.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf

from bert import configuration
from bert.batch import Batch, Grouping, batch_of, num_examples
from bert.configuration import BertConfig, unnamed_labels
from bert.heads import CLASSIFIER
from distributed.rows import Rows
from distributed.run import Run
from ringbase.errors import InputError
from ringbase.files import parse_json
from ringbase.ragged import padded
from ringbase.settings import shown
from tasks.classifier.named_tasks import Labels, NamedTask, is_on_pairs, task_of
from tasks.classifier.reading import Source, read
from tasks.classifier.settings import ClassifierConfig
from tasks.classifier.several import FLAGS, targets
from tasks.start import Start
from tasks.trained import settings_of

CLASSIFICATION = ("single_label_classification", "multi_label_classification")
LEAST_WEIGHT = 1e-6  # of a label; its inverse is the greatest


@dataclass(frozen=True)
class LabelTask:
    """Texts with a label, or with several; see `tasks.task.Task`. `weight_of_label`, float32 [L]:
    None for equal weights."""

    max_seq_length: int
    weight_of_label: np.ndarray | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    num_labels: int = 0  # where a text may have several
    head = CLASSIFIER
    terms = ("loss",)

    def batch(self, fields: dict[str, Any], grouping: Grouping | None = None) -> Batch:
        fields, batch = batch_of(fields, grouping)
        label = targets(fields["label"], self.num_labels) if self.num_labels else fields["label"]
        return batch | {"label": padded(label, len(batch["first_tokens"]))}

    def weights(self, batch: Batch) -> dict[str, float]:
        label = batch["label"][: num_examples(batch)]
        if self.weight_of_label is None or self.num_labels:
            return {"loss": float(len(label))}
        weights = self.weight_of_label[label]
        return {"loss": float(weights.sum(dtype=np.float64))}

    def loss(self, scores_BL: tf.Tensor, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Weighted sum over rows of the cross-entropy, of the mean over labels of each one's when a
        text may have several, or of the squared error when the label is a number."""
        label = batch["label"]
        if self.num_labels:
            losses_BL = tf.nn.sigmoid_cross_entropy_with_logits(label, scores_BL)
            weights_L = 1.0 if self.weight_of_label is None else self.weight_of_label
            return {
                "loss": tf.reduce_sum(
                    tf.reduce_mean(losses_BL * weights_L, 1) * batch["is_example"]
                )
            }
        if label.dtype.is_floating:
            losses_B = tf.square(scores_BL[:, 0] - label)
        else:
            losses_B = tf.nn.sparse_softmax_cross_entropy_with_logits(label, scores_BL)
        if self.weight_of_label is not None:
            losses_B *= tf.gather(tf.constant(self.weight_of_label), label)
        return {"loss": tf.reduce_sum(losses_B * batch["is_example"])}


def class_weights(setting: str | None, labels: Labels, rows: Rows) -> np.ndarray | None:
    """The weight of each label, float32 [L], from LABEL=WEIGHT,… or a JSON object, or for
    "balanced" from the training set, as in scikit-learn: n / (L * examples with the label)."""
    if setting is None:
        return None
    if labels is None:
        raise InputError("--class_weights needs labels, which a regression does not have")
    if setting == "balanced":
        column = rows.column("label")
        counts = np.bincount(
            column[0] if isinstance(column, tuple) else np.asarray(column), minlength=len(labels)
        )
        if not counts.all():
            raise InputError(
                f"--class_weights balanced: no example has label {labels[int(np.argmin(counts))]}"
            )
        return (counts.sum() / (len(labels) * counts)).astype(np.float32)
    if setting.startswith("{"):
        pairs = [*parse_json(setting, "--class_weights: ").items()]
    else:
        pairs = [part.rpartition("=")[::2] for part in setting.split(",")]
    try:
        weights = np.array([float(dict(pairs)[name]) for name in labels], np.float32)
    except (ValueError, KeyError, TypeError):
        weights = np.zeros(len(labels), np.float32)
    if (
        len(pairs) != len(labels)
        or not ((weights >= LEAST_WEIGHT) & (weights <= 1 / LEAST_WEIGHT)).all()
    ):
        raise InputError(
            "--class_weights must be LABEL=WEIGHT,… or, for labels with commas, a JSON object,"
            f" with each of the labels {', '.join(labels)} and weights from {LEAST_WEIGHT:g} to"
            f" {1 / LEAST_WEIGHT:g}, got {setting}"
        )
    return weights


# -- labels, in the order of the model's outputs ---------------------------------------------------


def with_labels(config: ClassifierConfig, start: Start, run: Run) -> tuple[NamedTask, Start]:
    """The task, and the start of its classifier: the configuration has the labels in the order of
    the model's outputs, and a head for other labels is initialized again. On rank 0.

    The labels are those of the checkpoint's `id2label`, else the task's (in Google's order), else
    the training file's (sorted). Raises InputError: nothing says what they are, or an untrained
    model has others.
    """
    texts, trains = config.texts, config.do_train
    has_pairs = not trains and start.weights is not None and is_on_pairs(settings_of(start.weights))
    task = task_of(texts, bool(has_pairs))
    if has_pairs and not texts.task_name and task.columns.pair is None:
        run.say(
            "warning: the model was trained on pairs of texts: --text_pair_column names the second"
            " text"
        )
    # config.json beside the weights counts, even if `--bert_config_file` replaces it.
    trained = stated_labels(configuration.read_config(start.weights) if start.weights else None)
    stated, labels = trained or stated_labels(start.bert_config), task.labels
    if labels == () and trains:
        labels = labels_of_file(Source(texts, task, "train"))
    if labels == ():
        # A trained classifier may have labels that are named LABEL_0, LABEL_1, …
        if stated is None and start.bert_config.problem_type not in CLASSIFICATION:
            raise InputError(
                "the labels are unknown: the model's config.json has no id2label; --do_train is off"
            )
        labels = stated or labels_of(start.bert_config)
    elif labels and stated and stated != labels:
        own, others = ", ".join(stated), ", ".join(labels)
        if sorted(stated) == sorted(labels):
            run.say(f"labels: the model's own order {own} (id2label), not {others}")
            labels = stated
        elif not trains:
            raise InputError(f"the model's labels (id2label) are {own}, the data's {others}")
        else:
            run.say(f"the model's labels {own} are not this task's: a new classifier is trained")
    kind = (
        f"{'multi' if task.has_several else 'single'}_label_classification"
        if labels is not None
        else "regression"
    )
    if trained and start.bert_config.problem_type not in (None, kind) and not trains:
        raise InputError(
            f"the model was trained for {start.bert_config.problem_type}, this command asks for"
            f" {kind}"
        )
    bert_config = replace(start.bert_config, labels=labels or unnamed_labels(1), problem_type=kind)
    is_new = trained is not None and sorted(trained) != sorted(labels or ())
    fresh = ("output_weights", "output_bias") if is_new else ()
    return task, replace(start, bert_config=bert_config, fresh_tensors=fresh)


def labels_of_file(source: Source) -> tuple[str, ...]:
    """The labels that occur in a training file, sorted as numbers if all are whole numbers, else as
    texts. Raises InputError: there is only one."""
    found, column = read(source).labels or [], source.task.columns.label
    if source.task.has_several:
        listed = tuple(sorted(set(itertools.chain(*found))))
        if not listed:
            raise InputError(f"{source}: no text has a label in {column!r} (--label_column)")
        if not source.task.columns.labels and set(listed) <= set(FLAGS):
            raise InputError(
                f"{source}: {column!r} holds 0 and 1: for one label leave --multi_label out"
            )
        _check_names(listed, source)
        return source.task.columns.labels or listed
    labels = sorted(set(map(str, found)))
    _check_names(labels, source)
    if len(labels) < 2:
        raise InputError(
            f"{source}: every example has the label {labels[0]!r:.80}, 2 are needed"
            " (--label_column)"
        )
    are_numbers = all(label.removeprefix("-").isdecimal() for label in labels)
    return tuple(sorted(labels, key=float) if are_numbers else labels)


def _check_names(labels: Sequence[str], source: Source) -> None:
    """Raises InputError for labels that predictions.tsv could not hold, or that are probably
    one."""
    without_blanks = dict[str, str]()
    for label in labels:
        if re.search("[\t\n\r]", label):
            raise InputError(
                f"{source}: a label must not hold a tab or line end, got {shown(label)}"
            )
        other = without_blanks.setdefault("".join(label.split()), label)
        if other != label:
            raise InputError(
                f"{source}: the labels {shown(other)} and {shown(label)} differ only in blanks"
            )


def labels_of(bert_config: BertConfig) -> Labels:
    """The names in config.json, by id, which may be placeholders; None for regression."""
    several = bert_config.problem_type == CLASSIFICATION[1]
    is_number = bert_config.problem_type == "regression" or (
        len(bert_config.labels) == 1 and not several
    )
    return None if is_number else bert_config.labels


def stated_labels(bert_config: BertConfig | None) -> Labels:
    """The names in config.json unless they are the placeholders LABEL_0, LABEL_1, …"""
    names = (labels_of(bert_config) if bert_config else None) or ()
    return None if names == unnamed_labels(len(names)) else names
