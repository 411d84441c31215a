"""bert-ask: the answers of `QuestionAnswering`, printed; its errors are one line."""

import io
import json
import sys

import pytest
from harness.models import save_model
from harness.program_runs import refusal

import ringbert
from tasks import ask

CONTEXT = "the cat sat near a\nred fox and the dog"
SETTINGS = ("--max_seq_length=40", "--max_query_length=16", "--doc_stride=12")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(save_model(tmp_path_factory.mktemp("model"), "span"))


def test_lines_and_json_from_a_file_and_from_standard_input(model, tmp_path, capsys, monkeypatch):
    file = tmp_path / "context.txt"
    file.write_text(CONTEXT, encoding="utf-8")
    answers = ringbert.QuestionAnswering(model, max_seq_length=40, max_query_length=16, doc_stride=12)
    expected = answers("the animal", CONTEXT, top_k=3)
    assert any("\n" in answer.text for answer in expected)  # which must not begin a line of the output
    ask.main([model, "the animal", str(file), *SETTINGS, "--top_k=3"])
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert lines == [[f"{a.probability:.4f}", a.text.replace("\n", " ")] for a in expected]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CONTEXT.encode())))
    ask.main(["--json", *SETTINGS, model, "the animal", "-"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["question"] == "the animal"
    assert [ringbert.Answer(**answer) for answer in printed["answers"]] == expected[:1]
    ask.main([model, "who?", str(file), *SETTINGS, "--version_2_with_negative", "--null_score_diff_threshold=-99"])
    assert capsys.readouterr().out.endswith("\t(no answer)\n")


@pytest.mark.parametrize(
    ("words", "status", "named"),
    [
        (["{model}", "who?", "nothing.txt"], 1, ["nothing.txt"]),
        (["{model}", "who?", "-"], 1, ["standard input", "line 1", "UTF-8"]),
        (["{model}", "who?", __file__, "--max_seq_length=999"], 1, ["max_seq_length", "128"]),
        (["{model}", "who?", __file__, "--n_best_size=-5"], 2, ["--n_best_size", "1", "-5"]),
    ],
)
def test_bad_input_is_one_line(model, words, status, named, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9")))
    argv = [word.format(model=model) for word in words]
    refusal(capsys, "bert-ask", lambda: ask.main(argv), *named, status=status)
