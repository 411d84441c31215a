"""The classifier's own files: CSV, TSV, JSON lines and Parquet against the csv module and pyarrow; their rows."""

import csv
import gzip
import json
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from harness.classifier_files import labels_in, open_rows, own_source, read_glue, read_own
from harness.google_data import google_s_example
from harness.real_data import real
from harness.real_tokenizers import uncased
from harness.refusals import refused
from harness.texts import letters_tokenizer, write_lines

from distributed.world import World
from tasks.classifier.named_tasks import find_task
from tasks.classifier.reading import read
from tasks.classifier.rows import open_set
from tasks.classifier.settings import ExampleSettings

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
        assert read_own(path) == (TEXTS, None, LABELS, [str(number) for number in range(11)], 0), path


def test_quotes_in_tsv_are_text_and_an_empty_line_of_one_column_is_a_row(tmp_path):
    path = write_lines(tmp_path / "a.TSV", "label\ttext\tother", '1\t"a\t"', '0\tb ""\t', "0\t\tc", "", "")
    assert read_own(path, pair="other")[:3] == (['"a', 'b ""', ""], ['"', "", "c"], ["1", "0", "0"])
    only = read_own(write_lines(tmp_path / "b.txt", "text", "a", "", "b"), split="test")
    assert (only.first, only.labels) == (["a", "", "b"], None)


def test_labels_are_sorted_as_numbers_where_all_are_numbers(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", '{"text": "a", "label": 10}', "", '{"text": "b", "label": 2}')
    assert labels_in(path) == ("2", "10")
    assert read_own(path, regression=True).labels == [10.0, 2.0]
    for score in ("three", "nan", "inf", ""):
        scored = write_lines(tmp_path / "b.csv", "text,label", "a,1.5", f"b,{score}")
        refused(lambda scored=scored: read_own(scored, regression=True), scored, "line 3", repr(score))
    assert labels_in(write_lines(tmp_path / "b.csv", "text,label", "a,10", "b,x", "c,2")) == ("10", "2", "x")


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
    ("a.csv", ["txt,label", "a,1"], ["text", "txt, label"]),
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


# -- rows of tokens, against google-research/bert `run_classifier.py` ---------------------------------------------


def compare(texts, labels, words, run, max_seq_length):
    """Every row against Google's; the column of labels."""
    rows = open_rows(texts, labels, words, run, max_seq_length)
    first, second = (texts_ and [words.pieces(ids) for ids in words.encode_ids(texts_)] for texts_ in texts[:2])
    for row, a, b in zip(rows.table.to_pylist(), first, second or [None] * len(first), strict=True):
        tokens, types = google_s_example(a, b, max_seq_length)
        assert words.pieces(row["input_ids"]) == tokens
        assert row["sentence_a_tokens"] == types.count(0)
    return rows.column("label").tolist()


@pytest.mark.parametrize("max_seq_length", [4, 5, 8, 9])
def test_rows_of_all_small_lengths_are_google_s(tmp_path, run, max_seq_length):
    lines = ["a " * first + "," + "b " * second for first in range(11) for second in range(11)]
    path = write_lines(tmp_path / "a.csv", "text,other", *lines)
    for pair in ("other", None):
        texts = read(own_source(path, pair, "test"))
        assert np.isnan(compare(texts, None, letters_tokenizer(tmp_path), run, max_seq_length)).all()


@pytest.mark.parametrize(("name", "max_seq_length"), [("MRPC", 40), ("CoLA", 12), ("STS-B", 25)])
def test_rows_of_real_sets_are_google_s(name, max_seq_length, run):
    task, texts = find_task(name), read_glue(name, real("glue_data"), "dev")
    label = compare(texts, task.labels, uncased(), run, max_seq_length)
    assert label == [np.float32(text) if task.labels is None else int(text) for text in texts.labels]


def test_labels_are_numbered_in_the_order_given_and_unknown_words_are_refused(tmp_path, run, monkeypatch):
    monkeypatch.setenv("RINGBERT_CACHE", str(tmp_path / "cache"))
    source = own_source(write_lines(tmp_path / "a.csv", "text,label", "a b c,x", "한국어 영화,y", "c,x"))
    opened = partial(open_set, source, tokenizer=letters_tokenizer(tmp_path), world=World(), run=run)
    allowed = ExampleSettings(max_seq_length=8, allow_unknown=True)
    for labels, numbers in ((("x", "y"), [0, 1, 0]), (("y", "z", "x"), [2, 0, 2])):
        assert opened(labels, allowed).tables["examples"].column("label").tolist() == numbers
    refused(lambda: opened(("x", "z"), allowed), "--train_file", "a.csv: line 3", "'y'", "x, z")
    refused(lambda: opened(("x", "y"), ExampleSettings(max_seq_length=8)), "a.csv", "33.3%", "--do_lower_case")
