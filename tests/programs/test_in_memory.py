"""Jobs from data in memory: a frame, dicts or a data set is read as the file with the same rows
is."""

import hashlib
import json
import re
import textwrap
from pathlib import Path

import datasets
import numpy as np
import pandas
import pytest
from harness.classifier_files import labels_in, read_own
from harness.models import save_model
from harness.mpi import ROOT
from harness.refusals import refused
from harness.squad_files import make_entries, read_file, squad_json, write_squad
from harness.texts import make_examples, write_lines

import ringbert
from tasks.embedder import reading as embedder
from tasks.embedder.settings import PairSettings
from tasks.runs.rows.memory import described, in_words
from tasks.tagger.reading import Source, read
from tasks.tagger.settings import FileSettings

TEXTS = ["fine", 'a "quote", and\na line', "한국어 \U0001f600", "", "dull"]
CLASSES = ["bad", "good"]
LABELS = ["good", "bad", "bad", "good", "bad"]


def file_of(data, kind=ringbert.Classification, name="train_file"):
    """The file that a job reads."""
    return Path(getattr(kind(output_dir="out", **{name: data}), name))


def forms(texts, labels):
    """The same rows as data of every kind, in this order."""
    numbers = [CLASSES.index(label) for label in labels]
    classes = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=CLASSES)}
    )
    back = datasets.Dataset.from_dict({"text": texts[::-1], "label": numbers[::-1]}, classes)
    frame = pandas.DataFrame({"text": texts, "label": labels})
    shuffled = frame.sample(frac=1, random_state=1).astype({"label": "category"})
    again = back.select(range(len(texts))[::-1])
    return {
        "frame": frame,
        "a frame with another index and categories": shuffled.sort_index().set_index(
            "text", drop=False
        ),
        "dicts": frame.to_dict("records"),
        "a data set in another order, with classes": again,
        "a stream": again.to_iterable_dataset(),
    }


@pytest.mark.parametrize("kind", forms(TEXTS, LABELS))
def test_texts_in_memory_are_read_as_a_file(kind):
    path = file_of(forms(TEXTS, LABELS)[kind])
    assert read_own(path)[:3] == (TEXTS, None, LABELS)


def test_the_content_names_the_file():
    """A frame's index is none of its content."""
    frame = pandas.DataFrame({"text": TEXTS, "label": LABELS})
    path = file_of(frame)
    assert file_of(frame.set_axis(list("edcba")), name="dev_file") == path
    assert file_of(frame[1:]) != path
    job = ringbert.Classification(output_dir="out", test_file=frame)
    assert job.predict_file == str(path)
    assert f"--test_file={path}" in repr(job)


def test_what_some_rows_lack_is_missing_and_lists_are_lists():
    rows = [{"text": "a"}, {"text": "b", "label": float("nan")}, {"text": "c", "label": None}]
    assert read_own(file_of(rows, name="predict_file"), split="test").labels is None
    later = [{"text": "a"}, {"text": "b", "label": "x"}]
    assert "row 1: label" in refused(lambda: read_own(file_of(later)), "--train_file")
    several = pandas.DataFrame({"text": ["a", "b"], "label": [np.array(["x", "y"]), []]})
    assert read_own(file_of(several), multi_label=True).labels == [("x", "y"), ()]
    numbers = [{"text": "a", "label": 10}, {"text": "b", "label": 9}]
    assert labels_in(file_of(numbers)) == ("9", "10")


def test_tags_in_memory_are_read_as_a_file(tmp_path):
    tags = ["O", "B-LOC"]
    words, numbers = [["Paris", "is"], ["in", "Rome"]], [[1, 0], [0, 1]]
    named = [[tags[number] for number in row] for row in numbers]
    classes = datasets.Features(
        {
            "tokens": datasets.List(datasets.Value("string")),
            "ner_tags": datasets.List(datasets.ClassLabel(names=tags)),
        }
    )
    data = {"tokens": words, "ner_tags": named}
    file = write_lines(tmp_path / "a.conll", "Paris B-LOC", "is O", "", "in O", "Rome B-LOC")

    def pairs(path):
        found = read(Source(FileSettings(train_file=str(path)), "train"), False)
        return [(list(each.words), list(each.tags)) for each in found]

    frame = pandas.DataFrame(data)
    for each in (
        frame,
        frame.to_dict("records"),
        datasets.Dataset.from_dict({"tokens": words, "ner_tags": numbers}, classes),
    ):
        assert pairs(file_of(each, ringbert.Tagging)) == pairs(file)


def test_pairs_in_memory_are_read_as_a_file(tmp_path):
    rows = [{"anchor": text, "positive": f"{text}!", "negative": "other"} for text in "abc"]
    file = write_lines(tmp_path / "pairs.jsonl", *map(json.dumps, rows))

    def pairs(path):
        return embedder.read(embedder.Source(PairSettings(train_file=str(path)), "train"))

    for each in (rows, pandas.DataFrame(rows), datasets.Dataset.from_list(rows)):
        assert pairs(file_of(each, ringbert.Embedding)) == pairs(file)


@pytest.mark.parametrize("as_on_the_hub", [True, False])
def test_questions_in_memory_are_read_as_a_file(tmp_path, as_on_the_hub):
    """Answers are lists in a dict, as the hub has them, or dicts in a list, as SQuAD's files."""
    entries = make_entries(12, 1)
    expected = read_file(write_squad(tmp_path / "a.json", entries))
    rows = []
    for paragraph in squad_json(entries)["data"][0]["paragraphs"]:
        (question,) = paragraph["qas"]
        if as_on_the_hub:
            (answer,) = question["answers"]
            question["answers"] = {name: [value] for name, value in answer.items()}
        rows.append({"context": paragraph["context"], **question})
    for data in (rows, pandas.DataFrame(rows), datasets.Dataset.from_list(rows)):
        found = read_file(file_of(data, ringbert.Squad))
        assert (found.paragraphs, found.questions) == (expected.paragraphs, expected.questions)


def test_what_is_missing_in_a_frame_is_an_empty_cell(tmp_path):
    """pandas reads an empty cell of a CSV file as NaN."""
    file = write_lines(tmp_path / "a.csv", "text,label", "cat,good", ",bad")
    frame = pandas.read_csv(file)
    assert frame.text.isna().any()
    of_frame = file_of(frame, ringbert.Classification)
    assert Path(of_frame).name == "rows_in_memory.parquet"
    assert read_own(of_frame)[:3] == read_own(file)[:3] == (["cat", ""], None, ["good", "bad"])


def test_people_read_columns_and_digest_instead_of_the_file():
    frame = pandas.DataFrame({"text": TEXTS, "label": LABELS})
    path = file_of(frame)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    words = described({"train_file": str(path), "dev_file": "dev.csv", "seed": 1})
    expected = f"5 rows in memory (columns text, label; sha256 {digest})"
    assert words == {str(path): expected}
    assert in_words(f"Classification(train_file='{path}')", words) == (
        f"Classification(train_file='{expected}')"
    )


def test_a_cache_that_cannot_be_written_is_one_line(monkeypatch):
    monkeypatch.setenv("RINGBERT_CACHE", "/proc/nothing")
    refused(lambda: file_of(FRAME), "RINGBERT_CACHE", "/proc/nothing")


FRAME = pandas.DataFrame({"text": ["a"], "label": ["x"]})
FORMS = ("data frame", "list of dicts", "datasets.Dataset")


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (FRAME[:0], ["no rows"]),
        ([], ["no rows"]),
        (["a", "b"], ["['a', 'b']", *FORMS]),
        ({"text": ["a"]}, ["{'text': ['a']}", *FORMS]),
        (FRAME.text, FORMS),
        (datasets.DatasetDict(train=datasets.Dataset.from_list([{"text": "a"}])), FORMS),
        (
            [{"text": "a", "label": 1}, {"text": "b", "label": "c"}],
            ["'label'", "several types (int, str)", "'c'"],
        ),
        ([{"text": Ellipsis}], ["ellipsis"]),
        ([{"text": "\ud800"}], ["surrogates"]),
        ([{"text": {}}], ["text", "struct"]),
        ([{1: "a"}], ["int"]),
        (pandas.DataFrame([["a", "b"]], columns=["text", "text"]), ["same name", "text, text"]),
    ],
    ids=str,
)
def test_data_in_memory_that_are_refused(data, named):
    line = refused(lambda: file_of(data), "train_file", *named)
    assert line.startswith("train_file: ")


def test_tables_are_for_files():
    refused(lambda: ringbert.Squad(output_dir=FRAME, train_file="a"), "output_dir", "one value")
    refused(lambda: ringbert.Pretraining(output_dir="out", input_file=FRAME), "input_file")
    own = ringbert.Script(ROOT / "examples/own_task.py", output_dir="out", train_file=FRAME)
    assert own.argv[1].endswith(".parquet")


@pytest.mark.slow
def test_messages_of_ranks_do_not_name_the_file_in_the_cache(tmp_path):
    model = save_model(tmp_path, "classifier")
    rows = [{"txt": "a", "label": "x"}, {"txt": "b", "label": "y"}]
    job = ringbert.Classification(output_dir=tmp_path / "run", model=model, train_file=rows)
    line = refused(lambda: ringbert.launch(job, progress=False), "(data in memory)", "txt")
    assert ".parquet" not in line


@pytest.mark.slow
def test_the_snippet_of_the_documentation_runs(tmp_path, monkeypatch, capsys):
    """From a data frame to the mistakes; the model of its name is a tiny one here."""
    page = (ROOT / "docs/python.md").read_text()
    section = re.search(r"## From a data frame to the mistakes\n\n((?:    .*\n|\n)+)", page)
    assert section
    examples = make_examples(300, 1)
    frame = pandas.DataFrame([{"text": e.first, "label": e.kind} for e in examples])
    frame.to_csv(tmp_path / "reviews.csv", index=False)
    (tmp_path / "google-bert").mkdir()
    save_model(tmp_path / "made", "pretraining").rename(tmp_path / "google-bert/bert-base-uncased")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(textwrap.dedent(section[1]), names)  # what a reader pastes
    accuracy, *table = capsys.readouterr().out.splitlines()
    found, mistakes = names["frame"], names["mistakes"]
    assert len(found) == 60
    assert (found.truth == frame.label[found.index]).all()
    assert (found.text == frame.text[found.index]).all()
    assert 1 - len(mistakes) / 60 == pytest.approx(float(accuracy), abs=1e-4)
    assert (mistakes.label != mistakes.truth).all()
    assert mistakes.probability.is_monotonic_decreasing
    assert table[0].split() == ["truth", "label", "probability", "text"]
    assert len(table) == 1 + min(10, len(mistakes)) > 1
