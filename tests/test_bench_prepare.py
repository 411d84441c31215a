"""bert-bench prepare: preparing a SQuAD file beside transformers' tokenizer."""

import json
import string
from pathlib import Path

import pytest

from tasks.bench import program as bench


@pytest.fixture
def squad(tmp_path) -> Path:
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", *string.punctuation])
    )
    context = " ".join("abcdefgh"[number % 8] for number in range(100))
    questions = [
        {"id": str(number), "question": " a b?", "answers": [{"text": "c", "answer_start": 4}]}
        for number in range(5)
    ]
    data = [{"title": "t", "paragraphs": [{"context": context, "qas": questions}]}]
    (tmp_path / "train.json").write_text(json.dumps({"version": "1.1", "data": data}))
    return tmp_path


def test_preparing_is_measured_beside_transformers(squad, capsys):
    bench.main(
        [
            "prepare", f"--train_file={squad}/train.json", f"--vocab_file={squad}/vocab.txt",
            "--max_seq_length=64", "--doc_stride=32", "--repeat=2", "--max_train_examples=4",
            f"--output_file={squad}/figures.json",
        ]
    )  # fmt: skip
    figures = json.loads((squad / "figures.json").read_text())
    assert figures["questions"] == 4
    assert min(figures["ours_s"], figures["transformers_s"], figures["ratio"]) > 0
    error = capsys.readouterr().err
    assert error.count("4 questions, 12 windows, 0.00% [UNK]") == 2  # built in each turn, never from a cache
    assert "transformers' tokenizer alone" in error


def test_bad_flags_are_told_in_one_line(squad, capsys):
    for flags, told in (
        ([f"--vocab_file={squad}/vocab.txt"], "--train_file"),
        ([f"--train_file={squad}/train.json"], "the vocabulary is not named: give --model or --vocab_file"),
        ([f"--train_file={squad}/train.json", "--model=m", "--repeat=0"], "--repeat is 0, needed is at least 1"),
    ):
        with pytest.raises(SystemExit) as stop:
            bench.main(["prepare", *flags])
        assert stop.value.code == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1
    with pytest.raises(SystemExit) as stop:
        bench.main(["prepare", f"--vocab_file={squad}/vocab.txt", f"--train_file={squad}/none.json"])
    assert stop.value.code == 1
    assert capsys.readouterr().err.endswith("none.json: no such file\n")
