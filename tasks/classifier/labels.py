"""A classifier's labels, in the order of the model's outputs."""

from dataclasses import replace
from typing import Any

from transformers import BertConfig

from bert import configuration
from distributed.run import Run
from ringbase.errors import InputError
from tasks.classifier.named_tasks import Labels, NamedTask, is_on_pairs
from tasks.classifier.reading import Source, labels_in
from tasks.classifier.settings import TextSettings
from tasks.start import Start, settings_of

HEAD = ("output_weights", "output_bias")


def decide_labels(settings: TextSettings, trains: bool, task: NamedTask, start: Start, run: Run) -> Labels:
    """The labels in the order of the model's outputs; None for regression. On rank 0.

    They come from the checkpoint's `id2label`, else from the task (in Google's order), else from the training file
    (sorted).

    Raises InputError when nothing says what the labels are, or when they are not the model's and it is not
    trained.
    """
    if task.is_regression:
        return None
    labels = task.labels or (labels_of_file(Source(settings, task, "train")) if trains else None)
    stated = labels_of_weights(start) or stated_labels(start.bert_config)
    if labels is None:
        # A trained classifier may have labels that are named LABEL_0, LABEL_1, …
        if stated is None and start.bert_config.problem_type != "single_label_classification":
            raise InputError(
                "the labels are not known: the model's config.json has no id2label, and --do_train is off"
            )
        return stated or label_names(start.bert_config)
    if stated is None or stated == labels:
        return labels
    if sorted(stated) == sorted(labels):
        run.say(f"labels: the model's own order {', '.join(stated)} (id2label), not {', '.join(labels)}")
        return stated
    if not trains:
        raise InputError(f"the model's labels (id2label) are {', '.join(stated)}, the data's {', '.join(labels)}")
    run.say(f"the model's labels {', '.join(stated)} are not this task's: a new classifier is trained")
    return labels


def labels_of_file(source: Source) -> tuple[str, ...]:
    """The labels that occur in a training file. Raises InputError: there is only one."""
    labels = tuple(labels_in(source.read()))
    if len(labels) < 2:
        raise InputError(
            f"{source}: every example has the label {labels[0]!r:.80}, 2 labels or more are needed "
            "(--label_column)"
        )
    return labels


def with_classifier(start: Start, labels: Labels) -> Start:
    """The start of a classifier with these labels. If the weights have other labels, its head is initialized
    again. On rank 0."""
    stated = labels_of_weights(start)
    is_new = stated is not None and sorted(stated) != sorted(labels or ())
    bert_config = with_labels(start.bert_config, labels)
    return replace(start, bert_config=bert_config, fresh_tensors=HEAD if is_new else ())


def is_trained_on_pairs(start: Start) -> bool | None:
    """Whether the run that wrote the model was trained on pairs of texts; None if nothing tells. On rank 0.

    Raises InputError: the run's run.json is damaged.
    """
    return None if start.weights is None else is_on_pairs(settings_of(start.weights))


def labels_of_weights(start: Start) -> Labels:
    """The labels in the config.json beside the weights, even if `--bert_config_file` replaces it; None if it has
    none."""
    bert_config = configuration.read_config(start.weights) if start.weights is not None else None
    return stated_labels(bert_config) if bert_config is not None else None


def stated_labels(bert_config: BertConfig) -> Labels:
    """The labels in config.json, by id; None if they are the placeholders LABEL_0, LABEL_1, …"""
    names = label_names(bert_config)
    return None if all(name == f"LABEL_{number}" for number, name in enumerate(names)) else names


def label_names(bert_config: BertConfig) -> tuple[str, ...]:
    """The names in config.json, by id; they may be placeholders."""
    return tuple(str(bert_config.id2label[number]) for number in sorted(bert_config.id2label))


def with_labels(bert_config: BertConfig, labels: Labels) -> BertConfig:
    """The configuration of a classifier with these labels, as transformers reads it."""
    names = ["LABEL_0"] if labels is None else list(labels)
    changes: dict[str, Any] = {
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": "regression" if labels is None else "single_label_classification",
    }
    return type(bert_config).from_dict(bert_config.to_dict() | changes)
