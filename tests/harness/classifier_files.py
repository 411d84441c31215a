"""The classifier's files and rows: the one place of the tests that knows which functions read them."""

import csv
import io
from pathlib import Path
from types import SimpleNamespace

from bert.text.tokenizer import Tokenizer
from distributed.rows import Rows
from distributed.run import Run
from tasks.classifier.examples import examples
from tasks.classifier.labels import decide_labels, with_labels
from tasks.classifier.sets import task_of
from tasks.classifier.settings import ExampleSettings, TextSettings
from tasks.classifier.tasks import Columns, find_task
from tasks.classifier.texts import Texts, check_labels, labels_of, read_file, read_task
from tasks.origin import Origin

__all__ = [
    "Texts",
    "check_labels",
    "labels_of",
    "labels_of_run",
    "open_rows",
    "read_glue",
    "read_own",
    "rows_by_csv",
]


def read_own(path: Path | str, pair: str | None = None, flag: str = "--train_file", **options) -> Texts:
    """A file of one's own, with the columns `text`, `label` and perhaps a second text."""
    return read_file(str(path), flag, Columns("text", pair, "label", id=""), **options)


def read_glue(task: str, folder: Path | str, split: str, *language: str) -> Texts:
    """A named task's set, as --task_name and --data_dir name it."""
    return read_task(find_task(task), str(folder), split, *language)


def open_rows(
    texts: Texts,
    labels: tuple[str, ...] | None,
    tokenizer: Tokenizer,
    cache: Path,
    run: Run,
    max_seq_length: int = 8,
    allow_unknown: bool = False,
) -> Rows:
    settings = ExampleSettings(max_seq_length=max_seq_length, allow_unknown=allow_unknown)
    return Rows.open(cache / examples(settings, texts, labels, tokenizer, cache, run) / "examples.arrow")


def labels_of_run(trains: bool, stated: tuple[str, ...], **settings) -> tuple[str, ...] | None:
    """The labels, in the order of the outputs, of a run with these flags from a model that states these labels."""
    from transformers import BertConfig

    config, texts = BertConfig(hidden_size=8, num_attention_heads=2), TextSettings(**settings)
    run = SimpleNamespace(say=lambda line: None)
    origin = Origin(with_labels(config, stated) if stated else config)
    return decide_labels(texts, trains, task_of(texts), origin, run)


def rows_by_csv(path: Path, has_header: bool) -> list[list[str]]:
    """As run_classifier.py `_read_tsv` does: csv.reader with a tab and no quote character."""
    text = path.read_bytes().decode("utf-8-sig")
    return list(csv.reader(io.StringIO(text, newline="\n"), delimiter="\t", quoting=csv.QUOTE_NONE))[has_header:]
