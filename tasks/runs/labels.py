"""The names of a model's outputs, which its config.json has as `id2label`."""

from collections.abc import Sequence

import tensorflow as tf

from bert.configuration import BertConfig, unnamed_labels

CLASSIFICATION = ("single_label_classification", "multi_label_classification")
Labels = tuple[str, ...] | None  # None: a number is predicted (regression)


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


def named_outputs(scores: tf.Tensor, labels: Sequence[str]) -> dict[str, tf.Tensor]:
    """What an exported model says of one label for each row or token, from scores [..., L]."""
    label = tf.gather(tf.constant(labels), tf.argmax(scores, -1))
    return {"probabilities": tf.nn.softmax(scores), "logits": scores, "label": label}
