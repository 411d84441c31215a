"""Classifier data against the csv module, pyarrow, transformers and google-research/bert `run_classifier.py`."""

import csv
import dataclasses
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from real_data import real

from bert.text import tokenizer
from distributed.rows import Rows, metadata_of
from ringbert.errors import InputError
from tasks.classifier import data as classifier_data
from tasks.classifier.data import check_labels, examples, labels_of, read_file, read_task, read_task_hub
from tasks.classifier.tasks import TASKS, Columns, Hub, Split, Task, find_task, submission

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def small(tmp_path):
    """A tokenizer of letters: no real data needed."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", *"?.,'()"]
    words += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    return tokenizer.load(str(tmp_path / "vocab.txt"))


def write(path: Path, *rows: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{row}\n" for row in rows).encode())
    return str(path)


# -- real files ---------------------------------------------------------------------------------------------------


def rows_by_csv(path: Path, header: bool) -> list[list[str]]:
    """As run_classifier.py `_read_tsv` does: csv.reader with a tab and no quote character."""
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[header:]


# Examples by gluebenchmark.com's and NSMC's descriptions, and columns by run_classifier.py or the header. Of
# MRPC's train.tsv copies with 3,667 rows are about; GLUE's description says 3,668.
REAL = [
    ("CoLA", "train", {8551}, "train.tsv", False, (3, None, 1)),
    ("CoLA", "dev", {1043}, "dev.tsv", False, (3, None, 1)),
    ("CoLA", "test", {1063}, "test.tsv", True, (1, None, None)),
    ("SST-2", "train", {67349}, "train.tsv", True, (0, None, 1)),
    ("SST-2", "dev", {872}, "dev.tsv", True, (0, None, 1)),
    ("SST-2", "test", {1821}, "test.tsv", True, (1, None, None)),
    ("MRPC", "train", {3667, 3668}, "train.tsv", True, (3, 4, 0)),
    ("MRPC", "dev", {408}, "dev.tsv", True, (3, 4, 0)),
    ("MRPC", "test", {1725}, "test.tsv", True, (3, 4, None)),
    ("STS-B", "train", {5749}, "train.tsv", True, (7, 8, 9)),
    ("STS-B", "dev", {1500}, "dev.tsv", True, (7, 8, 9)),
    ("STS-B", "test", {1379}, "test.tsv", True, (7, 8, None)),
    ("nsmc", "train", {150000}, "ratings_train.txt", True, (1, None, 2)),
    ("nsmc", "test", {50000}, "ratings_test.txt", True, (1, None, 2)),
]


@pytest.mark.parametrize(("name", "split", "published", "file", "header", "columns"), REAL)
def test_real_files(name, split, published, file, header, columns):
    folder = real("nsmc" if name == "nsmc" else f"glue_data/{name}")
    task = find_task(name)
    texts = read_task(task, str(folder), split)
    rows = rows_by_csv(folder / file, header)
    first, second, label = ([row[c] for row in rows] if c is not None else None for c in columns)
    assert len(texts) in published
    assert texts.first == first
    assert texts.second == second
    if label is None:
        assert texts.labels is None
    elif task.is_regression:
        assert texts.labels == [float(score) for score in label]
        assert 0 <= min(texts.labels) <= max(texts.labels) <= 5
    else:
        assert texts.labels == label
        assert labels_of(texts) == ["0", "1"]
        check_labels(texts, task.labels)
    unlabelled_ids = [str(number) for number in range(len(rows))]
    assert texts.ids == ([row[0] for row in rows] if name == "nsmc" else unlabelled_ids)
    last = len(rows) - 1
    assert texts.place(last) == f"{folder / file}: line {len(rows) + header}"
    if name != "nsmc":  # the GLUE folder that holds the task's
        assert read_task(task, str(folder.parent), split) == texts


def test_empty_reviews_of_nsmc_stay():
    """Left out, accuracy would be over other examples than those of published tables."""
    folder = str(real("nsmc"))
    empty = [read_task(find_task("nsmc"), folder, split).first.count("") for split in ("train", "test")]
    assert empty == [5, 3]  # counted by grep


# -- folders as they are published --------------------------------------------------------------------------------

PARSES = "sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
HEADERS = {
    "QQP/train.tsv": "id qid1 qid2 question1 question2 is_duplicate",
    "QQP/dev.tsv": "id qid1 qid2 question1 question2 is_duplicate",
    "QQP/test.tsv": "id question1 question2",
    "MNLI/train.tsv": f"index promptID pairID genre {PARSES} sentence1 sentence2 label1 gold_label",
    "MNLI/dev_matched.tsv": f"index promptID pairID genre {PARSES} sentence1 sentence2 label1 label2 gold_label",
    "MNLI/dev_mismatched.tsv": f"index promptID pairID genre {PARSES} sentence1 sentence2 label1 gold_label",
    "MNLI/test_matched.tsv": f"index promptID pairID genre {PARSES} sentence1 sentence2",
    "MNLI/test_mismatched.tsv": f"index promptID pairID genre {PARSES} sentence1 sentence2",
    "QNLI/train.tsv": "index question sentence label",
    "QNLI/dev.tsv": "index question sentence label",
    "QNLI/test.tsv": "index question sentence",
    "RTE/train.tsv": "index sentence1 sentence2 label",
    "RTE/dev.tsv": "index sentence1 sentence2 label",
    "RTE/test.tsv": "index sentence1 sentence2",
    "WNLI/train.tsv": "index sentence1 sentence2 label",
    "WNLI/dev.tsv": "index sentence1 sentence2 label",
    "WNLI/test.tsv": "index sentence1 sentence2",
    "diagnostic/diagnostic.tsv": "index sentence1 sentence2",
    "KorNLI/multinli.train.ko.tsv": "sentence1 sentence2 gold_label",
    "KorNLI/snli_1.0_train.ko.tsv": "sentence1 sentence2 gold_label",
    "KorNLI/xnli.dev.ko.tsv": "sentence1 sentence2 gold_label",
    "KorNLI/xnli.test.ko.tsv": "sentence1 sentence2 gold_label",
    "KorSTS/sts-train.tsv": "genre filename year id score sentence1 sentence2",
    "KorSTS/sts-dev.tsv": "genre filename year id score sentence1 sentence2",
    "KorSTS/sts-test.tsv": "genre filename year id score sentence1 sentence2",
}
FIRSTS, SECONDS = ("question1", "question", "sentence1"), ("question2", "sentence", "sentence2")


def publish(root: Path, labels: dict[str, tuple[str, ...]]) -> None:
    """Files with these headers, three rows each; texts say which file and row they are of."""
    for file, header in HEADERS.items():
        names = header.split()
        first = next(name for name in FIRSTS if name in names)
        second = SECONDS[FIRSTS.index(first)]
        rows = []
        for number in range(3):
            label = labels[file.split("/")[0]][number]
            cells = {
                "index": f"{number + 5}",
                "id": f"{number + 5}",
                first: f'"{file} {number}',
                second: f"b\u2028{number}",
            }
            cells |= dict.fromkeys(("gold_label", "label", "is_duplicate", "score"), label)
            rows.append("\t".join(cells.get(name, "other") for name in names))
        write(root / file, "\t".join(names), *rows)


def test_the_layouts_of_the_other_tasks(tmp_path):
    nli, entailment = ("neutral", "contradiction", "entailment"), ("not_entailment", "entailment", "entailment")
    labels = dict.fromkeys(("MNLI", "KorNLI", "diagnostic"), nli) | dict.fromkeys(("QNLI", "RTE"), entailment)
    labels |= dict.fromkeys(("QQP", "WNLI"), ("1", "0", "0")) | {"KorSTS": ("0.5", "4.200", "5")}
    publish(tmp_path, labels)
    read_files = set()
    for name in ("qqp", "mnli", "qnli", "rte", "wnli", "ax", "kornli", "korsts"):
        task = TASKS[name]
        for split, part in task.splits.items():
            texts = read_task(task, str(tmp_path), split)
            paths = [f"{task.folder}/{file}" for file in part.files]
            read_files.update(paths)
            assert texts.first == [f'"{path} {number}' for path in paths for number in range(3)]
            assert texts.second == ["b\u20280", "b\u20281", "b\u20282"] * len(paths)
            is_labelled = not split.startswith("test") or task.folder.startswith("Kor")
            expected = list(labels[task.folder]) * len(paths)
            if name == "korsts":
                expected = [float(score) for score in expected]
            assert texts.labels == (expected if is_labelled else None)
            if not task.is_regression:
                check_labels(texts, task.labels)
            by_number = task.folder.startswith("Kor")
            assert texts.ids == ([str(n) for n in range(3 * len(paths))] if by_number else ["5", "6", "7"])
    assert read_files == set(HEADERS)
    kornli = read_task(TASKS["kornli"], str(tmp_path), "train")
    assert kornli.place(4) == f"{tmp_path}/KorNLI/snli_1.0_train.ko.tsv: line 3"  # in the second of two files


def test_xnli(tmp_path):
    """Google's XnliProcessor: "contradictory" in the machine translation, rows filtered by language."""
    write(
        tmp_path / "multinli/multinli.train.ko.tsv",
        "premise\thypo\tlabel", "가\t나\tcontradictory", "다\t라\tneutral", "마\t바\tentailment",
    )  # fmt: skip
    header = "language\tgold_label\tsentence1\tsentence2\tpairID"
    rows = [
        "ar\tneutral\tا\tب\t1",
        "ko\tcontradiction\t가\t나\t1",
        "en\tneutral\ta\tb\t1",
        "ko\tentailment\t다\t라\t2",
    ]
    write(tmp_path / "xnli.dev.tsv", header, *rows)
    train = read_task(TASKS["xnli"], str(tmp_path), "train", "ko")
    assert train.labels == ["contradiction", "neutral", "entailment"]
    dev = read_task(TASKS["xnli"], str(tmp_path), "dev", "ko")
    assert (dev.first, dev.second) == (["가", "다"], ["나", "라"])
    assert dev.labels == ["contradiction", "entailment"]
    assert dev.place(1).endswith("xnli.dev.tsv: line 5")
    with pytest.raises(InputError, match=r"no row in --language de, only ar, en, ko"):
        read_task(TASKS["xnli"], str(tmp_path), "dev", "de")
    with pytest.raises(InputError, match=r"no file multinli/multinli.train.de.tsv"):
        read_task(TASKS["xnli"], str(tmp_path), "train", "de")


def test_mrpc_as_microsoft_publishes_it(tmp_path):
    lines = ["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r", '1\t7\t8\t"a b\tc "d"\r', "0\t9\t10\te\tf\r"]
    for name in ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt"):
        write(tmp_path / name, *lines)
    for split in ("train", "test"):
        texts = read_task(TASKS["mrpc"], str(tmp_path), split)
        assert (texts.first, texts.second, texts.labels) == (['"a b', "e"], ['c "d"', "f"], ["1", "0"])
    write(tmp_path / "dev.tsv", *lines)
    with pytest.raises(InputError, match=r"holds the examples of dev.tsv too: train.tsv is needed"):
        read_task(TASKS["mrpc"], str(tmp_path), "train")


def test_rows_of_qqp_that_a_line_break_cut_are_left_out_and_counted(tmp_path, small, run, capsys):
    rows = [f"{n}\t1\t2\tis it a\tor b\t{n % 2}" for n in range(3000)]
    rows[10:11] = ["10\t1\t2\tis it", "a\tor b\t0"]
    write(tmp_path / "train.tsv", HEADERS["QQP/train.tsv"].replace(" ", "\t"), *rows)
    texts = read_task(TASKS["qqp"], str(tmp_path), "train")
    assert len(texts) == 2999
    assert texts.num_short_rows == 2
    assert texts.place(10).endswith("line 14")
    examples(texts, small, tmp_path / "cache", max_seq_length=16, labels=("0", "1"), allow_unknown=False, run=run)
    assert "2 rows with too few columns left out" in capsys.readouterr().err
    write(tmp_path / "train.tsv", HEADERS["QQP/train.tsv"].replace(" ", "\t"), *rows[:600])
    with pytest.raises(InputError, match="2 of 600 rows have fewer than 6 columns"):
        read_task(TASKS["qqp"], str(tmp_path), "train")


# -- the table ----------------------------------------------------------------------------------------------------


def test_names():
    spellings = {
        "STS-B": "sts-b",
        "stsb": "sts-b",
        "SST2": "sst-2",
        "sst_2": "sst-2",
        "CoLA": "cola",
        "MNLI": "mnli",
    }
    assert {given: find_task(given).name for given in spellings} == spellings
    with pytest.raises(InputError, match=r"--task_name qnil is none of cola, .*; did you mean qnli\?"):
        find_task("qnil")


def test_google_s_label_order():
    """`get_labels()` of the processors in run_classifier.py."""
    assert TASKS["mnli"].labels == TASKS["xnli"].labels == ("contradiction", "entailment", "neutral")
    assert TASKS["mrpc"].labels == TASKS["cola"].labels == ("0", "1")
    assert TASKS["qnli"].labels == TASKS["rte"].labels == ("entailment", "not_entailment")
    assert TASKS["sts-b"].labels is None


def test_splits():
    assert TASKS["mnli"].splits_of("dev") == ("dev_matched", "dev_mismatched")
    assert TASKS["mnli"].split("dev") is TASKS["mnli"].splits["dev_matched"]
    assert TASKS["ax"].splits_of("train") == ()
    assert TASKS[TASKS["ax"].trained_by].labels == TASKS["ax"].labels
    with pytest.raises(InputError, match="ax has no train set, only test; train with --task_name mnli"):
        TASKS["ax"].split("train")
    asked = "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm QNLI RTE WNLI AX"  # gluebenchmark.com/faq
    given = [part.submission for task in TASKS.values() for part in task.splits.values() if part.submission]
    assert given == [f"{name}.tsv" for name in asked.split()]


def test_submission():
    assert submission(TASKS["rte"], ["0", "2"], ["entailment", "not_entailment"]) == (
        "index\tprediction\n0\tentailment\n2\tnot_entailment\n"
    )
    scores = np.array([-0.2, 5.01, 3.14159], np.float32)
    assert (
        submission(TASKS["sts-b"], ["0", "1", "2"], scores) == "index\tprediction\n0\t0.000\n1\t5.000\n2\t3.142\n"
    )
    with pytest.raises(ValueError, match="shorter"):
        submission(TASKS["rte"], ["0", "2"], ["entailment"])


# -- files of the user's ------------------------------------------------------------------------------------------

TEXTS = [
    'He said "no", twice.',
    "two\nlines",
    "tab\there",
    "  spaces ",
    "한국어 \u2028 \U0001f600",
    "'",
    '"',
    "x" * 200_000,
]
LABELS = ["b", "a", "c,d", "a", "b", "b", "a", "b"]


def read(path, **options):
    return read_file(str(path), "--train_file", "text", None, "label", **options)


def test_csv_and_json_lines_and_parquet_hold_the_same(tmp_path):
    table = pa.table({"number": list(range(8)), "label": LABELS, "text": TEXTS})
    pyarrow.csv.write_csv(table, tmp_path / "a.csv")  # quoted by another writer
    with (tmp_path / "b.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([["text", "label"], *zip(TEXTS, LABELS, strict=True)])
    write(tmp_path / "c.jsonl", *(json.dumps(row) for row in table.to_pylist()))
    pyarrow.parquet.write_table(table, tmp_path / "d.parquet", row_group_size=3)
    for name in ("a.csv", "b.csv", "c.jsonl"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    names = ["a.csv", "b.csv", "c.jsonl", "d.parquet", "a.csv.gz", "b.csv.gz", "c.jsonl.gz"]
    for name in names:
        texts = read(tmp_path / name)
        assert texts.first == TEXTS, name
        assert texts.labels == LABELS, name
        assert texts.second is None
        assert texts.ids == [str(number) for number in range(8)]
    assert read(tmp_path / "b.csv").place(1) == f"{tmp_path}/b.csv: line 4"  # where the row of two lines ends
    assert read(tmp_path / "c.jsonl.gz").place(1) == f"{tmp_path}/c.jsonl.gz: line 2"
    assert read(tmp_path / "d.parquet").place(1) == f"{tmp_path}/d.parquet: row 2"


def test_quotes_in_tsv_are_text(tmp_path):
    path = write(tmp_path / "a.TSV", "label\ttext\tother", '1\t"a\t"', '0\tb ""\t', "0\t\tc", "", "")
    texts = read_file(path, "--train_file", "text", "other", "label")
    assert (texts.first, texts.second, texts.labels) == (['"a', 'b ""', ""], ['"', "", "c"], ["1", "0", "0"])
    only = write(tmp_path / "b.txt", "text", "a", "", "b")
    assert read(only).first == ["a", "", "b"]  # the empty text between two others is one
    assert read(only).labels is None


def test_labels_in_other_types(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "a", "label": 10}', "", '{"text": "b", "label": 2}')
    assert read(path).labels == ["10", "2"]
    assert labels_of(read(path)) == ["2", "10"]
    assert read(path, numeric_labels=True).labels == [10.0, 2.0]
    assert labels_of(read(write(tmp_path / "b.csv", "text,label", "a,10", "b,x", "c,2"))) == ["10", "2", "x"]
    pyarrow.parquet.write_table(pa.table({"text": ["a", "b"], "label": [0.5, None]}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match=r"c.parquet: row 2: label is None, needed is a label"):
        read(tmp_path / "c.parquet")


def refused(path, message, **options):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        read(path, **options)
    assert "\n" not in str(caught.value)
    assert "--train_file" in str(caught.value)


def test_bad_files(tmp_path):
    refused(tmp_path / "no.csv", "no.csv: no such file")
    refused(tmp_path / "no.parquet", "no.parquet: no such file")
    refused(write(tmp_path / "a.xlsx", "a"), "the extension must be .csv, .tsv, .txt, .jsonl, .json, .parquet")
    refused(write(tmp_path / "a.parquet.gz", "a"), "the extension must be")
    refused(write(tmp_path / "empty.csv"), "empty.csv: the file is empty")
    refused(write(tmp_path / "header.csv", "text,label"), "no row after its header")
    refused(write(tmp_path / "header.tsv", "text\tlabel"), "no row after its header")
    refused(
        write(tmp_path / "r.tsv", "text\tlabel", "a\t1", "b\tc\t0"),
        "r.tsv: line 3 has 3 columns, needed are 2 as in",
    )
    refused(
        write(tmp_path / "s.tsv", "text\tlabel", "a\t1", "", "c\t0"), "s.tsv: line 3 has 1 columns, needed are 2"
    )
    refused(write(tmp_path / "r.csv", "text,label", '"a\nb",1', "c"), "r.csv: line 4 has 1 columns, needed are 2")
    refused(write(tmp_path / "q.csv", "text,label", "a,1", '"b" c,0'), "q.csv: line 3: broken quotes")
    refused(write(tmp_path / "t.csv", "text,label", "a,1", '"b,0'), "t.csv: line 3: broken quotes (unexpected end")
    refused(write(tmp_path / "m.csv", "txt,label", "a,1"), "m.csv: no column 'text', only txt, label")
    refused(
        write(tmp_path / "l.csv", "text,y", "a,1"), "l.csv: no column 'label', only text, y", needs_labels=True
    )
    refused(write(tmp_path / "2.csv", "text,text,label", "a,b,1"), "column text occurs twice")
    refused(write(tmp_path / "e.csv", "text,label", "a,1", "b,"), "e.csv: line 3: label is '', needed is a label")
    for score in ("three", "nan", "inf", ""):
        path = write(tmp_path / "n.csv", "text,label", "a,1.5", f"b,{score}")
        refused(path, f"n.csv: line 3: label is '{score}', needed is a finite number", numeric_labels=True)
    latin = Path(write(tmp_path / "latin.tsv", "text\tlabel", "a\t1"))
    latin.write_bytes(latin.read_bytes() + "é\t1\n".encode("latin-1"))
    refused(latin, "latin.tsv: line 3 is not UTF-8 (invalid continuation byte at byte 15)")


def test_bad_json_lines_and_parquet(tmp_path):
    good = '{"text": "a", "label": "x"}'
    refused(write(tmp_path / "a.jsonl", good, good[:-3]), "a.jsonl: line 2 is not JSON")
    refused(write(tmp_path / "b.json", "[", good, "]"), "b.json: line 1 is not JSON")
    refused(write(tmp_path / "c.json", f"[{good}]"), "c.json: line 1 holds no JSON object")
    refused(
        write(tmp_path / "d.jsonl", good, '{"text": "b"}'), "d.jsonl: line 2 has no 'label' and other lines have"
    )
    refused(
        write(tmp_path / "e.jsonl", good, '{"text": 3, "label": "x"}'), "e.jsonl: line 2: text is no text but 3"
    )
    refused(
        write(tmp_path / "f.jsonl", '{"text": "\\ud800", "label": "x"}'),
        "line 1: text holds half a surrogate pair",
    )
    refused(
        write(tmp_path / "g.jsonl", '{"text": "b", "label": ["x"]}'), "line 1: label is ['x'], needed is a label"
    )
    pyarrow.parquet.write_table(pa.table({"text": ["a", None], "label": ["x", "y"]}), tmp_path / "a.parquet")
    refused(tmp_path / "a.parquet", "a.parquet: row 2: text is no text but None")
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "b.parquet").write_bytes(whole[:-20])
    refused(tmp_path / "b.parquet", "b.parquet: no Parquet file, or damaged")
    packed = gzip.compress((good + "\n").encode() * 50)
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    refused(tmp_path / "cut.jsonl.gz", "truncated or damaged gzip file")
    (tmp_path / "flipped.jsonl.gz").write_bytes(packed[:-6] + bytes([packed[-6] ^ 255]) + packed[-5:])
    refused(tmp_path / "flipped.jsonl.gz", "truncated or damaged gzip file")


def test_bad_task_folders(tmp_path):
    def refused(task, split, message):
        with pytest.raises(InputError, match=re.escape(message)) as caught:
            read_task(TASKS[task], str(tmp_path), split)
        assert "\n" not in str(caught.value)
        assert "--data_dir" in str(caught.value)

    refused(
        "mrpc", "train", f"{tmp_path}: no file train.tsv or msr_paraphrase_train.txt, which --task_name mrpc needs"
    )
    write(tmp_path / "train.tsv", "Quality\t#1 String\t#2 Text", "1\ta\tb")
    refused("mrpc", "train", "train.tsv: no column '#2 String', only Quality, #1 String, #2 Text")
    write(tmp_path / "train.tsv", "gj04\t1\t\ta", "gj04\t1\ta")
    refused("cola", "train", "train.tsv: line 2 has 3 columns, needed are 4 as in the published file")
    write(tmp_path / "dev.tsv", "index\tsentence1\tsentence2", "0\ta\tb")
    refused("sts-b", "dev", "dev.tsv: no column 'score', only index, sentence1, sentence2")
    with pytest.raises(InputError, match="the folder does not exist"):
        read_task(TASKS["rte"], str(tmp_path / "nowhere"), "train")


def test_unseen_labels(tmp_path):
    train = read(write(tmp_path / "train.csv", "text,label", "a,no", "b,yes"))
    dev = read(write(tmp_path / "dev.csv", "text,label", '"a\nb",no', "c,maybe"))
    assert labels_of(train) == ["no", "yes"]
    check_labels(train, labels_of(train), "--train_file")
    with pytest.raises(InputError, match=r"^--dev_file \S+dev.csv: line 4: label 'maybe' is none of no, yes$"):
        check_labels(dev, labels_of(train), "--dev_file")


# -- the hub ------------------------------------------------------------------------------------------------------


@pytest.fixture
def offline(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_OFFLINE", True)


def save(folder: Path, split: str, columns: dict, names: list[str] | None = None) -> None:
    import datasets

    data = datasets.Dataset.from_dict(columns)
    if names:
        data = data.cast_column("label", datasets.ClassLabel(names=names))
    folder.mkdir(exist_ok=True)
    data.to_parquet(folder / f"{split}.parquet")


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("header", [True, False])
def test_a_task_whose_files_are_quoted(tmp_path, header):
    columns = Columns("text", label="label", is_quoted=True)
    if not header:
        columns = Columns(1, label=0, num_columns=2, is_quoted=True)
    task = Task("own", "own", ("0", "1"), ("accuracy",), "accuracy", {"train": Split(("a.tsv",), columns)})
    content = '1\t"a tab\there, ""quotes""\nand a line"\n0\tplain\n'
    (tmp_path / "a.tsv").write_text(("label\ttext\n" if header else "") + content)
    texts = read_task(task, str(tmp_path), "train")
    assert list(texts.first) == ['a tab\there, "quotes"\nand a line', "plain"]
    assert list(texts.labels) == ["1", "0"]
    (tmp_path / "a.tsv").write_text(("label\ttext\n" if header else "") + '1\t"open\n')
    with pytest.raises(InputError, match=r"a\.tsv: line \d: broken quotes"):
        read_task(task, str(tmp_path), "train")


def test_hub_labels_become_google_s(tmp_path):
    """The hub numbers MNLI's labels in another order: the texts count, never the numbers."""
    task = dataclasses.replace(TASKS["rte"], labels=TASKS["mnli"].labels)
    task = dataclasses.replace(task, hub=Hub(str(tmp_path / "nli"), None, "premise", "hypothesis"))
    columns = {"premise": ["a", "b", "c"], "hypothesis": ["d", "e", "f"], "label": [0, 1, 2], "idx": [4, 5, 6]}
    save(tmp_path / "nli", "train", columns, ["entailment", "neutral", "contradiction"])
    save(tmp_path / "nli", "test", columns | {"label": [-1, -1, -1]}, ["entailment", "neutral", "contradiction"])
    texts = read_task_hub(task, "train")
    assert (texts.first, texts.second, texts.ids) == (["a", "b", "c"], ["d", "e", "f"], ["4", "5", "6"])
    assert texts.labels == ["entailment", "neutral", "contradiction"]
    assert read_task_hub(task, "test").labels is None
    assert texts.place(1).endswith("nli (train): row 2")


@pytest.mark.usefixtures("offline")
def test_hub_numbers_and_scores_and_errors(tmp_path):
    cola = dataclasses.replace(TASKS["cola"], hub=Hub(str(tmp_path / "cola"), None, "sentence"))
    columns = {"sentence": ["a", "b"], "label": [1, 0], "idx": [0, 1]}
    save(tmp_path / "cola", "train", columns, ["unacceptable", "acceptable"])
    assert read_task_hub(cola, "train").labels == ["1", "0"]
    stsb = dataclasses.replace(TASKS["sts-b"], hub=Hub(str(tmp_path / "sts"), None, "sentence1", "sentence2"))
    save(tmp_path / "sts", "train", {"sentence1": ["a"], "sentence2": ["b"], "label": [2.5]})
    assert read_task_hub(stsb, "train").labels == [2.5]
    for task, split, message in (
        (cola, "dev", r"cola \(validation\): .*validation.*; or give --data_dir"),
        (
            dataclasses.replace(cola, hub=Hub("nobody/nothing", None, "text")),
            "train",
            r"nobody/nothing \(train\): ",
        ),
        (
            dataclasses.replace(cola, hub=Hub(str(tmp_path / "cola"), None, "text")),
            "train",
            "no column 'text', only sen",
        ),
        (TASKS["kornli"], "train", "no data set of the hub is known for it; give --data_dir"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            read_task_hub(task, split)
        assert "\n" not in str(caught.value)


# -- examples -----------------------------------------------------------------------------------------------------


def truncate_seq_pair(tokens_a, tokens_b, max_length):
    """run_classifier.py `_truncate_seq_pair`."""
    while len(tokens_a) + len(tokens_b) > max_length:
        if len(tokens_a) > len(tokens_b):
            tokens_a.pop()
        else:
            tokens_b.pop()


def google_s_example(a, b, max_seq_length):
    """Tokens and types of `convert_single_example`, without padding."""
    a, b = list(a), None if b is None else list(b)
    if b is not None:
        truncate_seq_pair(a, b, max_seq_length - 3)
    elif len(a) > max_seq_length - 2:
        a = a[: max_seq_length - 2]
    tokens = ["[CLS]", *a, "[SEP]"]
    types = [0] * len(tokens)
    if b is not None:
        tokens += [*b, "[SEP]"]
        types += [1] * (len(b) + 1)
    return tokens, types


def test_truncation_of_all_small_lengths():
    for room in range(1, 14):
        first, second = (grid.reshape(-1) for grid in np.meshgrid(np.arange(16), np.arange(16)))
        kept = classifier_data.truncated(first, second, room)
        for a, b, kept_a, kept_b in zip(first, second, *kept, strict=True):
            tokens_a, tokens_b = ["x"] * a, ["x"] * b
            truncate_seq_pair(tokens_a, tokens_b, room)
            assert (kept_a, kept_b) == (len(tokens_a), len(tokens_b)), (a, b, room)


@pytest.mark.parametrize(("name", "max_seq_length"), [("MRPC", 128), ("MRPC", 40), ("CoLA", 12), ("STS-B", 25)])
def test_examples_are_google_s(name, max_seq_length, tmp_path, run, monkeypatch):
    monkeypatch.setattr(classifier_data, "TOKENIZED_AT_ONCE", 100)  # several chunks, the last one smaller
    ours = tokenizer.load(str(real("vocab/bert-base-uncased.txt")))
    task = find_task(name)
    texts = read_task(task, str(real("glue_data")), "dev")
    options = {"max_seq_length": max_seq_length, "labels": task.labels, "allow_unknown": False, "run": run}
    rows = Rows.open(tmp_path / examples(texts, ours, tmp_path, **options) / "examples.arrow")
    vocabulary, to_tokens = ours._fast.get_vocab(), ours._fast.convert_ids_to_tokens
    seconds = texts.second or [None] * len(texts)
    cut = 0
    for row, first, second, label in zip(rows.table.to_pylist(), texts.first, seconds, texts.labels, strict=True):
        a = to_tokens(ours.encode([first])[0][0].tolist())
        b = None if second is None else to_tokens(ours.encode([second])[0][0].tolist())
        tokens, types = google_s_example(a, b, max_seq_length)
        assert row["input_ids"] == [vocabulary[token] for token in tokens]
        assert row["sentence_a_tokens"] == types.count(0)
        cut += len(tokens) < len(a) + len(b or ()) + (2 if b is None else 3)
        assert row["label"] == (np.float32(label) if task.is_regression else int(label))
    assert metadata_of(rows)["num_cut"] == cut
    assert cut > 0 or max_seq_length == 128
    assert str(rows.table.schema.field("input_ids").type).startswith("large_list")
    assert rows.table.schema.field("input_ids").type.value_type == pa.int32()
    assert rows.table.schema.field("sentence_a_tokens").type == pa.int32()
    assert rows.table.schema.field("label").type == (pa.float32() if task.is_regression else pa.int32())


def test_examples_are_those_of_transformers(tmp_path, run):
    """Every pair at 128. At 48, where both texts are cut and the second is longer, transformers gives the odd
    token to the second text and Google to the first; all other pairs are the same."""
    from transformers import BertTokenizerFast

    vocab = real("vocab/bert-base-uncased.txt")
    theirs = BertTokenizerFast(str(vocab), do_lower_case=True)
    texts = read_task(TASKS["mrpc"], str(real("glue_data")), "dev")
    for length in (128, 48):
        options = {"max_seq_length": length, "labels": ("0", "1"), "allow_unknown": False, "run": run}
        key = examples(texts, tokenizer.load(str(vocab)), tmp_path, **options)
        values, offsets = Rows.open(tmp_path / key / "examples.arrow").column("input_ids")
        first = Rows.open(tmp_path / key / "examples.arrow").column("sentence_a_tokens")
        expected = theirs(texts.first, texts.second, truncation="longest_first", max_length=length)
        same = 0
        for number, (ids, types) in enumerate(zip(expected["input_ids"], expected["token_type_ids"], strict=True)):
            assert first[number] - types.count(0) in ((0,) if length == 128 else (0, 1))
            if types.count(0) == first[number]:
                same += 1
                assert values[offsets[number] : offsets[number + 1]].tolist() == ids
        assert same == len(texts) if length == 128 else same > 0.4 * len(texts)


def test_unlabelled_and_empty_texts(small, tmp_path, run, capsys):
    options = {"max_seq_length": 8, "allow_unknown": False, "run": run}
    path = write(tmp_path / "a.csv", "text,other", "a b,c", ",d", "e,", "a b c d,e")
    texts = read_file(path, "--predict_file", "text", "other", "label")
    for labels in (("0", "1"), None):
        rows = Rows.open(tmp_path / examples(texts, small, tmp_path, labels=labels, **options) / "examples.arrow")
        assert rows.table.column("input_ids").to_pylist()[1:3] == [
            [small.cls_id, small.sep_id, 8, small.sep_id],
            [small.cls_id, 9, small.sep_id, small.sep_id],
        ]
        assert rows.table.column("sentence_a_tokens").to_pylist() == [4, 2, 3, 6]
        column = rows.column("label")
        assert column.tolist() == [-1] * 4 if labels else np.isnan(column).all()
    assert "4 examples, 0.00% [UNK], 2 with an empty text" in capsys.readouterr().err


def test_labels_are_numbered_in_the_order_given(small, tmp_path, run):
    texts = read(write(tmp_path / "a.csv", "text,label", "a,x", "b,y", "c,x"))
    options = {"max_seq_length": 8, "allow_unknown": False, "run": run}
    for labels, numbers in ((("x", "y"), [0, 1, 0]), (("y", "z", "x"), [2, 0, 2])):
        rows = Rows.open(tmp_path / examples(texts, small, tmp_path, labels=labels, **options) / "examples.arrow")
        assert rows.column("label").tolist() == numbers
    with pytest.raises(InputError, match=r"a.csv: line 3: label 'y' is none of x, z"):
        examples(texts, small, tmp_path, labels=("x", "z"), **options)
    with pytest.raises(InputError, match=r"--max_seq_length 2 leaves no room"):
        examples(texts, small, tmp_path, labels=("x", "y"), **options | {"max_seq_length": 2})


def test_unknown_words(small, tmp_path, run):
    texts = read(write(tmp_path / "a.csv", "text,label", "a b c,x", "한국어 영화,y"))
    options = {"max_seq_length": 8, "labels": ("x", "y"), "run": run}
    with pytest.raises(InputError, match=r"a.csv: 40.0% of the tokens are \[UNK\].*--do_lower_case, or give"):
        examples(texts, small, tmp_path, allow_unknown=False, **options)
    assert examples(texts, small, tmp_path, allow_unknown=True, **options)


def test_the_cache_is_used_and_its_key_tells_everything(small, tmp_path, run, monkeypatch):
    cache = tmp_path / "cache"
    options = {"max_seq_length": 16, "labels": ("x", "y"), "allow_unknown": True, "run": run}

    def file(*rows):
        return read_file(write(tmp_path / "a.csv", "text,other,label", *rows), "", "text", "other", "label")

    good = ["a,b,x", "c,d,y"]
    key = examples(file(*good), small, cache, **options)
    keys = {key}
    for change in ({"max_seq_length": 15}, {"labels": ("y", "x")}, {"labels": ("x", "y", "z")}):
        keys.add(examples(file(*good), small, cache, **options | change))
    for rows in (["a,b,y", "c,d,y"], ["a,b,x", "c,e,y"], ["e,b,x", "c,d,y"], good[::-1], good[:1]):
        keys.add(examples(file(*rows), small, cache, **options))
    keys.add(examples(dataclasses.replace(file(*good), second=None), small, cache, **options))
    keys.add(examples(dataclasses.replace(file(*good), labels=None), small, cache, **options))
    keys.add(examples(file(*good), tokenizer.load(small.source, do_lower_case=False), cache, **options))
    monkeypatch.setattr(classifier_data, "EXAMPLES_VERSION", classifier_data.EXAMPLES_VERSION + 1)
    keys.add(examples(file(*good), small, cache, **options))
    monkeypatch.undo()
    assert len(keys) == 1 + 3 + 5 + 2 + 1 + 1
    assert {folder.name for folder in cache.iterdir()} == keys

    def never(*_):
        raise AssertionError("built again")

    monkeypatch.setattr(classifier_data, "_build", never)
    assert examples(file(*good), small, cache, **options) == key


def test_head(tmp_path):
    texts = read_file(
        write(tmp_path / "a.csv", "text,other,label", "a,b,x", "c,d,y"), "", "text", "other", "label"
    )
    one = texts.head(1)
    assert (one.ids, one.first, one.second, one.labels) == (["0"], ["a"], ["b"], ["x"])
    assert texts.head(None) == texts.head(5) == texts


def test_nothing_heavy_is_imported():
    program = """
import sys, tasks.classifier_data, tasks.classifier_metrics
print(sorted({"tensorflow", "keras", "mpi4py", "sklearn", "scipy", "transformers", "datasets"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
