"""The classifier's own files: CSV, TSV, JSON lines and Parquet against the csv module and pyarrow."""

import csv
import gzip
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from texts import write_lines

from ringbert.errors import InputError
from tasks.classifier.tasks import Columns
from tasks.classifier.texts import check_labels, labels_of, read_file

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


def read(path, pair=None, **options):
    return read_file(str(path), "--train_file", Columns("text", pair, "label", id=""), **options)


def test_csv_and_json_lines_and_parquet_hold_the_same(tmp_path):
    table = pa.table({"number": list(range(8)), "label": LABELS, "text": TEXTS})
    pyarrow.csv.write_csv(table, tmp_path / "a.csv")  # quoted by another writer
    with (tmp_path / "b.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([["text", "label"], *zip(TEXTS, LABELS, strict=True)])
    write_lines(tmp_path / "c.jsonl", *(json.dumps(row) for row in table.to_pylist()))
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
    path = write_lines(tmp_path / "a.TSV", "label\ttext\tother", '1\t"a\t"', '0\tb ""\t', "0\t\tc", "", "")
    texts = read(path, pair="other")
    assert (texts.first, texts.second, texts.labels) == (['"a', 'b ""', ""], ['"', "", "c"], ["1", "0", "0"])
    only = write_lines(tmp_path / "b.txt", "text", "a", "", "b")
    assert read(only).first == ["a", "", "b"]  # the empty text between two others is one
    assert read(only).labels is None


def test_labels_in_other_types(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", '{"text": "a", "label": 10}', "", '{"text": "b", "label": 2}')
    assert read(path).labels == ["10", "2"]
    assert labels_of(read(path)) == ["2", "10"]
    assert read(path, numeric_labels=True).labels == [10.0, 2.0]
    assert labels_of(read(write_lines(tmp_path / "b.csv", "text,label", "a,10", "b,x", "c,2"))) == ["10", "2", "x"]
    pyarrow.parquet.write_table(pa.table({"text": ["a", "b"], "label": [0.5, None]}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match=r"c.parquet: row 2: label must be a label, got None"):
        read(tmp_path / "c.parquet")


def refused(path, message, **options):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        read(path, **options)
    assert "\n" not in str(caught.value)
    assert "--train_file" in str(caught.value)


def test_bad_files(tmp_path):
    refused(tmp_path / "no.csv", "no.csv: no such file")
    refused(tmp_path / "no.parquet", "no.parquet: no such file")
    refused(
        write_lines(tmp_path / "a.xlsx", "a"), "the extension must be .csv, .tsv, .txt, .jsonl, .json, .parquet"
    )
    refused(write_lines(tmp_path / "a.parquet.gz", "a"), "the extension must be")
    refused(write_lines(tmp_path / "empty.csv"), "empty.csv: the file is empty")
    refused(write_lines(tmp_path / "header.csv", "text,label"), "no row after its header")
    refused(write_lines(tmp_path / "header.tsv", "text\tlabel"), "no row after its header")
    refused(
        write_lines(tmp_path / "r.tsv", "text\tlabel", "a\t1", "b\tc\t0"),
        "r.tsv: line 3 has 3 columns, but the header has 2",
    )
    refused(
        write_lines(tmp_path / "s.tsv", "text\tlabel", "a\t1", "", "c\t0"),
        "s.tsv: line 3 has 1 columns, but the header has 2",
    )
    refused(
        write_lines(tmp_path / "r.csv", "text,label", '"a\nb",1', "c"),
        "r.csv: line 4 has 1 columns, but the header has 2",
    )
    refused(write_lines(tmp_path / "q.csv", "text,label", "a,1", '"b" c,0'), "q.csv: line 3: broken quotes")
    refused(
        write_lines(tmp_path / "t.csv", "text,label", "a,1", '"b,0'),
        "t.csv: line 3: broken quotes (unexpected end",
    )
    refused(write_lines(tmp_path / "m.csv", "txt,label", "a,1"), "m.csv: no column 'text', only txt, label")
    refused(
        write_lines(tmp_path / "l.csv", "text,y", "a,1"),
        "l.csv: no column 'label', only text, y",
        needs_labels=True,
    )
    refused(write_lines(tmp_path / "2.csv", "text,text,label", "a,b,1"), "column text occurs twice")
    refused(
        write_lines(tmp_path / "e.csv", "text,label", "a,1", "b,"), "e.csv: line 3: label must be a label, got ''"
    )
    for score in ("three", "nan", "inf", ""):
        path = write_lines(tmp_path / "n.csv", "text,label", "a,1.5", f"b,{score}")
        refused(
            path,
            f"n.csv: line 3: label must be a finite number for regression, got '{score}'",
            numeric_labels=True,
        )
    latin = Path(write_lines(tmp_path / "latin.tsv", "text\tlabel", "a\t1"))
    latin.write_bytes(latin.read_bytes() + "é\t1\n".encode("latin-1"))
    refused(latin, "latin.tsv: line 3 is not UTF-8 (invalid continuation byte at byte 15)")


def test_bad_json_lines_and_parquet(tmp_path):
    good = '{"text": "a", "label": "x"}'
    refused(write_lines(tmp_path / "a.jsonl", good, good[:-3]), "a.jsonl: line 2: not valid JSON")
    refused(write_lines(tmp_path / "b.json", "[", good, "]"), "b.json: line 1: not valid JSON")
    refused(
        write_lines(tmp_path / "c.json", f"[{good}]"), "c.json: line 1 is a list: each line must be a JSON object"
    )
    refused(
        write_lines(tmp_path / "d.jsonl", good, '{"text": "b"}'),
        "d.jsonl: line 2 has no 'label', although other lines have one",
    )
    refused(
        write_lines(tmp_path / "e.jsonl", good, '{"text": 3, "label": "x"}'),
        "e.jsonl: line 2: text must be a string, got 3",
    )
    refused(
        write_lines(tmp_path / "f.jsonl", '{"text": "\\ud800", "label": "x"}'),
        "line 1: text holds half a surrogate pair",
    )
    refused(
        write_lines(tmp_path / "g.jsonl", '{"text": "b", "label": ["x"]}'),
        "line 1: label must be a label, got ['x']",
    )
    pyarrow.parquet.write_table(pa.table({"text": ["a", None], "label": ["x", "y"]}), tmp_path / "a.parquet")
    refused(tmp_path / "a.parquet", "a.parquet: row 2: text must be a string, got None")
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "b.parquet").write_bytes(whole[:-20])
    refused(tmp_path / "b.parquet", "b.parquet: not a Parquet file, or damaged")
    packed = gzip.compress((good + "\n").encode() * 50)
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    refused(tmp_path / "cut.jsonl.gz", "truncated or damaged gzip file")
    (tmp_path / "flipped.jsonl.gz").write_bytes(packed[:-6] + bytes([packed[-6] ^ 255]) + packed[-5:])
    refused(tmp_path / "flipped.jsonl.gz", "truncated or damaged gzip file")


def test_unseen_labels(tmp_path):
    train = read(write_lines(tmp_path / "train.csv", "text,label", "a,no", "b,yes"))
    dev = read(write_lines(tmp_path / "dev.csv", "text,label", '"a\nb",no', "c,maybe"))
    assert labels_of(train) == ["no", "yes"]
    check_labels(train, labels_of(train), "--train_file")
    with pytest.raises(InputError, match=r"^--dev_file \S+dev.csv: line 4: label 'maybe' is not one of no, yes$"):
        check_labels(dev, labels_of(train), "--dev_file")


def test_head(tmp_path):
    texts = read(write_lines(tmp_path / "a.csv", "text,other,label", "a,b,x", "c,d,y"), pair="other")
    one = texts.head(1)
    assert (one.ids, one.first, one.second, one.labels) == (["0"], ["a"], ["b"], ["x"])
    assert texts.head(None) == texts.head(5) == texts
