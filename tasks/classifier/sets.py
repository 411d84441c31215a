"""A classifier's labels, and its data sets as rows: of a named task, of the hub, or of the user's own files."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ringbert.errors import InputError
from tasks.job import Job, cache_folder
from tasks.origin import Origin

if TYPE_CHECKING:
    from transformers import BertConfig

    from distributed.rows import Rows
    from distributed.run import Run
    from tasks.classifier.data import Texts
    from tasks.classifier.program import Config
    from tasks.classifier.tasks import Task

Labels = tuple[str, ...] | None  # None: a number is predicted (regression)


@dataclass(frozen=True)
class DataSet:
    """A split as rows: `input_ids`, `sentence_a_tokens` and `label` (-1 or NaN where there is none)."""

    split: str
    rows: "Rows"
    key: str

    @property
    def is_labelled(self) -> bool:
        import numpy as np

        label = np.asarray(self.rows.column("label"))
        return not bool(np.any(np.isnan(label) if label.dtype.kind == "f" else label < 0))


def task_of(config: "Config") -> "Task":
    """The entry of the table, or one for the user's own files."""
    from tasks.classifier.tasks import Columns, Split, Task, find_task

    if config.task_name:
        return find_task(config.task_name)
    columns = Columns(config.text_column, config.text_pair_column, config.label_column)
    files = {"train": config.train_file, "dev": config.dev_file, "test": config.predict_file}
    splits = {name: Split((file,), columns) for name, file in files.items() if file}
    if config.regression:
        return Task("", "", None, ("pearson", "spearmanr", "corr"), "corr", splits)
    return Task("", "", (), ("accuracy", "mcc"), "accuracy", splits)  # its labels are found in the data


def read_texts(config: "Config", task: "Task", split: str) -> "Texts":
    """The texts of a split, cut to the number that the flags allow."""
    from tasks.classifier import data as classifier_data

    if config.from_hub:
        texts = classifier_data.read_task_hub(task, split, config.language)
    elif config.task_name:
        texts = classifier_data.read_task(task, str(config.data_dir), split, config.language)
    else:
        flag = {"train": "train_file", "dev": "dev_file", "test": "predict_file"}[split]
        texts = classifier_data.read_file(
            str(getattr(config, flag)),
            f"--{flag}",
            config.text_column,
            config.text_pair_column,
            config.label_column,
            numeric_labels=config.regression,
            needs_labels=split != "test",
        )
    return texts.head(config.max_train_examples if split == "train" else config.max_predict_examples)


def decide_labels(config: "Config", task: "Task", origin: Origin, run: "Run") -> Labels:
    """The labels in the order of the model's outputs: the checkpoint's `id2label`, else the task's (Google's
    order), else those found in the training file, sorted. None for regression. On rank 0.

    Raises InputError when there is nothing to tell them, or a model that only predicts has others.
    """
    from tasks.classifier import data as classifier_data

    if task.is_regression:
        return None
    bert_config = origin.bert_config
    known = task.labels or None
    if known is None and config.do_train:
        known = tuple(classifier_data.labels_of(read_texts(config, task, "train")))
    stated = labels_of_weights(origin) or stated_labels(bert_config)
    if known is None:
        if stated is None and bert_config.problem_type == "single_label_classification":
            return label_names(bert_config)  # a trained classifier whose labels do have such names
        if stated is None:
            raise InputError(
                "the labels are not known: the model's config.json has no id2label, and --do_train is off"
            )
        return stated
    if stated is None or stated == known:
        return known
    if sorted(stated) == sorted(known):
        run.say(f"labels: the model's own order {', '.join(stated)} (id2label), not {', '.join(known)}")
        return stated
    if not config.do_train:
        raise InputError(f"the model's labels (id2label) are {', '.join(stated)}, the data's {', '.join(known)}")
    run.say(f"the model's labels {', '.join(stated)} are not this task's: its classifier starts anew")
    return known


def labels_of_weights(origin: Origin) -> Labels:
    """The labels that the config.json beside the weights names, also when `--bert_config_file` stands in for it;
    None when it names none."""
    from bert import weights

    bert_config = weights.read_config(origin.weights) if origin.weights is not None else None
    return stated_labels(bert_config) if bert_config is not None else None


def stated_labels(bert_config: "BertConfig") -> Labels:
    """The labels that config.json names, by id; None for the placeholders LABEL_0, LABEL_1, …"""
    names = label_names(bert_config)
    return None if all(name == f"LABEL_{number}" for number, name in enumerate(names)) else names


def label_names(bert_config: "BertConfig") -> tuple[str, ...]:
    """The names in config.json, by id, placeholders or not."""
    return tuple(str(bert_config.id2label[number]) for number in sorted(bert_config.id2label))


def with_labels(bert_config: "BertConfig", labels: Labels) -> "BertConfig":
    """The configuration of a classifier with these labels, as transformers reads it."""
    names = ["LABEL_0"] if labels is None else list(labels)
    changes: dict[str, Any] = {
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": "regression" if labels is None else "single_label_classification",
    }
    return type(bert_config).from_dict(bert_config.to_dict() | changes)


def open_set(config: "Config", job: Job, task: "Task", split: str, origin: Origin, labels: Labels) -> DataSet:
    """The rows of a split, memory-mapped on every rank, built once per machine."""
    from distributed.rows import Rows
    from tasks.classifier import data as classifier_data

    def build() -> str:
        return classifier_data.examples(
            read_texts(config, task, split),
            origin.words,
            cache_folder(),
            max_seq_length=config.max_seq_length,
            labels=labels,
            allow_unknown=config.allow_unknown,
            run=job.run,
        )

    key = job.world.on_each_machine(build)
    job.world.agree({f"the content of the {split} set": key})
    data = DataSet(split, Rows.open(cache_folder() / key / "examples.arrow"), key)
    if not split.startswith("test") and not data.is_labelled:
        raise InputError(f"the {split} set has examples without a label")
    return data
