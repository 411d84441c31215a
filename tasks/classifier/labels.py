"""The labels of a classifier, in the order of the model's outputs."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace

from bert import configuration
from bert.configuration import unnamed_labels
from distributed.run import Run
from ringbase.errors import InputError
from ringbase.settings import shown
from tasks.classifier.named_tasks import NamedTask, is_on_pairs, task_of
from tasks.classifier.reading import Source, read
from tasks.classifier.settings import ClassifierConfig
from tasks.classifier.several import FLAGS
from tasks.runs.labels import CLASSIFICATION, labels_of, stated_labels
from tasks.runs.start import Start


def named_task(config: ClassifierConfig, start: Start) -> NamedTask:
    """The task of the flags. Lines of standard input are pairs if the model was trained on pairs.
    On rank 0."""
    has_pairs = not config.do_train and is_on_pairs(start.settings())
    return task_of(config.texts, bool(has_pairs))


def with_labels(config: ClassifierConfig, start: Start, run: Run) -> Start:
    """The start of a classifier: the configuration has the labels in the order of the model's
    outputs, and a head for other labels is initialized again. On rank 0.

    The labels are those of the checkpoint's `id2label`, else the task's (in Google's order), else
    the training file's (sorted). Raises InputError: nothing says what they are, or an untrained
    model has others.
    """
    texts, trains = config.texts, config.do_train
    task, has_pairs = named_task(config, start), not trains and is_on_pairs(start.settings())
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
    return replace(start, bert_config=bert_config, fresh_tensors=fresh)


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
