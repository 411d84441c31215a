"""The classifier's own files: CSV, TSV, JSON lines and Parquet against the csv module and pyarrow."""

import csv
import gzip
import json

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from harness.classifier_files import labels_in, read_own
from harness.refusals import refused
from harness.texts import write_lines

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
