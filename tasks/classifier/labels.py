"""The labels of a classifier, in the order of the model's outputs."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace

from ringbase.errors import InputError
from ringbase.settings import shown
from tasks.classifier.named_tasks import NamedTask, is_on_pairs, task_of
from tasks.classifier.reading import Source, Texts
from tasks.classifier.settings import ClassifierConfig
from tasks.classifier.several import FLAGS
from tasks.runs.resolve.command import Learned, Say
from tasks.runs.resolve.labels import CLASSIFICATION, with_outputs
from tasks.runs.resolve.spec import Start


def named_task(config: ClassifierConfig, start: Start) -> NamedTask:
    """The task of the flags. Lines of standard input are pairs if the model was trained on
    pairs."""
    has_pairs = not config.do_train and is_on_pairs(start.saved)
    return task_of(config.texts, has_pairs)


def with_labels(config: ClassifierConfig, start: Start, learned: Learned, say: Say) -> Start:
    """The start of a classifier: see `with_outputs`. The labels are those of the checkpoint's
    `id2label`, else the task's (in Google's order), else the training file's (sorted)."""
    trains = config.do_train
    task = named_task(config, start)
    is_single = not config.texts.task_name and task.columns.pair is None
    if is_single and not trains and is_on_pairs(start.saved):
        say(
            "warning: the model was trained on pairs of texts: --text_pair_column names the second"
            " text"
        )
    labels = task.labels
    if labels == () and trains:
        labels = learned()
    kind = "regression" if labels is None else CLASSIFICATION[task.has_several]
    if trains and config.head.label_smoothing_factor and kind != CLASSIFICATION[False]:
        raise InputError(
            f"--label_smoothing_factor is for one label of each text, this command asks for {kind}"
        )
    trained_kind = start.bert_config.problem_type
    start = with_outputs(start, labels, trains, say)
    if not trains and trained_kind not in (None, kind):
        raise InputError(f"the model was trained for {trained_kind}, this command asks for {kind}")
    return replace(start, bert_config=replace(start.bert_config, problem_type=kind))


def labels_of_file(source: Source, texts: Texts) -> tuple[str, ...]:
    """The labels that occur in a training file, sorted as numbers if all are whole numbers, else as
    texts. Raises InputError: there is only one."""
    found = texts.labels or []
    columns = source.task.columns
    if source.task.has_several:
        found = [*itertools.chain(*found)]
        if not found:
            raise InputError(f"{source}: no text has a label in {columns.label!r} (--label_column)")
        if not columns.labels and FLAGS.keys() >= set(found):
            raise InputError(
                f"{source}: {columns.label!r} holds 0 and 1: for one label leave --multi_label out"
            )
    labels = sorted(set(map(str, found)))
    _check_names(labels, source)
    if source.task.has_several:
        return columns.labels or tuple(labels)
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
    without_blanks: dict[str, str] = {}
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
