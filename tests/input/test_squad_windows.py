"""SQuAD's windows against google-research/bert `run_squad.py`."""

import dataclasses

import numpy as np
import pytest
from harness.real_data import real
from harness.real_tokenizers import uncased
from harness.squad_files import compare_windows, open_windows, read_file, write_squad
from harness.texts import letters_tokenizer

from tasks.squad.settings import WindowSettings


@pytest.mark.parametrize(
    "settings", [WindowSettings(), WindowSettings(max_seq_length=128, doc_stride=50, max_query_length=12)]
)
def test_windows_are_google_s(run, settings):
    """Of 200 real questions, and of 60 whose answers begin inside a word, which the rules are about."""
    examples = read_file(real("squad/dev-v1.1.json"))
    questions, contexts = examples.questions, examples.paragraphs
    starts = [contexts[question.paragraph][: question.answers[0][1]] for question in questions]
    odd = [question for question, start in zip(questions, starts, strict=True) if not start[-1:].isspace()]
    some = dataclasses.replace(examples, questions=[*questions[:: len(questions) // 200], *odd[:60]])
    assert compare_windows(settings, some, uncased(), run) > len(some.questions) > 250


ODD_CONTEXTS = [
    # (context, question, answer text, answer_start): what the search for the answer's tokens is about
    ("the year is (1895-1943).", "when?", "1895", 13),
    ("abab ab ab", "what?", "ab", 2),
    ("abab ab ab", "what?", "ab", 5),
    ("one  two\u202fthree\tfour", "which?", "two\u202fthree", 5),
    ("one two\u202fthree", "which?", "wo", 5),
    ("one two  three", "which?", "two ", 4),
    ("one two, three", "which?", "two, ", 4),
    ("one (two) three", "which?", " (two", 3),
    ("a\x07b c", "which?", "a\x07b", 0),
    ("x\u00a0y z", "which?", "y", 2),
    ("caf\u00e9s are caf\u00e9s", "what?", "caf\u00e9", 0),
    ("x1943 bb", "when?", "1943 ", 1),
    ("bb  x1943", "when?", " x194", 3),
    ("bb  x\u20acy", "which?", " x", 3),
    ("only", "what?", "only", 0),
]


@pytest.mark.parametrize(("max_seq_length", "doc_stride"), [(64, 3), (11, 3), (11, 50)])
def test_windows_are_google_s_in_odd_places(tmp_path, run, max_seq_length, doc_stride):
    examples = read_file(write_squad(tmp_path / "odd.json", ODD_CONTEXTS))
    assert not examples.misplaced
    settings = {"max_seq_length": max_seq_length, "doc_stride": doc_stride, "max_query_length": 5}
    compare_windows(WindowSettings(**settings, allow_unknown=True), examples, letters_tokenizer(tmp_path), run)


def test_the_dev_windows_are_as_many_as_google_makes(run):
    rows, _ = open_windows(WindowSettings(), read_file(real("squad/dev-v1.1.json")), uncased(), run)
    assert len(rows) == 10_833
    assert int(np.diff(rows.column("input_ids")[1]).max()) == 384
    assert len(np.unique(rows.column("question"))) == 10_570
