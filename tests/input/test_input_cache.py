"""The cache of prepared rows, of SQuAD and the classifier: what its key is made of."""

import dataclasses

from harness.classifier_files import own_source
from harness.refusals import refused
from harness.squad_files import GOOD, SMALL, source_of, write_squad
from harness.texts import letters_tokenizer, write_lines

from bert.text import tokenizer
from distributed.world import World
from tasks.classifier.task import LabelTask
from tasks.runs.rows.reader import Readings
from tasks.runs.rows.sets import open_set
from tasks.runs.rows.texts import Tokenization
from tasks.squad.task import SpanTask


def test_other_data_or_settings_make_other_windows_and_nothing_else_does(cache, tmp_path, run):
    letters = letters_tokenizer(tmp_path)
    cased = tokenizer.load(letters.source, do_lower_case=False)
    settings = dataclasses.replace(SMALL, version_2_with_negative=True)

    def build(
        settings=settings, entries=GOOD, words=letters, name="a.json", is_training=True, **others
    ):
        source = source_of(write_squad(tmp_path / name, entries, **others), is_training)
        tokenization = Tokenization(World(), run, words, allow_unknown=True)
        return open_set(SpanTask(settings), source, tokenization).made

    changes = [
        {"settings": dataclasses.replace(settings, doc_stride=8)},
        {"is_training": False},
        {"entries": [GOOD[0], (*GOOD[1][:2], "ran", 6)]},
        {"entries": [GOOD[0], ("a dog ran!", *GOOD[1][1:])]},
        {"entries": GOOD[::-1]},
        {"words": cased},
        {"is_impossible": True},
    ]
    assert all(build(**change).is_new for change in ({}, *changes))
    again = build(name="moved.json")  # the content counts, not the name
    assert not again.is_new
    assert [len(again.tables[name]) for name in ("windows", "paragraphs")] == [2, 2]
    damaged = next(cache.glob("*/windows.arrow"))
    damaged.write_bytes(damaged.read_bytes()[:-8])
    assert sum(build(**change).is_new for change in ({}, *changes)) == 1


def test_other_data_or_settings_make_other_rows_and_nothing_else_does(cache, tmp_path, run):
    letters, good = letters_tokenizer(tmp_path), ["a,b,x", "c,d,y"]
    cased = tokenizer.load(letters.source, do_lower_case=False)

    def build(
        rows=good, labels=("x", "y"), words=letters, length=8, name="a.csv", pair="other", **more
    ):
        path = write_lines(tmp_path / name, "text,other,label", *rows)
        source = own_source(path, pair, **more)
        task = LabelTask(length, labels)
        return open_set(task, source, Tokenization(World(), run, words)).made

    others = (["a,b,y", "c,d,y"], ["a,b,x", "c,e,y"], ["e,b,x", "c,d,y"], good[::-1])
    changes = [{"rows": rows} for rows in others]
    changes += [{"length": 15}, {"labels": ("y", "x")}, {"words": cased}, {"pair": None}]
    changes += [{"max_train_examples": 1}]
    assert all(build(**change).is_new for change in ({}, *changes))
    moved = build(name="moved.csv")
    assert not moved.is_new
    assert len(moved.tables["examples"]) == 2
    assert moved.tables["ids"].column("id").tolist() == ["0", "1"]


def test_data_that_change_while_a_program_runs_are_refused(cache, tmp_path, run):
    """Its predictions would be compared with other answers."""
    letters = letters_tokenizer(tmp_path)
    path = write_lines(tmp_path / "a.csv", "text,other,label", "a,b,x", "c,d,y")
    task = LabelTask(8, ("x", "y"))
    source = own_source(path, "other")
    tokenization = Tokenization(World(), run, letters)
    known, forgotten = Readings(), Readings()
    first = open_set(task, source, tokenization, known)
    second = open_set(task, source, tokenization, forgotten)
    write_lines(tmp_path / "a.csv", "text,other,label", "a,b,y", "c,d,x")
    assert first.examples().labels == ["x", "y"]
    forgotten.forget(source)  # as on a rank that has not made the rows
    refused(second.examples, "a.csv", "changed")
