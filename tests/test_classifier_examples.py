"""The classifier's texts as rows of tokens, against transformers and google-research/bert `run_classifier.py`."""

import dataclasses
import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from real_data import real
from texts import letters_tokenizer, write_lines

import tasks.texts
from bert.text import tokenizer
from distributed.rows import Rows, metadata_of
from ringbert.errors import InputError
from ringbert.ragged import joined
from tasks.classifier import examples as classifier_examples
from tasks.classifier.examples import examples
from tasks.classifier.settings import ExampleSettings
from tasks.classifier.tasks import TASKS, Columns, find_task
from tasks.classifier.texts import read_file, read_task
from tasks.texts import joined_pairs, truncated

ROOT = Path(__file__).resolve().parents[1]
SHORT = ExampleSettings(max_seq_length=8)


@pytest.fixture
def letters(tmp_path):
    return letters_tokenizer(tmp_path)


def read(path, pair=None):
    return read_file(str(path), "--train_file", Columns("text", pair, "label", id=""))


def open_examples(settings, texts, labels, words, cache, run) -> Rows:
    return Rows.open(cache / examples(settings, texts, labels, words, cache, run) / "examples.arrow")


# -- google-research/bert run_classifier.py -----------------------------------------------------------------------


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
        kept = truncated(first, second, room)
        for a, b, kept_a, kept_b in zip(first, second, *kept, strict=True):
            tokens_a, tokens_b = ["x"] * a, ["x"] * b
            truncate_seq_pair(tokens_a, tokens_b, room)
            assert (kept_a, kept_b) == (len(tokens_a), len(tokens_b)), (a, b, room)


def test_single_texts_and_pairs_in_one_batch(letters):
    """Rows are those of texts and pairs apart: an empty second text of a pair still has its [SEP]."""
    texts = [("ab", None), ("", None), ("abc", "de"), ("a", ""), ("abcdefgh", None), ("abcde", "fghij")]
    first, second = (
        joined([np.arange(len(text or ""), dtype=np.int32) + start for text in column])
        for start, column in ((100, [a for a, _ in texts]), (200, [b for _, b in texts]))
    )
    is_pair = np.array([b is not None for _, b in texts])
    (ids, offsets), first_tokens = joined_pairs(first, second, is_pair, 8, letters)
    cls, sep = letters.cls_id, letters.sep_id
    expected = [
        [cls, 100, 101, sep],
        [cls, sep],
        [cls, 100, 101, 102, sep, 200, 201, sep],
        [cls, 100, sep, sep],
        [cls, 100, 101, 102, 103, 104, 105, sep],
        [cls, 100, 101, 102, sep, 200, 201, sep],
    ]
    assert [ids[start:stop].tolist() for start, stop in itertools.pairwise(offsets)] == expected
    assert first_tokens.tolist() == [4, 2, 5, 3, 8, 5]


@pytest.mark.parametrize(("name", "max_seq_length"), [("MRPC", 128), ("MRPC", 40), ("CoLA", 12), ("STS-B", 25)])
def test_examples_are_google_s(name, max_seq_length, tmp_path, run, monkeypatch):
    monkeypatch.setattr(tasks.texts, "TEXTS_AT_ONCE", 100)  # several chunks, the last one smaller
    ours = tokenizer.load(str(real("vocab/bert-base-uncased.txt")))
    task = find_task(name)
    texts = read_task(task, str(real("glue_data")), "dev")
    rows = open_examples(ExampleSettings(max_seq_length=max_seq_length), texts, task.labels, ours, tmp_path, run)
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
        settings = ExampleSettings(max_seq_length=length)
        rows = open_examples(settings, texts, ("0", "1"), tokenizer.load(str(vocab)), tmp_path, run)
        values, offsets = rows.column("input_ids")
        first = rows.column("sentence_a_tokens")
        expected = theirs(texts.first, texts.second, truncation="longest_first", max_length=length)
        same = 0
        for number, (ids, types) in enumerate(zip(expected["input_ids"], expected["token_type_ids"], strict=True)):
            assert first[number] - types.count(0) in ((0,) if length == 128 else (0, 1))
            if types.count(0) == first[number]:
                same += 1
                assert values[offsets[number] : offsets[number + 1]].tolist() == ids
        assert same == len(texts) if length == 128 else same > 0.4 * len(texts)


def test_unlabelled_and_empty_texts(letters, tmp_path, run, capsys):
    texts = read(write_lines(tmp_path / "a.csv", "text,other", "a b,c", ",d", "e,", "a b c d,e"), pair="other")
    for labels in (("0", "1"), None):
        rows = open_examples(SHORT, texts, labels, letters, tmp_path, run)
        assert rows.table.column("input_ids").to_pylist()[1:3] == [
            [letters.cls_id, letters.sep_id, 8, letters.sep_id],
            [letters.cls_id, 9, letters.sep_id, letters.sep_id],
        ]
        assert rows.table.column("sentence_a_tokens").to_pylist() == [4, 2, 3, 6]
        column = rows.column("label")
        assert column.tolist() == [-1] * 4 if labels else np.isnan(column).all()
    assert "4 examples, 0.00% [UNK], 2 with an empty text" in capsys.readouterr().err


def test_labels_are_numbered_in_the_order_given(letters, tmp_path, run):
    texts = read(write_lines(tmp_path / "a.csv", "text,label", "a,x", "b,y", "c,x"))
    for labels, numbers in ((("x", "y"), [0, 1, 0]), (("y", "z", "x"), [2, 0, 2])):
        rows = open_examples(SHORT, texts, labels, letters, tmp_path, run)
        assert rows.column("label").tolist() == numbers
    with pytest.raises(InputError, match=r"a.csv: line 3: label 'y' is not one of x, z"):
        examples(SHORT, texts, ("x", "z"), letters, tmp_path, run)
    with pytest.raises(ValueError, match=r"--max_seq_length must be at least 4, got 3"):
        ExampleSettings(max_seq_length=3)


def test_rows_that_were_left_out_are_counted(letters, tmp_path, run, capsys):
    texts = dataclasses.replace(read(write_lines(tmp_path / "a.csv", "text", "a")), num_short_rows=2)
    examples(SHORT, texts, None, letters, tmp_path, run)
    assert "1 examples, 0.00% [UNK], 2 rows with too few columns left out" in capsys.readouterr().err


def test_unknown_words(letters, tmp_path, run):
    texts = read(write_lines(tmp_path / "a.csv", "text,label", "a b c,x", "한국어 영화,y"))
    with pytest.raises(InputError, match=r"a.csv: 40.0% of the tokens are \[UNK\].*--do_lower_case, or give"):
        examples(SHORT, texts, ("x", "y"), letters, tmp_path, run)
    settings = dataclasses.replace(SHORT, allow_unknown=True)
    assert examples(settings, texts, ("x", "y"), letters, tmp_path, run)


def test_the_cache_is_used_and_its_key_tells_everything(letters, tmp_path, run, monkeypatch):
    def file(*rows):
        return read(write_lines(tmp_path / "a.csv", "text,other,label", *rows), pair="other")

    def key_of(texts, settings=SHORT, labels=("x", "y"), words=letters):
        return examples(settings, texts, labels, words, tmp_path / "cache", run)

    good = ["a,b,x", "c,d,y"]
    key = key_of(file(*good))
    keys = {key, key_of(file(*good), settings=ExampleSettings(max_seq_length=15))}
    for labels in (("y", "x"), ("x", "y", "z")):
        keys.add(key_of(file(*good), labels=labels))
    for rows in (["a,b,y", "c,d,y"], ["a,b,x", "c,e,y"], ["e,b,x", "c,d,y"], good[::-1], good[:1]):
        keys.add(key_of(file(*rows)))
    keys.add(key_of(dataclasses.replace(file(*good), second=None)))
    keys.add(key_of(dataclasses.replace(file(*good), labels=None)))
    keys.add(key_of(file(*good), words=tokenizer.load(letters.source, do_lower_case=False)))
    monkeypatch.setattr(classifier_examples, "EXAMPLES_VERSION", classifier_examples.EXAMPLES_VERSION + 1)
    keys.add(key_of(file(*good)))
    monkeypatch.undo()
    assert len(keys) == 1 + 3 + 5 + 2 + 1 + 1
    assert {folder.name for folder in (tmp_path / "cache").iterdir()} == keys

    def never(*_):
        raise AssertionError("built again")

    monkeypatch.setattr(classifier_examples, "_build", never)
    assert key_of(file(*good)) == key


def test_data_code_imports_nothing_heavy():
    program = """
import sys
from tasks.classifier import evaluation, examples, labels, loss, metrics, sets
from tasks.squad import answers, metrics, windows
print(sorted({"tensorflow", "keras", "mpi4py", "sklearn", "scipy", "transformers", "datasets"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_keys_are_those_of_earlier_versions(letters, tmp_path, run):
    """Caches stay useful; a key that must change takes a new EXAMPLES_VERSION."""
    letters.digest = "d"  # the real one depends on the version of the library
    texts = read(write_lines(tmp_path / "a.csv", "text,other,label", "a,b,x", "c,d,y"), pair="other")
    assert classifier_examples.EXAMPLES_VERSION == 1
    assert examples(SHORT, texts, ("x", "y"), letters, tmp_path / "cache", run) == "7ce33d4464cdb518a9d3295c"
