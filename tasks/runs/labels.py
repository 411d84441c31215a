"""The names of a model's outputs, which its config.json has as `id2label`."""

from collections.abc import Sequence

import tensorflow as tf

from bert.configuration import BertConfig, unnamed_labels

CLASSIFICATION = ("single_label_classification", "multi_label_classification")
Labels = tuple[str, ...] | None  # None: a number is predicted (regression)


def labels_of(bert_config: BertConfig) -> Labels:
    """The names in config.json, by id, which may be placeholders; None for regression."""
    kind, names = bert_config.problem_type, bert_config.labels
    is_number = len(names) == 1 and kind != CLASSIFICATION[1]
    return None if is_number or kind == "regression" else names


def stated_labels(bert_config: BertConfig | None) -> Labels:
    """The names in config.json unless they are the placeholders LABEL_0, LABEL_1, …"""
    names = labels_of(bert_config) if bert_config else None
    if names is None or names == unnamed_labels(len(names)):
        return None
    return names


def named_outputs(scores: tf.Tensor, labels: Sequence[str]) -> dict[str, tf.Tensor]:
    """What an exported model says of one label for each row or token, from scores [..., L]."""
    best = tf.argmax(scores, -1)
    label = tf.gather(tf.constant(labels), best)
    return {"probabilities": tf.nn.softmax(scores), "logits": scores, "label": label}
