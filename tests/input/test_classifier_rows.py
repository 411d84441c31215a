"""The classifier's texts as rows of tokens, against google-research/bert `run_classifier.py`."""

from functools import partial

import numpy as np
import pytest
from harness.classifier_files import open_rows, own_source, read_glue
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
