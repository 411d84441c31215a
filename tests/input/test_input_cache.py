"""The cache of tokenized rows, of SQuAD and the classifier: what its key is made of."""

import dataclasses

from harness.classifier_files import open_rows, read_own
from harness.squad_files import GOOD, SMALL, open_windows, read_file, write_squad
from harness.texts import letters_tokenizer, write_lines

from bert.text import tokenizer


def folders(cache):
    """Name -> inode and time: a folder that is built again is another one."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in cache.iterdir() if path.is_dir()}


def test_other_data_or_settings_make_other_windows_and_nothing_else_does(tmp_path, run):
    cache, letters = tmp_path / "cache", letters_tokenizer(tmp_path)
    cased = tokenizer.load(letters.source, do_lower_case=False)

    def build(settings=SMALL, entries=GOOD, words=letters, name="a.json", **others):
        path = write_squad(tmp_path / name, entries, **others)
        return open_windows(settings, read_file(path, allow_impossible=True), words, cache, run)

    changes = [{"settings": dataclasses.replace(SMALL, doc_stride=8)}]
    others = ([GOOD[0], (*GOOD[1][:2], "ran", 6)], [GOOD[0], ("a dog ran!", *GOOD[1][1:])], GOOD[::-1])
    changes += [{"entries": entries} for entries in others] + [{"words": cased}, {"is_impossible": True}]
    for change in ({}, *changes):
        build(**change)
    before = folders(cache)
    assert len(before) == 1 + len(changes)
    rows, paragraphs = build(name="moved.json")  # the content counts, not the name
    assert (len(rows), len(paragraphs)) == (2, 2)
    assert folders(cache) == before


def test_other_data_or_settings_make_other_rows_and_nothing_else_does(tmp_path, run):
    cache, letters, good = tmp_path / "cache", letters_tokenizer(tmp_path), ["a,b,x", "c,d,y"]
    cased = tokenizer.load(letters.source, do_lower_case=False)

    def build(rows=good, labels=("x", "y"), words=letters, length=8, name="a.csv"):
        texts = read_own(write_lines(tmp_path / name, "text,other,label", *rows), pair="other")
        return open_rows(texts, labels, words, cache, run, length)

    others = (["a,b,y", "c,d,y"], ["a,b,x", "c,e,y"], ["e,b,x", "c,d,y"], good[::-1], good[:1])
    changes = [{"rows": rows} for rows in others] + [{"length": 15}, {"labels": ("y", "x")}, {"words": cased}]
    for change in ({}, *changes):
        build(**change)
    before = folders(cache)
    assert len(before) == 1 + len(changes)
    assert len(build(name="moved.csv")) == 2
    assert folders(cache) == before
