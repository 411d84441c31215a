"""The names of a model's outputs, which its config.json has as `id2label`."""

from collections.abc import Callable
from dataclasses import replace

from bert.configuration import BertConfig, read_config, unnamed_labels
from ringbase.errors import InputError
from tasks.runs.resolve.spec import Start

CLASSIFICATION = ("single_label_classification", "multi_label_classification")
Labels = tuple[str, ...] | None  # None: a number is predicted (regression)
Spelled = Callable[[tuple[str, ...]], tuple[str, ...]]


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


def with_outputs(
    start: Start,
    labels: Labels,
    trains: bool,
    say: Callable[[str], None],
    spelled: Spelled | None = None,
) -> Start:
    """The start of a model with outputs of these names: in the model's own order if it has the
    same, and with a head that is initialized again if it has others. Without any, where the data
    do not say them, they are the model's. `spelled`, of a tagger, gives the model's names as the
    data have them. On rank 0.

    Raises InputError: nothing says what they are, or an untrained model has others.
    """
    # config.json beside the weights counts, even if `--bert_config_file` replaces it
    trained = read_config(start.weights) if start.weights else None
    stated = stated_labels(trained) or stated_labels(start.bert_config)
    if stated and spelled:
        stated = spelled(stated)
    if labels == ():
        # a trained classifier may have labels that are named LABEL_0, LABEL_1, …
        has_unnamed = start.bert_config.problem_type in CLASSIFICATION and not spelled
        if stated is None and not has_unnamed:
            raise InputError(
                "the labels are unknown: the model's config.json has no id2label; --do_train is off"
            )
        labels = stated or labels_of(start.bert_config)
    elif labels and stated and stated != labels:
        own, others = ", ".join(stated), ", ".join(labels)
        if sorted(stated) == sorted(labels):
            say(f"labels: the model's own order {own} (id2label), not {others}")
            labels = stated
        elif trains:
            say(f"the model's labels {own} are not this task's: a new head is trained")
        else:
            raise InputError(f"the model's labels (id2label) are {own}, the data's {others}")
    fresh: tuple[str, ...] = ()
    if stated and sorted(stated) != sorted(labels or ()):
        fresh = "output_weights", "output_bias"
    bert_config = replace(start.bert_config, labels=labels or unnamed_labels(1))
    return replace(start, bert_config=bert_config, fresh_tensors=fresh)
