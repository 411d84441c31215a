"""The named tasks of the classifier: real files by the csv module, the layouts that are published, the hub."""

import csv
import dataclasses
import io

import datasets
import pytest
from harness.classifier_files import read_glue
from harness.real_data import real
from harness.refusals import refused
from harness.texts import write_lines

from tasks.classifier.named_tasks import TASKS, find_task
from tasks.classifier.reading import Source, read
from tasks.classifier.settings import TextSettings

# Examples by gluebenchmark.com's and NSMC's descriptions, and columns by run_classifier.py or the header. Of
# MRPC's train.tsv copies with 3,667 rows are about; GLUE's description says 3,668.
REAL = [  # task, set, examples, file, has a header, columns of the texts and the label
    ("CoLA", "train", {8551}, "train.tsv", False, (3, None, 1)),
    ("SST-2", "test", {1821}, "test.tsv", True, (1, None, None)),
    ("MRPC", "train", {3667, 3668}, "train.tsv", True, (3, 4, 0)),
    ("STS-B", "train", {5749}, "train.tsv", True, (7, 8, 9)),
    ("nsmc", "test", {50000}, "ratings_test.txt", True, (1, None, 2)),
]


@pytest.mark.parametrize(("name", "split", "published", "file", "has_header", "columns"), REAL)
def test_real_files(name, split, published, file, has_header, columns):
    folder = real("nsmc" if name == "nsmc" else f"glue_data/{name}")
    # As run_classifier.py `_read_tsv` does: csv.reader with a tab and no quote character.
    lines = io.StringIO((folder / file).read_bytes().decode("utf-8-sig"), newline="\n")
    rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))[has_header:]
    texts = read_glue(name, folder, split)
    first, second, label = ([row[c] for row in rows] if c is not None else None for c in columns)
    assert len(texts.first) in published
    assert (texts.first, texts.second) == (first, second)
    assert texts.labels == ([float(score) for score in label] if name == "STS-B" else label)
    assert texts.ids == ([row[0] for row in rows] if name == "nsmc" else [str(n) for n in range(len(rows))])
    if name == "nsmc":  # left out, accuracy would be over other examples than those of published tables
        assert texts.first.count("") == 3  # counted by grep
    else:  # the GLUE folder that holds the task's
        assert read_glue(name, folder.parent, split).first == texts.first


QQP, PAIR = "id qid1 qid2 question1 question2 is_duplicate", "sentence1 sentence2"
MNLI = f"index promptID pairID genre sentence1_binary_parse sentence2_binary_parse {PAIR}"
LAYOUTS = [  # task, set, files, their header as published, columns of the texts, the label and the id
    ("qqp", "train", "QQP/train", QQP, "question1 question2 is_duplicate id"),
    ("mnli", "train", "MNLI/train", f"{MNLI} label1 gold_label", "sentence1 sentence2 gold_label index"),
    ("mnli", "test_matched", "MNLI/test_matched", MNLI, "sentence1 sentence2 - index"),
    ("qnli", "dev", "QNLI/dev", "index question sentence label", "question sentence label index"),
    ("rte", "train", "RTE/train", f"index {PAIR} label", "sentence1 sentence2 label index"),
    ("ax", "test", "diagnostic/diagnostic", f"index {PAIR}", "sentence1 sentence2 - index"),
    ("kornli", "train", "KorNLI/multinli.train.ko KorNLI/snli_1.0_train.ko", f"{PAIR} gold_label",
     "sentence1 sentence2 gold_label -"),
    ("korsts", "dev", "KorSTS/sts-dev", f"genre filename year id score {PAIR}", "sentence1 sentence2 score -"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "split", "files", "header", "columns"), LAYOUTS)
def test_the_layouts_of_the_other_tasks(tmp_path, task, split, files, header, columns):
    for number, file in enumerate(files.split()):
        cells = [f"{number}.5" if name == "score" else f"{name} {number}" for name in header.split()]
        write_lines(tmp_path / f"{file}.tsv", header.replace(" ", "\t"), "\t".join(cells))
    first, second, label, id_ = columns.split()
    texts, numbers = read_glue(task, tmp_path, split), range(len(files.split()))
    assert texts.first == [f"{first} {number}" for number in numbers]
    assert texts.second == [f"{second} {number}" for number in numbers]
    expected = [0.5] if label == "score" else [f"{label} {number}" for number in numbers]
    assert texts.labels == (None if label == "-" else expected)
    assert texts.ids == [str(number) if id_ == "-" else f"{id_} {number}" for number in numbers]


def test_xnli(tmp_path):
    """Google's XnliProcessor: "contradictory" in the machine translation, rows filtered by language."""
    rows = ["가\t나\tcontradictory", "다\t라\tneutral", "마\t바\tentailment"]
    write_lines(tmp_path / "multinli/multinli.train.ko.tsv", "premise\thypo\tlabel", *rows)
    rows = ["ar\tneutral\tا\tب\t1", "ko\tcontradiction\t가\t나\t1", "en\tneutral\ta\tb\t1",
            "ko\tentailment\t다\t라\t2"]  # fmt: skip
    write_lines(tmp_path / "xnli.dev.tsv", "language\tgold_label\tsentence1\tsentence2\tpairID", *rows)
    assert read_glue("xnli", tmp_path, "train", "ko").labels == ["contradiction", "neutral", "entailment"]
    dev = read_glue("xnli", tmp_path, "dev", "ko")
    assert (dev.first, dev.second, dev.labels) == (["가", "다"], ["나", "라"], ["contradiction", "entailment"])
    refused(lambda: read_glue("xnli", tmp_path, "dev", "de"), "--language de", "ar, en, ko")
    refused(lambda: read_glue("xnli", tmp_path, "train", "de"), "multinli/multinli.train.de.tsv")


def test_rows_of_qqp_that_a_line_break_cut_are_left_out_and_counted(tmp_path):
    rows = [f"{n}\t1\t2\tis it a\tor b\t{n % 2}" for n in range(3000)]
    rows[10:11] = ["10\t1\t2\tis it", "a\tor b\t0"]
    write_lines(tmp_path / "train.tsv", QQP.replace(" ", "\t"), *rows)
    texts = read_glue("qqp", tmp_path, "train")
    assert (len(texts.first), texts.num_short_rows, texts.ids[10]) == (2999, 2, "11")
    write_lines(tmp_path / "train.tsv", QQP.replace(" ", "\t"), *rows[:600])
    refused(lambda: read_glue("qqp", tmp_path, "train"), "train.tsv", "2 of 600")


def test_folders_that_are_not_the_task_s_are_refused(tmp_path):
    refused(lambda: read_glue("rte", tmp_path / "nowhere", "dev"), "--data_dir", tmp_path / "nowhere")
    refused(lambda: read_glue("mrpc", tmp_path, "train"), "--data_dir", tmp_path, "train.tsv")
    write_lines(tmp_path / "dev.tsv", "index\tsentence1\tsentence2", "0\ta\tb")
    refused(lambda: read_glue("sts-b", tmp_path, "dev"), "--data_dir", tmp_path, "dev.tsv", "score")


def test_names_are_found_in_any_spelling_and_labels_have_google_s_order():
    """`get_labels()` of the processors in run_classifier.py."""
    spellings = {"STS-B": "sts-b", "stsb": "sts-b", "SST2": "sst-2", "sst_2": "sst-2", "CoLA": "cola"}
    assert {spelling: find_task(spelling).name for spelling in spellings} == spellings
    refused(lambda: find_task("qnil"), "--task_name", "qnil", "qnli")
    assert TASKS["mnli"].labels == TASKS["xnli"].labels == ("contradiction", "entailment", "neutral")
    assert TASKS["mrpc"].labels == TASKS["cola"].labels == ("0", "1")
    assert TASKS["qnli"].labels == TASKS["rte"].labels == ("entailment", "not_entailment")
    asked = "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm QNLI RTE WNLI AX"  # gluebenchmark.com/faq
    files = [part.submission for task in TASKS.values() for part in task.splits.values() if part.submission]
    assert files == [f"{name}.tsv" for name in asked.split()]


def test_labels_of_the_hub_become_google_s(tmp_path, monkeypatch):
    """The hub numbers MNLI's labels in another order: the texts count, never the numbers."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_OFFLINE", True)

    def save(folder, split, columns, names):
        data = datasets.Dataset.from_dict(columns).cast_column("label", datasets.ClassLabel(names=names))
        data.to_parquet(tmp_path / folder / f"{split}.parquet")

    def read_hub(name, split):
        task = dataclasses.replace(TASKS[name], hub=str(tmp_path / name), hub_config=None)
        return read(Source(TextSettings(task_name=name, from_hub=True), task, split))

    order = ["contradiction", "entailment", "neutral"]
    columns = {"premise": ["a", "b", "c"], "hypothesis": ["d", "e", "f"], "label": [0, 1, 2], "idx": [4, 5, 6]}
    save("xnli", "train", columns, order)
    save("xnli", "test", columns | {"label": [-1, -1, -1]}, order)
    texts = read_hub("xnli", "train")
    assert (texts.first, texts.second, texts.labels) == (["a", "b", "c"], ["d", "e", "f"], order)
    assert (texts.ids, read_hub("xnli", "test").labels) == (["4", "5", "6"], None)
    save("cola", "train", {"sentence": ["a", "b"], "label": [1, 0]}, ["unacceptable", "acceptable"])
    assert read_hub("cola", "train").labels == ["1", "0"]
    refused(lambda: read_hub("cola", "dev"), "cola", "validation")
