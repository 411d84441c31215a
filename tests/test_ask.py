"""bert-ask: the answers of `QuestionAnswering`, printed; its errors are one line."""

import io
import json
import sys
from pathlib import Path

import pytest
from program_runs import error_of
from texts import write_model

import ringbert
from tasks import ask

CONTEXT = "the cat sat near a\nred fox and the dog"
SETTINGS = ("--max_seq_length=40", "--max_query_length=16", "--doc_stride=12")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    from bert import configuration, weights
    from bert.model import Bert
    from bert.text import tokenizer

    folder = tmp_path_factory.mktemp("model")
    write_model(folder, num_layers=1)
    bert = Bert(configuration.config_from_file(folder / "bert_config.json"), "span", seed=3)
    weights.save(bert, folder / "model", tokenizer.load(str(folder / "vocab.txt")))
    return folder / "model"


def test_lines_and_json_from_a_file_and_from_standard_input(model, tmp_path, capsys, monkeypatch):
    file = tmp_path / "context.txt"
    file.write_text(CONTEXT, encoding="utf-8")
    answers = ringbert.QuestionAnswering(model, max_seq_length=40, max_query_length=16, doc_stride=12)
    expected = answers("the animal", CONTEXT, top_k=3)
    assert any("\n" in answer.text for answer in expected)  # which must not begin a line of the output
    ask.main([str(model), "the animal", str(file), *SETTINGS, "--top_k=3"])
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert lines == [[f"{a.probability:.4f}", a.text.replace("\n", " ")] for a in expected]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CONTEXT.encode())))
    ask.main(["--json", *SETTINGS, str(model), "the animal", "-"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["question"] == "the animal"
    (answer,) = printed["answers"]
    assert ringbert.Answer(**answer) == expected[0]
    assert CONTEXT[answer["start"] : answer["end"]] == answer["text"]
    unanswered = ("--version_2_with_negative", "--null_score_diff_threshold=-99")
    ask.main([str(model), "the animal", str(file), *SETTINGS, *unanswered])
    assert capsys.readouterr().out.endswith("\t(no answer)\n")
    ask.main([str(model), "모르는", str(file), *SETTINGS])
    assert capsys.readouterr().err == ""  # one unknown word among many known ones


@pytest.mark.parametrize(
    ("words", "content", "message"),
    [
        (["FOLDER", "who?", "nothing.txt"], None, "CONTEXT nothing.txt: no such file"),
        (["FOLDER", "who?", "-"], b"caf\xe9", "CONTEXT -, standard input: line 1 is not UTF-8"),
        (["FOLDER", "who?", "-"], b" ", "context is empty"),
        (["FOLDER", " ", "-"], b"text", "question is empty"),
        (["FOLDER", "who?", "-", "--max_seq_length=999"], b"text", "max_seq_length must be at most the"),
        (["./nowhere", "who?", "-"], b"text", "./nowhere: no such folder or checkpoint"),
    ],
)  # fmt: skip
def test_what_is_refused(model, words, content, message, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content or b"")))
    folder = str(model) if words[0] == "FOLDER" else words[0]
    with pytest.raises(SystemExit) as stop:
        ask.main([folder, *words[1:]])
    assert stop.value.code == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in error_of(printed.err, "bert-ask")


def test_one_process_of_an_mpi_job_answers(model, capsys, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    ask.main([str(model), "who?", "nothing.txt"])
    assert capsys.readouterr() == ("", "")
