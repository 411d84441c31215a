"""The classifier's texts as rows of tokens, against google-research/bert `run_classifier.py`."""

import dataclasses
from functools import partial

import numpy as np
import pytest
from harness.classifier_files import open_rows, own_source, read_glue, read_own
from harness.google_data import google_s_example
from harness.real_data import real
from harness.real_tokenizers import uncased
from harness.refusals import refused
from harness.texts import letters_tokenizer, write_lines

from distributed.world import World
from tasks.classifier.named_tasks import find_task
from tasks.classifier.rows import open_set
from tasks.classifier.settings import ExampleSettings


@pytest.fixture
def letters(tmp_path):
    return letters_tokenizer(tmp_path)


def compare(texts, labels, words, run, max_seq_length):
    """Every row against Google's; the column of labels."""
    rows = open_rows(texts, labels, words, run, max_seq_length)
    first, second = (texts_ and [words.pieces(ids) for ids in words.encode_ids(texts_)] for texts_ in
                     (texts.first, texts.second))  # fmt: skip
    for row, a, b in zip(rows.table.to_pylist(), first, second or [None] * len(texts), strict=True):
        tokens, types = google_s_example(a, b, max_seq_length)
        assert words.pieces(row["input_ids"]) == tokens
        assert row["sentence_a_tokens"] == types.count(0)
    return rows.column("label").tolist()


@pytest.mark.parametrize("max_seq_length", [4, 5, 8, 9])
def test_rows_of_all_small_lengths_are_google_s(letters, tmp_path, run, max_seq_length):
    lines = ["a " * first + "," + "b " * second for first in range(11) for second in range(11)]
    path = write_lines(tmp_path / "a.csv", "text,other", *lines)
    for pair in ("other", None):
        label = compare(read_own(path, pair, "test"), None, letters, run, max_seq_length)
        assert np.isnan(label).all()


@pytest.mark.parametrize(("name", "max_seq_length"), [("MRPC", 40), ("CoLA", 12), ("STS-B", 25)])
def test_rows_of_real_sets_are_google_s(name, max_seq_length, run):
    task, texts = find_task(name), read_glue(name, real("glue_data"), "dev")
    label = compare(texts, task.labels, uncased(), run, max_seq_length)
    assert label == [np.float32(text) if task.is_regression else int(text) for text in texts.labels]


def test_labels_are_numbered_in_the_order_given(letters, tmp_path, run):
    texts = read_own(write_lines(tmp_path / "a.csv", "text,label", "a,x", "b,y", "c,x"))
    for labels, numbers in ((("x", "y"), [0, 1, 0]), (("y", "z", "x"), [2, 0, 2])):
        assert open_rows(texts, labels, letters, run).column("label").tolist() == numbers
    unlabelled = dataclasses.replace(texts, labels=None)
    assert open_rows(unlabelled, ("x", "y"), letters, run).column("label").tolist() == [-1] * 3
    refused(lambda: open_rows(texts, ("x", "z"), letters, run), "--train_file", "a.csv: line 3", "'y'", "x, z")


def test_texts_of_unknown_words_are_refused_unless_allowed(letters, tmp_path, run, monkeypatch):
    monkeypatch.setenv("RINGBERT_CACHE", str(tmp_path / "cache"))
    source = own_source(write_lines(tmp_path / "a.csv", "text,label", "a b c,x", "한국어 영화,y"))
    opened = partial(open_set, source, ("x", "y"), tokenizer=letters, world=World(), run=run)
    refused(lambda: opened(ExampleSettings(max_seq_length=8)), "a.csv", "40.0%", "--do_lower_case")
    assert len(opened(ExampleSettings(max_seq_length=8, allow_unknown=True)).rows) == 2
