"""The classifier's files and rows: the one place of the tests that knows which functions read them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from ringbase.settings import made
from tasks.classifier.named_tasks import FILE_FLAGS, find_task, task_of
from tasks.classifier.reading import Source, Texts, read
from tasks.classifier.settings import ClassifierConfig, TextSettings
from tasks.classifier.task import labels_of, labels_of_file, with_labels
from tasks.start import Start


def own_source(path: Path | str, pair: str | None = None, split: str = "train", **settings) -> Source:
    """A file of one's own, with the columns `text`, `label` and perhaps a second text."""
    values: dict[str, Any] = {FILE_FLAGS[split]: str(path), "text_pair_column": pair, **settings}
    given = TextSettings(**values)
    return Source(given, task_of(given), split)


def read_own(path: Path | str, pair: str | None = None, split: str = "train", **settings) -> Texts:
    return read(own_source(path, pair, split, **settings))


def labels_in(path: Path | str) -> tuple[str, ...]:
    """The labels of a file to train on."""
    return labels_of_file(own_source(path))


def read_glue(task: str, folder: Path | str, split: str, language: str = "en") -> Texts:
    """A named task's set, as --task_name and --data_dir name it."""
    settings = TextSettings(task_name=task, data_dir=str(folder), language=language)
    return read(Source(settings, find_task(task), split))


def labels_of_run(stated: tuple[str, ...], **settings) -> tuple[str, ...] | None:
    """The labels, in the order of the outputs, of a run with these flags from a model that states these labels."""
    from transformers import BertConfig

    config, run = BertConfig(hidden_size=8, num_attention_heads=2), SimpleNamespace(say=lambda line: None)
    if stated:
        names = {"id2label": dict(enumerate(stated)), "label2id": {name: n for n, name in enumerate(stated)}}
        config = BertConfig.from_dict(config.to_dict() | names | {"problem_type": "single_label_classification"})
    _, start = with_labels(made(ClassifierConfig, {"output_dir": "out"} | settings), Start(config), cast(Any, run))
    return labels_of(start.bert_config)
