"""The classifier's files, own ones and those of named tasks, and their rows."""

import csv
import dataclasses
import gzip
import io
import json
from functools import partial

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from harness.classifier_files import labels_in, own_source, read_glue, read_own
from harness.classifier_runs import write_rows
from harness.google import google_s_example
from harness.real_data import real
from harness.refusals import refused
from harness.texts import letters_tokenizer, write_lines

from distributed.world import World
from tasks.classifier.named_tasks import TASKS, find_task
from tasks.classifier.reading import Source, read
from tasks.classifier.settings import TextSettings
from tasks.classifier.task import LabelTask
from tasks.runs.rows.sets import open_set
from tasks.runs.rows.texts import Tokenization

TEXTS = [
    *('He said "no", twice.', "two\nlines", "tab\there", "  spaces ", "2020-01-01", "", "NULL"),
    *("한국어 \u2028 \U0001f600", "'", '"', "x" * 200_000),
]
LABELS = [*"bacabbaba", "c,d", "b"]


def test_csv_and_json_lines_and_parquet_hold_the_same(tmp_path):
    table = pa.table({"number": list(range(11)), "label": LABELS, "text": TEXTS})
    pyarrow.csv.write_csv(table, tmp_path / "a.csv")  # quoted by another writer
    with (tmp_path / "b.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([["text", "label"], *zip(TEXTS, LABELS, strict=True)])
    write_lines(tmp_path / "c.jsonl", *(json.dumps(row) for row in table.to_pylist()))
    pyarrow.parquet.write_table(table, tmp_path / "d.parquet", row_group_size=3)
    for name in ("a.csv", "b.csv", "c.jsonl"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    for path in sorted(tmp_path.iterdir()):
        assert read_own(path) == (TEXTS, None, LABELS, [str(number) for number in range(11)], {}), (
            path
        )


def test_a_column_may_have_a_bar_in_its_name(tmp_path):
    """Which otherwise stands between several names."""
    write_lines(tmp_path / "a.csv", "a|b,label", "cat,x", "saw,y")
    table = pa.table({"a|b": ["cat", "saw"], "label": ["x", "y"]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        texts = read_own(tmp_path / name, text_column="a|b")
        assert (texts.first, texts.labels) == (["cat", "saw"], ["x", "y"])


def test_quotes_in_tsv_are_text_and_an_empty_line_of_one_column_is_a_row(tmp_path):
    path = write_lines(
        tmp_path / "a.TSV", "label\ttext\tother", '1\t"a\t"', '0\tb ""\t', "0\t\tc", "", ""
    )
    assert read_own(path, pair="other")[:3] == (['"a', 'b ""', ""], ['"', "", "c"], ["1", "0", "0"])
    only = read_own(write_lines(tmp_path / "b.txt", "text", "a", "", "b"), split="test")
    assert (only.first, only.labels) == (["a", "", "b"], None)


def test_labels_are_sorted_as_numbers_where_all_are_numbers(tmp_path):
    path = write_lines(
        tmp_path / "a.jsonl", '{"text": "a", "label": 10}', "", '{"text": "b", "label": 2}'
    )
    assert labels_in(path) == ("2", "10")
    assert read_own(path, regression=True).labels == [10.0, 2.0]
    for score in ("three", "nan", "inf", ""):
        scored = write_lines(tmp_path / "b.csv", "text,label", "a,1.5", f"b,{score}")
        refused(partial(read_own, scored, regression=True), scored, "line 3", repr(score))
    mixed = write_lines(tmp_path / "b.csv", "text,label", "a,10", "b,x", "c,2")
    assert labels_in(mixed) == ("10", "2", "x")


def test_lines_of_tsv_end_in_any_way(tmp_path):
    """A carriage return is text where lines end with line feeds, as Python's csv module reads
    it."""
    lines = ["text\tlabel", "a b\tx", "c\ty", ""]
    for end in ("\n", "\r\n", "\r"):
        (tmp_path / "a.tsv").write_bytes(end.join(lines).encode())
        assert read_own(tmp_path / "a.tsv")[:3] == (["a b", "c"], None, ["x", "y"])
    (tmp_path / "a.tsv").write_bytes("\n".join(lines).replace(" ", "\r").encode())
    assert read_own(tmp_path / "a.tsv").first == ["a\rb", "c"]


def test_quotes_and_blank_lines_that_another_program_wrote_are_counted(tmp_path):
    cells = ["plain", 'he said "no"', '"', '""', 'a "" b', ""]
    # as pandas' to_csv(sep="\t"), which quotes four
    write_rows(tmp_path / "a.tsv", ["text", "n"], [(cell, 1) for cell in cells])
    found = read_own(tmp_path / "a.tsv", split="test")
    assert found.first[1] == '"he said ""no"""'
    assert [*found.counts.values()] == [4]
    unquoted = write_lines(tmp_path / "b.tsv", "text\tn", '"a" "b"\t1', '""\t1')
    assert read_own(unquoted, split="test").counts == {}
    blank = write_lines(tmp_path / "a.csv", "", "text", "a", "", '""', "", "b")
    only = read_own(blank, split="test")
    assert (only.first, only.counts) == (["a", "", "b"], {"blank lines left out": 3})
    for text in ("two\nlines", "a\ttab"):
        path = tmp_path / "c.tsv"
        write_rows(path, ["text", "n"], [["a", 1], [text, 2]])
        call = partial(read_own, path, split="test")
        refused(call, "c.tsv: line 3", "columns", "quotes", ".csv")


NO_LABELS = ["", "?", "-1", None, -1, float("nan")]


@pytest.mark.parametrize("mark", NO_LABELS)
def test_a_set_to_predict_may_have_marks_instead_of_labels(tmp_path, mark):
    """Of all rows or of some; but -1 is a label where the model has it."""
    for name, labels in ("a", [mark, mark]), ("b", ["yes", mark]):
        path = write_lines(
            tmp_path / f"{name}.jsonl",
            *(json.dumps({"text": "t", "label": each}) for each in labels),
        )
        found = read(own_source(path, split="test"), ("no", "yes"))
        assert (found.labels, [*found.counts.values()]) == (None, [labels.count(mark)])
        call = partial(read, own_source(path), ("no", "yes"))
        refused(call, f"{name}.jsonl: line", "label")
    signs = write_lines(tmp_path / "c.csv", "text,label", "a,-1", "b,1")
    assert read(own_source(signs, split="test"), ("-1", "1")).labels == ["-1", "1"]
    numbers = write_lines(tmp_path / "d.csv", "text,label", "a,-1", "b,2.5")
    assert read_own(numbers, split="test", regression=True).labels == [-1, 2.5]
    other = write_lines(tmp_path / "e.csv", "text,label", "a,0")
    refused(partial(read, own_source(other, split="test"), ("1", "2")), "'0'")


@pytest.mark.parametrize("mark", NO_LABELS)
def test_several_labels_or_numbers_may_be_missing_too(tmp_path, mark):
    rows = [{"text": "t", "label": mark, "more": mark}] * 2
    path = write_lines(tmp_path / "a.jsonl", *map(json.dumps, rows))
    for more in (
        {"regression": True},
        {"multi_label": True},
        {"multi_label": True, "label_column": "label,more"},
    ):
        source = own_source(path, split="test", **more)
        assert read(source, None if "regression" in more else ("label", "more")).labels is None
    # not used for scoring (Jigsaw)
    part = write_lines(tmp_path / "b.csv", "text,label,more", "a,-1,-1", "b,1,0")
    found = read_own(part, split="test", multi_label=True, label_column="label,more")
    assert (found.labels, [*found.counts.values()]) == (None, [1])


def test_zeros_are_no_labels_where_nothing_would_be_scored(tmp_path):
    """Of documents to rank, and of columns of labels; but in a file to evaluate on they are
    wrong."""
    ranked = {"regression": True, "ranking": True, "text_pair_column": "pair"}
    documents = write_lines(tmp_path / "a.csv", "text,pair,label", "a,b,0", "a,c,0")
    assert read_own(documents, split="test", **ranked).labels is None
    refused(partial(read_own, documents, split="dev", **ranked), "a.csv", "above 0")
    assert read_own(documents, **ranked).labels == [0, 0]
    columns = {"multi_label": True, "label_column": "label,more"}
    several = write_lines(tmp_path / "b.csv", "text,label,more", "a,0,0", "b,0,0")
    assert read_own(several, split="test", **columns).labels is None
    assert read_own(several, split="dev", **columns).labels == [(), ()]


def test_labels_that_would_be_taken_for_others_are_refused(tmp_path):
    for rows, named in (
        (["a,good", "b,bad", "c,good "], ["'good'", "'good '", "blanks"]),
        (["a,no label", "b,no\u00a0label"], ["'no label'", "blanks"]),
        (["a,x", 'b,"two\nlines"'], ["'two\\nlines'", "line end"]),
        (["a,x", "b, "], ["line 3", "label"]),
    ):
        path = write_lines(tmp_path / "a.csv", "text,label", *rows)
        refused(lambda path=path: labels_in(path), "--train_file", path, *named)
    for lists, named in (
        (["", ""], ["no text has a label"]),
        (["a", "b; c"], None),
        (["a b", "a  b"], ["blanks"]),
    ):
        path = write_lines(tmp_path / "a.csv", "text,label", *(f"t,{each}" for each in lists))
        labels = partial(labels_in, path, multi_label=True)
        if named:
            refused(labels, "--train_file", path, *named)
        else:
            assert labels() == ("a", "b; c")


GOOD = '{"text": "a", "label": "x"}'
PACKED = gzip.compress((GOOD + "\n").encode() * 50, mtime=0)
PARQUET = pa.BufferOutputStream()
pyarrow.parquet.write_table(pa.table({"text": ["a", "b"], "label": ["x", None]}), PARQUET)
PARQUET = PARQUET.getvalue().to_pybytes()
REFUSED = [  # file, content (lines or bytes), what the line names beside the flag and the file
    ("a.xlsx", ["a"], [".csv", ".parquet"]),
    ("a.tsv", ["text\tlabel", "a\t1", "", "c\t0"], ["line 3"]),
    ("a.tsv", ["text\tlabel", "a\t1", "b\0c\t0"], ["line 3", "NUL"]),
    ("a.csv", ["text,label", '"a', 'b",1', '"b" c,0'], ["line 4"]),  # text behind a quote
    ("a.csv", ["text,label", "a,1", '"b,0'], ["line 3"]),  # an open quote
    ("a.csv", ["text,text,label", "a,b,1"], ["text"]),
    ("a.csv", ["text,label", "a,1", "b,"], ["line 3", "label"]),
    ("a.jsonl", [GOOD, GOOD[:-3]], ["line 2"]),
    ("a.json", ["[", GOOD, "]"], ["line 1"]),
    ("a.jsonl", [GOOD, "", '{"text": "b"}'], ["line 3", "label"]),
    ("a.jsonl", [GOOD, '{"text": 3, "label": "x"}'], ["line 2", "text", "3"]),
    ("a.jsonl", ['{"text": "\\ud800", "label": "x"}'], ["line 1", "\\ud800"]),
    ("a.jsonl.gz", PACKED[:-6] + bytes([PACKED[-6] ^ 255]) + PACKED[-5:], []),
    ("a.parquet", PARQUET, ["row 2", "label"]),
    ("a.parquet", PARQUET[:-20], []),
]


@pytest.mark.parametrize(("name", "content", "named"), REFUSED)
def test_bad_files_are_refused(tmp_path, name, content, named):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else "\n".join([*content, ""]).encode())
    refused(lambda: read_own(path), "--train_file", path, *named)


# -- rows of tokens, against google-research/bert `run_classifier.py` ------------------------------


@pytest.mark.parametrize("max_seq_length", [4, 5, 8, 9])
def test_rows_of_all_small_lengths_are_google_s(tmp_path, run, max_seq_length):
    lines = ["a " * first + "," + "b " * second for first in range(11) for second in range(11)]
    path, words = write_lines(tmp_path / "a.csv", "text,other", *lines), letters_tokenizer(tmp_path)

    def tokens_of(text):
        return words.pieces(words.encode_ids([text])[0])

    for pair in ("other", None):
        texts = read_own(path, pair, "test")
        task = LabelTask(max_seq_length, None)
        tables = task.tables(texts, Tokenization(World(), run, words))
        rows = tables["examples"].to_pylist()
        for row, a, b in zip(rows, texts.first, texts.second or [None] * len(rows), strict=True):
            tokens, types = google_s_example(tokens_of(a), b and tokens_of(b), max_seq_length)
            assert words.pieces(row["input_ids"]) == tokens
            assert row["sentence_a_tokens"] == types.count(0)
            assert np.isnan(row["label"])


@pytest.mark.usefixtures("cache")
def test_labels_are_numbered_in_the_order_given_and_unknown_words_are_refused(tmp_path, run):
    path = write_lines(tmp_path / "a.csv", "text,label", "a b c,x", "한국어 영화,y", "c,x")
    source = own_source(path)
    words = letters_tokenizer(tmp_path)

    def opened(labels, allow_unknown=True):
        tokenization = Tokenization(World(), run, words, allow_unknown)
        return open_set(LabelTask(8, labels), source, tokenization).rows

    for labels, numbers in ((("x", "y"), [0, 1, 0]), (("y", "z", "x"), [2, 0, 2])):
        assert opened(labels).column("label").tolist() == numbers
    refused(lambda: opened(("x", "z")), "--train_file", "a.csv: line 3", "'y'", "x, z")
    refused(lambda: opened(("x", "y"), False), "a.csv", "33.3%", "--do_lower_case")


# -- named tasks: real files by the csv module, the layouts that are published, the hub ------------

# Examples by gluebenchmark.com's and NSMC's descriptions, and columns by run_classifier.py or the
# header. Of MRPC's train.tsv copies with 3,667 rows are about; GLUE's description says 3,668.
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
    assert texts.ids == (
        [row[0] for row in rows] if name == "nsmc" else [str(n) for n in range(len(rows))]
    )
    # left out, accuracy would be over other examples than those of published tables
    if name == "nsmc":
        assert texts.first.count("") == 3  # counted by grep
    else:  # the GLUE folder that holds the task's
        assert read_glue(name, folder.parent, split).first == texts.first


QQP, PAIR = "id qid1 qid2 question1 question2 is_duplicate", "sentence1 sentence2"
MNLI = f"index promptID pairID genre sentence1_binary_parse sentence2_binary_parse {PAIR}"
# task, set, files, their header as published, columns of the texts, the label and the id
LAYOUTS = [
    ("qqp", "train", "QQP/train", QQP, "question1 question2 is_duplicate id"),
    (
        "mnli",
        "train",
        "MNLI/train",
        f"{MNLI} label1 gold_label",
        "sentence1 sentence2 gold_label index",
    ),
    ("mnli", "test_matched", "MNLI/test_matched", MNLI, "sentence1 sentence2 - index"),
    ("qnli", "dev", "QNLI/dev", "index question sentence label", "question sentence label index"),
    ("rte", "train", "RTE/train", f"index {PAIR} label", "sentence1 sentence2 label index"),
    ("ax", "test", "diagnostic/diagnostic", f"index {PAIR}", "sentence1 sentence2 - index"),
    (
        "kornli",
        "train",
        "KorNLI/multinli.train.ko KorNLI/snli_1.0_train.ko",
        f"{PAIR} gold_label",
        "sentence1 sentence2 gold_label -",
    ),
    (
        "korsts",
        "dev",
        "KorSTS/sts-dev",
        f"genre filename year id score {PAIR}",
        "sentence1 sentence2 score -",
    ),
]


@pytest.mark.parametrize(("task", "split", "files", "header", "columns"), LAYOUTS)
def test_the_layouts_of_the_other_tasks(tmp_path, task, split, files, header, columns):
    for number, file in enumerate(files.split()):
        cells = [
            f"{number}.5" if name == "score" else f"{name} {number}" for name in header.split()
        ]
        write_lines(tmp_path / f"{file}.tsv", header.replace(" ", "\t"), "\t".join(cells))
    first, second, label, id_ = columns.split()
    texts, numbers = read_glue(task, tmp_path, split), range(len(files.split()))
    assert texts.first == [f"{first} {number}" for number in numbers]
    assert texts.second == [f"{second} {number}" for number in numbers]
    expected = [0.5] if label == "score" else [f"{label} {number}" for number in numbers]
    assert texts.labels == (None if label == "-" else expected)
    assert texts.ids == [str(number) if id_ == "-" else f"{id_} {number}" for number in numbers]


def test_xnli(tmp_path):
    """Google's XnliProcessor: "contradictory" in the machine translation, rows filtered by
    language."""
    rows = ["가\t나\tcontradictory", "다\t라\tneutral", "마\t바\tentailment"]
    write_lines(tmp_path / "multinli/multinli.train.ko.tsv", "premise\thypo\tlabel", *rows)
    rows = [
        "ar\tneutral\tا\tب\t1",
        "ko\tcontradiction\t가\t나\t1",
        "en\tneutral\ta\tb\t1",
        "ko\tentailment\t다\t라\t2",
    ]
    write_lines(
        tmp_path / "xnli.dev.tsv", "language\tgold_label\tsentence1\tsentence2\tpairID", *rows
    )
    train = read_glue("xnli", tmp_path, "train", "ko")
    assert train.labels == ["contradiction", "neutral", "entailment"]
    dev = read_glue("xnli", tmp_path, "dev", "ko")
    assert (dev.first, dev.second) == (["가", "다"], ["나", "라"])
    assert dev.labels == ["contradiction", "entailment"]
    refused(lambda: read_glue("xnli", tmp_path, "dev", "de"), "--language de", "ar, en, ko")
    refused(lambda: read_glue("xnli", tmp_path, "train", "de"), "multinli/multinli.train.de.tsv")


def test_rows_of_qqp_that_a_line_break_cut_are_left_out_and_counted(tmp_path):
    rows = [f"{n}\t1\t2\tis it a\tor b\t{n % 2}" for n in range(3000)]
    rows[10:11] = ["10\t1\t2\tis it", "a\tor b\t0"]
    write_lines(tmp_path / "train.tsv", QQP.replace(" ", "\t"), *rows)
    texts = read_glue("qqp", tmp_path, "train")
    assert (len(texts.first), texts.ids[10]) == (2999, "11")
    assert texts.counts == {"rows with too few columns left out": 2}
    write_lines(tmp_path / "train.tsv", QQP.replace(" ", "\t"), *rows[:600])
    refused(lambda: read_glue("qqp", tmp_path, "train"), "train.tsv", "2 of 600")


def test_folders_that_are_not_the_task_s_are_refused(tmp_path):
    refused(
        lambda: read_glue("rte", tmp_path / "nowhere", "dev"), "--data_dir", tmp_path / "nowhere"
    )
    refused(lambda: read_glue("mrpc", tmp_path, "train"), "--data_dir", tmp_path, "train.tsv")
    write_lines(tmp_path / "dev.tsv", "index\tsentence1\tsentence2", "0\ta\tb")
    refused(lambda: read_glue("sts-b", tmp_path, "dev"), "--data_dir", tmp_path, "dev.tsv", "score")
    (tmp_path / "train.tsv").touch()  # as empty standard input, without a header
    refused(lambda: read_glue("cola", tmp_path, "train"), "train.tsv has no row with a text")


def test_names_are_found_in_any_spelling_and_labels_have_google_s_order():
    """`get_labels()` of the processors in run_classifier.py."""
    spellings = ("STS-B", "stsb", "sts_b", "STSB")
    assert {find_task(spelling).name for spelling in spellings} == {"sts-b"}
    refused(lambda: find_task("qnil"), "--task_name", "qnil", "qnli")
    nli = ("contradiction", "entailment", "neutral")
    assert TASKS["mnli"].labels == TASKS["xnli"].labels == nli
    assert TASKS["mrpc"].labels == TASKS["cola"].labels == ("0", "1")
    assert set(TASKS["mrpc"].metrics) == {"accuracy", "f1", "acc_and_f1"}
    assert TASKS["qnli"].labels == TASKS["rte"].labels == ("entailment", "not_entailment")
    asked = "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm QNLI RTE WNLI AX"  # gluebenchmark.com/faq
    files = [
        part.submission
        for task in TASKS.values()
        for part in task.splits.values()
        if part.submission
    ]
    assert files == [f"{name}.tsv" for name in asked.split()]


def test_labels_of_the_hub_become_google_s(tmp_path, monkeypatch):
    """The hub numbers MNLI's labels in another order: the texts count, never the numbers."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")

    def save(folder, split, columns, names):
        data = datasets.Dataset.from_dict(columns).cast_column(
            "label", datasets.ClassLabel(names=names)
        )
        data.to_parquet(tmp_path / folder / f"{split}.parquet")

    def read_hub(name, split):
        task = dataclasses.replace(TASKS[name], hub=str(tmp_path / name), hub_config=None)
        source = Source(TextSettings(task_name=name, from_hub=True), task, split)
        return read(source, task.labels)

    order = ["contradiction", "entailment", "neutral"]
    columns = {
        "premise": ["a", "b", "c"],
        "hypothesis": ["d", "e", "f"],
        "label": [0, 1, 2],
        "idx": [4, 5, 6],
    }
    save("xnli", "train", columns, order)
    save("xnli", "validation", columns | {"label": [2, -1, 0]}, order)
    save("xnli", "test", columns | {"label": [-1, -1, -1]}, order)
    texts = read_hub("xnli", "train")
    assert (texts.first, texts.second, texts.labels) == (["a", "b", "c"], ["d", "e", "f"], order)
    assert (texts.ids, read_hub("xnli", "test").labels) == (["4", "5", "6"], None)
    # -1 is no label; as an index of Python's it would be the last one
    refused(lambda: read_hub("xnli", "dev"), "xnli", "(validation): row 2", "label", "'-1'")
    save("cola", "train", {"sentence": ["a", "b"], "label": [1, 0]}, ["unacceptable", "acceptable"])
    assert read_hub("cola", "train").labels == ["1", "0"]
    refused(lambda: read_hub("cola", "dev"), "cola", "validation")
