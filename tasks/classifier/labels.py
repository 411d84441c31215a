"""A classifier's labels, in the order of the model's outputs."""

from dataclasses import replace

from transformers import BertConfig

from bert import configuration
from distributed.run import Run
from ringbase.errors import InputError
from tasks.classifier.named_tasks import Labels, NamedTask, is_on_pairs, task_of
from tasks.classifier.reading import Source, read
from tasks.classifier.settings import ClassifierConfig
from tasks.start import Start, settings_of

HEAD = ("output_weights", "output_bias")
LONGEST_NUMBER = 1000  # digits of a label that is compared as a number; Python converts 4300 at most


def with_labels(config: ClassifierConfig, start: Start, run: Run) -> tuple[NamedTask, Start]:
    """The task, and the start of its classifier: the configuration has the labels in the order of the model's
    outputs, and a head for other labels is initialized again. On rank 0.

    The labels are those of the checkpoint's `id2label`, else the task's (in Google's order), else the training
    file's (sorted).

    Raises InputError when nothing says what the labels are, or when they are not the model's and it is not
    trained.
    """
    texts, trains = config.texts, config.do_train
    has_pairs = not trains and start.weights is not None and is_on_pairs(settings_of(start.weights))
    task = task_of(texts, bool(has_pairs))
    if has_pairs and not (texts.task_name or texts.text_pair_column or texts.reads_lines):
        run.say("warning: the model was trained on pairs of texts: --text_pair_column names the second text")
    # config.json beside the weights counts, even if `--bert_config_file` replaces it.
    of_weights = configuration.read_config(start.weights) if start.weights is not None else None
    trained = stated_labels(of_weights) if of_weights is not None else None
    stated, labels = trained or stated_labels(start.bert_config), task.labels
    if labels == () and trains:
        labels = labels_of_file(Source(texts, task, "train"))
    if labels == ():
        # A trained classifier may have labels that are named LABEL_0, LABEL_1, …
        if stated is None and start.bert_config.problem_type != "single_label_classification":
            raise InputError(
                "the labels are not known: the model's config.json has no id2label, and --do_train is off"
            )
        labels = stated or label_names(start.bert_config)
    elif labels is not None and stated is not None and stated != labels:
        own, others = ", ".join(stated), ", ".join(labels)
        if sorted(stated) == sorted(labels):
            run.say(f"labels: the model's own order {own} (id2label), not {others}")
            labels = stated
        elif not trains:
            raise InputError(f"the model's labels (id2label) are {own}, the data's {others}")
        else:
            run.say(f"the model's labels {own} are not this task's: a new classifier is trained")
    is_new = trained is not None and sorted(trained) != sorted(labels or ())
    names = dict(enumerate(labels or ["LABEL_0"]))
    changes = {
        "id2label": names,
        "label2id": {name: number for number, name in names.items()},
        "problem_type": "regression" if labels is None else "single_label_classification",
    }
    bert_config = BertConfig.from_dict(start.bert_config.to_dict() | changes)
    return task, replace(start, bert_config=bert_config, fresh_tensors=HEAD if is_new else ())


def labels_of_file(source: Source) -> tuple[str, ...]:
    """The labels that occur in a training file, sorted as numbers if all are whole numbers, else as texts. Raises
    InputError: there is only one."""
    labels = sorted({str(label) for label in read(source).labels or ()})
    if len(labels) < 2:
        raise InputError(
            f"{source}: every example has the label {labels[0]!r:.80}, 2 labels or more are needed "
            "(--label_column)"
        )
    if all(label.removeprefix("-").isdecimal() and len(label) < LONGEST_NUMBER for label in labels):
        labels.sort(key=int)
    return tuple(labels)


def labels_of(bert_config: BertConfig) -> Labels:
    """Those that `with_labels` has written into a configuration."""
    return None if bert_config.problem_type == "regression" else label_names(bert_config)


def stated_labels(bert_config: BertConfig) -> Labels:
    """The labels in config.json, by id; None if they are the placeholders LABEL_0, LABEL_1, …"""
    names = label_names(bert_config)
    return None if all(name == f"LABEL_{number}" for number, name in enumerate(names)) else names


def label_names(bert_config: BertConfig) -> tuple[str, ...]:
    """The names in config.json, by id; they may be placeholders."""
    return tuple(str(bert_config.id2label[number]) for number in sorted(bert_config.id2label))
