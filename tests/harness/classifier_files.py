"""The classifier's files and rows: the one place of the tests that knows which functions read them."""

import csv
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from harness.texts import write_lines

from bert.text.tokenizer import Tokenizer
from distributed.rows import Rows
from distributed.run import Run
from ringbase.settings import made
from tasks.cache import in_memory
from tasks.classifier.labels import labels_of, labels_of_file, with_labels
from tasks.classifier.named_tasks import FILE_FLAGS, find_task, task_of
from tasks.classifier.reading import Source, Texts, read
from tasks.classifier.rows import tables
from tasks.classifier.settings import ClassifierConfig, TextSettings
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


def open_rows(
    texts: Texts, labels: tuple[str, ...] | None, tokenizer: Tokenizer, run: Run, max_seq_length: int = 8
) -> Rows:
    return in_memory(tables(texts, labels, tokenizer, max_seq_length, run)).tables["examples"]


def labels_of_run(stated: tuple[str, ...], **settings) -> tuple[str, ...] | None:
    """The labels, in the order of the outputs, of a run with these flags from a model that states these labels."""
    from transformers import BertConfig

    config, run = BertConfig(hidden_size=8, num_attention_heads=2), SimpleNamespace(say=lambda line: None)
    if stated:
        names = {"id2label": dict(enumerate(stated)), "label2id": {name: n for n, name in enumerate(stated)}}
        config = BertConfig.from_dict(config.to_dict() | names | {"problem_type": "single_label_classification"})
    _, start = with_labels(made(ClassifierConfig, {"output_dir": "out"} | settings), Start(config), cast(Any, run))
    return labels_of(start.bert_config)


def rows_by_csv(path: Path, has_header: bool) -> list[list[str]]:
    """As run_classifier.py `_read_tsv` does: csv.reader with a tab and no quote character."""
    text = path.read_bytes().decode("utf-8-sig")
    return list(csv.reader(io.StringIO(text, newline="\n"), delimiter="\t", quoting=csv.QUOTE_NONE))[has_header:]


PARSES = "sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
MNLI = f"index promptID pairID genre {PARSES} sentence1 sentence2"
PAIR, KORNLI = "index sentence1 sentence2", "sentence1 sentence2 gold_label"
KORSTS = "genre filename year id score sentence1 sentence2"
QQP = "id qid1 qid2 question1 question2 is_duplicate"
HEADERS = {  # the GLUE folders as they are published
    "QQP": {"train": QQP, "dev": QQP, "test": "id question1 question2"},
    "MNLI": {
        "train": f"{MNLI} label1 gold_label", "dev_matched": f"{MNLI} label1 label2 gold_label",
        "dev_mismatched": f"{MNLI} label1 gold_label", "test_matched": MNLI, "test_mismatched": MNLI,
    },
    "QNLI": {name: "index question sentence label" for name in ("train", "dev")}
    | {"test": "index question sentence"},
    "RTE": {"train": f"{PAIR} label", "dev": f"{PAIR} label", "test": PAIR},
    "WNLI": {"train": f"{PAIR} label", "dev": f"{PAIR} label", "test": PAIR},
    "diagnostic": {"diagnostic": PAIR},
    "KorNLI": dict.fromkeys(["multinli.train.ko", "snli_1.0_train.ko", "xnli.dev.ko", "xnli.test.ko"], KORNLI),
    "KorSTS": dict.fromkeys(["sts-train", "sts-dev", "sts-test"], KORSTS),
}  # fmt: skip
NLI, ENTAILMENT = ("neutral", "contradiction", "entailment"), ("not_entailment", "entailment", "entailment")
LABELS = dict.fromkeys(("MNLI", "KorNLI", "diagnostic"), NLI) | dict.fromkeys(("QNLI", "RTE"), ENTAILMENT)
LABELS |= dict.fromkeys(("QQP", "WNLI"), ("1", "0", "0")) | {"KorSTS": ("0.5", "4.200", "5")}
FIRSTS, SECONDS = ("question1", "question", "sentence1"), ("question2", "sentence", "sentence2")


def publish(root: Path):
    """Files with these headers, three rows each; texts say which file and row they are of."""
    for folder, files in HEADERS.items():
        for file, header in files.items():
            names, rows = header.split(), []
            first = next(name for name in FIRSTS if name in names)
            for number in range(3):
                cells = dict.fromkeys(("gold_label", "label", "is_duplicate", "score"), LABELS[folder][number])
                cells |= {"index": f"{number + 5}", "id": f"{number + 5}", first: f'"{folder}/{file} {number}'}
                cells[SECONDS[FIRSTS.index(first)]] = f"b\u2028{number}"
                rows.append("\t".join(cells.get(name, "other") for name in names))
            write_lines(root / folder / f"{file}.tsv", "\t".join(names), *rows)
