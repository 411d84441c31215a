"""benchmarks/: comparisons with other people's programs, as far as they run without them."""

import json
import string
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import compare, prepare, rivals

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def squad(tmp_path) -> Path:
    """A folder with train.json, five questions about one context of 100 words, and vocab.txt."""
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
    prepare.main(
        [
            f"--train_file={squad}/train.json", f"--vocab_file={squad}/vocab.txt", "--max_seq_length=64",
            "--doc_stride=32", "--repeat=2", "--max_train_examples=4", f"--output_file={squad}/figures.json",
        ]
    )  # fmt: skip
    figures = json.loads((squad / "figures.json").read_text())
    assert figures["questions"] == 4
    assert min(figures["ours_s"], figures["transformers_s"], figures["ratio"]) > 0
    printed = capsys.readouterr().err
    assert printed.count("4 questions, 12 windows, 0.00% [UNK]") == 2  # built in each turn, never from a cache
    assert "transformers' tokenizer alone" in printed


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--vocab_file=v"], "--train_file must be given"),
        (["--train_file=t"], "no vocabulary: give --model or --vocab_file"),
        (["--train_file=t", "--model=m", "--repeat=0"], "--repeat must be at least 1, got 0"),
    ],
)
def test_bad_flags_are_one_line(flags, message, capsys):
    with pytest.raises(SystemExit) as stop:
        prepare.main(flags)
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"benchmarks.prepare: error: {message}\n"


def test_a_missing_file_is_one_line(squad, capsys):
    with pytest.raises(SystemExit) as stop:
        prepare.main([f"--vocab_file={squad}/vocab.txt", f"--train_file={squad}/none.json"])
    assert stop.value.code == 1
    printed = capsys.readouterr().err
    assert "none.json: " in printed
    assert printed.count("\n") == 1


def test_measured_batches_are_spread_evenly_over_the_lengths():
    assert rivals.evenly(50, 10).tolist() == [2, 7, 12, 17, 22, 27, 32, 37, 42, 47]
    assert rivals.evenly(3, 3).tolist() == [0, 1, 2]
    assert rivals.evenly(50, 0).tolist() == []


def test_a_contender_that_takes_too_long_is_ended_with_all_it_started(monkeypatch, tmp_path):
    monkeypatch.setattr(compare, "TIME_LIMIT_S", 0.5)
    late = tmp_path / "late"
    done = compare.run_on_cpus(["sh", "-c", f"(sleep 1.5; touch {late}) & wait"])
    assert done.returncode == compare.TOOK_TOO_LONG
    time.sleep(1.5)
    assert not late.exists()
    monkeypatch.setattr(compare, "TIME_LIMIT_S", 60)
    assert compare.run_on_cpus(["sh", "-c", "echo a; exit 3"]).returncode == 3


@pytest.mark.slow
def test_the_update_is_measured_beside_the_floor(tmp_path):
    command = [sys.executable, "-m", "benchmarks.update", "--model_size=tiny", "--repeat=2"]
    command += ["--device=cpu", f"--output_file={tmp_path}/figures"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "clip and adamw" in done.stderr
    figures = json.loads((tmp_path / "figures").read_text())
    assert figures["ratio_to_floor"] == pytest.approx(figures["ours_s"] / figures["floor_s"], rel=0.5)
    assert figures["keras_s"] > 0
