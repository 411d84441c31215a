"""bert-corpus as users run it."""

import os
import subprocess
import sys

import pytest
from corpora import bert_corpus, build_with, content, make_texts, write
from mpi import ROOT
from real_data import real

from bert.corpus.settings import BuildSettings
from bert.corpus.shards import open_table
from bert.text import tokenizer


@pytest.mark.slow
def test_ranks_under_mpirun_give_the_bytes_of_one(tmp_path):
    """As a user starts it, with two workers on each rank; and one line for text that cannot be read."""
    write(tmp_path, make_texts(30), "a.txt")
    given = ("build", "--input_file=a.txt", "--vocab_file=vocab.txt", "--num_shards=3")
    assert bert_corpus(*given, "--output_dir=one", "--num_workers=1", folder=tmp_path).returncode == 0
    launch = [sys.executable, "-m", "distributed.launch", "-np", "2", "--", sys.executable, "-m", "tasks.corpus"]

    def on_two_ranks(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*launch, *arguments], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True,
            text=True, timeout=200, check=False,
        )  # fmt: skip

    done = on_two_ranks(*given, "--output_dir=two", "--num_workers=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert content(tmp_path / "one") == content(tmp_path / "two")
    (tmp_path / "b.txt").write_bytes(b"good\n\n\xff\n")
    done = on_two_ranks("build", "--input_file=b.txt", "--vocab_file=vocab.txt", "--output_dir=three")
    assert done.returncode != 0
    assert "is not UTF-8" in done.stderr
    assert "Traceback" not in done.stderr


def test_googles_command_line_works(tmp_path):
    """The one of google-research/bert's README, with its names of files."""
    write(tmp_path, make_texts(20), "sample_text.txt")
    google = [
        "--input_file=./sample_text.txt", "--output_file=tf_examples.tfrecord", "--vocab_file=vocab.txt",
        "--do_lower_case=True", "--max_seq_length=128", "--max_predictions_per_seq=20", "--masked_lm_prob=0.15",
        "--random_seed=12345", "--dupe_factor=5",
    ]  # fmt: skip
    done = bert_corpus("build", *google, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "becomes a folder of Arrow shards; --format tfrecord writes Google's" in done.stderr
    assert open_table(str(tmp_path / "tf_examples.tfrecord"))[1]["settings"]["dupe_factor"] == 5


def test_a_vocabulary_of_the_corpus_builds_the_corpus(tmp_path):
    novel = (real("text/british_fiction") / "Austen_Emma.txt").read_text(encoding="utf-8")
    (tmp_path / "a.txt").write_text(novel[:300_000], encoding="utf-8")
    text = ("--input_file=a.txt", "--split_sentences", "--document_separator=file")
    done = bert_corpus(
        "vocab", *text, "--output_dir=v", "--vocab_size=2000", "--max_bytes=200000", folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    settings = BuildSettings(
        input_file=str(tmp_path / "a.txt"), split_sentences=True, document_separator="file", next_sentence=False,
        output_dir=str(tmp_path / "shards"),
    )  # fmt: skip
    build_with(settings, tokenizer.load(folder=tmp_path / "v"))
    table, manifest = open_table(str(tmp_path / "shards"))
    assert manifest["vocab_size"] == 2000
    assert manifest["counts"]["unknown_share"] < 0.001
    assert manifest["counts"]["tokens"] == manifest["shards"][0]["tokens"] - 2 * table.num_rows


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    """Peak memory of one process for 16 MB and for 96 MB of text in one file."""
    program = (
        "import resource, sys; from tasks.corpus import main; main(sys.argv[1:]); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    texts = make_texts(200)
    write(tmp_path, texts, "one.txt")
    one = (tmp_path / "one.txt").read_bytes() + b"\n\n"
    peaks = []
    for size in (16, 96):
        with open(tmp_path / f"{size}.txt", "wb") as file:
            for _ in range(size * 1_000_000 // len(one)):
                file.write(one)
        done = subprocess.run(
            [sys.executable, "-c", program, "build", f"--input_file={size}.txt", f"--output_dir=of{size}",
             "--vocab_file=vocab.txt", "--num_workers=1"],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        peaks.append(int(done.stdout.split()[-1]))
    assert peaks[1] < 1.1 * peaks[0]
