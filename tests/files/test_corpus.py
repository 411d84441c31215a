"""Building a corpus: its text, the same bytes whoever does the work, kills, and shards that belong together."""

import gzip
import json
import random
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from harness import corpora
from harness.jobs import assert_gone, shell, started
from harness.program_runs import command, files_in, refusal
from harness.real_data import real
from harness.real_tokenizers import albert, multilingual
from harness.refusals import refused

from bert.corpus.read import split_sentences
from bert.corpus.shards import verify
from bert.corpus.words import Encoder
from tasks.corpus.__main__ import main as bert_corpus

TEXTS = [
    ["The first.", "그는 갔다.", "x " * 30 + "x"],
    ["One alone."],
    ["café – naïve", "Ünder"],
    ["last", "of all"],
]
PLAIN = "\n".join("".join(f"{sentence}\n" for sentence in text) for text in TEXTS)
UNIT_BYTES = "bert.corpus.units.LARGEST_UNIT_BYTES"  # small, so that a small corpus has many units


def test_every_form_of_text_gives_the_same_documents(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "set").mkdir()
    (tmp_path / "a.txt").write_text(PLAIN)
    (tmp_path / "b.txt").write_bytes(PLAIN.replace("\n\n", "\n \n\n").replace("\n", "\r\n").encode())
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(PLAIN.encode()))
    with pa.CompressedOutputStream(pa.OSFile(str(tmp_path / "d.txt.zst"), "wb"), "zstd") as file:
        file.write(PLAIN.encode())
    rows = [{"body": text} for text in (*map("\n".join, TEXTS), None)]
    (tmp_path / "e.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    for name in ("f.parquet", "set/train.parquet"):
        pa.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / name, row_group_size=2)
    for name in ("[ab].txt", "c.txt.gz", "d.txt.zst", "e.jsonl", "f.parquet"):
        expected = TEXTS * (2 if name == "[ab].txt" else 1)
        assert corpora.read_documents(input_file=str(tmp_path / name), text_column="body") == expected, name
    assert corpora.read_documents(dataset_name=str(tmp_path / "set"), text_column="body") == TEXTS
    for source in ({"input_file": str(tmp_path / "f.parquet")}, {"dataset_name": str(tmp_path / "set")}):
        refused(partial(corpora.read_documents, **source), *source.values(), "--text_column", "body")


@pytest.mark.parametrize("unit_bytes", [1, 50, 5000])
def test_units_of_any_size_hold_each_document_once(tmp_path, monkeypatch, unit_bytes):
    draw = random.Random(unit_bytes)
    texts = [["x".join(draw.choices("abé한 ", k=draw.randint(2, 20))).strip() for _ in range(draw.randint(1, 6))]
             for _ in range(60)]  # fmt: skip
    documents = ["\n".join(text) for text in texts]
    (tmp_path / "a.txt").write_text("\n\n".join(documents) + "\n")
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in documents))
    monkeypatch.setattr(UNIT_BYTES, unit_bytes)
    for name in ("a.txt", "a.jsonl"):
        assert corpora.read_documents(input_file=str(tmp_path / name)) == texts


@pytest.mark.parametrize(
    ("name", "data", "named"),
    [
        ("a.txt", "한국어\n".encode() * 40 + b"ab\xff\n", "byte 402"),
        ("a.txt", b"\n\n   \n", "no text"),
        ("a.txt", b"", "empty"),
        ("a.jsonl", b'{"text": "good"}\n{"text": 3}\n', '{"text": 3}'),
        ("a.jsonl", b'{"text": "good"}\n{"text": "cut\n', '{"text": "cut'),
        ("a.jsonl", b'{"text": "good"}\n{"text": "a \\ud800 b"}\n', '{"text": "a \\\\ud800'),
        ("a.parquet", b"PAR1" + bytes(100), ""),
        ("a.txt.gz", gzip.compress(random.Random(0).randbytes(9999).hex().encode())[:-1000], ""),
        ("a.txt", b"short\n" + b"x" * (40 << 20), "longer"),
        ("a.txt.gz", gzip.compress(b"x" * (40 << 20), 1), "longer"),
        ("a.txt", b"w5 w6 unknown words\n\nw7 w8\n", "--allow_unknown"),
        ("a.txt", b"w5 w6\nw7 w8\n", "one document"),
    ],
)  # fmt: skip
def test_text_that_cannot_be_a_corpus_is_one_line(tmp_path, name, data, named):
    corpora.write(tmp_path, corpora.make_texts(1))
    (tmp_path / name).write_bytes(data)
    file = {} if named in ("no text", "--allow_unknown", "one document") else {str(tmp_path / name)}
    refused(lambda: corpora.build(tmp_path, input_file=str(tmp_path / name)), *file, named)


@pytest.mark.parametrize(
    "expected",
    [
        ["Mr. Bennet was odd.", "His wife was not!"],
        ['"You must know," said she, "that he is here."', '"Is he?"', "He is."],
        ["It cost $3.50, i.e. little.", "See J. R. Smith et al. for more…", "Then 4 came."],
        ["그는 집에 갔다.", "왜 갔을까?", "모른다!"],
        ["我来了。", "你呢？", "「好。」", "再见"],
        ["Is it so? asked he.", "No."],
        ["It was I.", "He saw it."],
    ],
)
def test_sentences_of_running_text(expected):
    assert split_sentences(("" if "。" in expected[0] else " ").join(expected)) == expected


def test_words_are_encoded_as_the_tokenizer_does():
    """Odd characters, and real text in two languages."""
    odd = ["a\x1cb c\x85d\x0be\tf", "x\u2028y\u3000z\u00a0w", "[SEP] ##ing", "é e\u0301 \u0301e", "ΑΣ σ",
           "\ufffd \x00", "㈜ 北京 don't--x", "中文，测试。x “é”—ы  、\u3400龥豈"]  # fmt: skip
    novel = (real("text/british_fiction") / "Austen_Emma.txt").read_text(encoding="utf-8").split("\n")[:500]
    lines = [*odd, *novel, "", *real("nsmc/ratings_test.txt").read_text(encoding="utf-8").split("\n")[1:300]]
    for words in (multilingual(), albert()):
        expected, encode = words.encode(lines)[0], Encoder(words)
        parts = [encode(lines[at : at + 100]) for at in range(0, len(lines), 100)]
        assert np.concatenate([lengths for _, lengths in parts]).tolist() == [len(ids) for ids in expected]
        assert np.array_equal(np.concatenate([values for values, _ in parts]), np.concatenate(expected))


def test_workers_and_shards_do_not_change_the_examples_and_a_finished_build_stays(tmp_path, monkeypatch):
    corpora.write(tmp_path, corpora.make_texts(40))
    monkeypatch.setattr(UNIT_BYTES, 1 << 14)
    one, _ = corpora.build(tmp_path, "one", num_shards=3, dupe_factor=2)
    corpora.build(tmp_path, "two", workers=2, num_shards=3, dupe_factor=2)
    assert files_in(tmp_path / "one") == files_in(tmp_path / "two")
    seven, manifest = corpora.build(tmp_path, "seven", num_shards=7, dupe_factor=2)
    assert sorted(one, key=str) == sorted(seven, key=str) != one
    sizes = [shard["examples"] for shard in manifest["shards"]]
    assert max(sizes) <= 1.1 * min(sizes)
    assert corpora.build(tmp_path, "seed", num_shards=3, dupe_factor=2, random_seed=1)[0] != one
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "one").rglob("*")}
    corpora.build(tmp_path, "one", num_shards=3, dupe_factor=2)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    refused(lambda: corpora.build(tmp_path, "one", num_shards=3, max_seq_length=32), "max_seq_length", 128, 32)


@pytest.mark.slow
def test_a_killed_build_goes_on_to_the_bytes_of_one_and_its_workers_end(tmp_path):
    """By two ranks under mpirun; 9 MB are three units of work, and the kill comes in the first pass."""
    corpora.write(tmp_path, corpora.make_texts(200), "a.txt")
    one = (tmp_path / "a.txt").read_bytes() + b"\n\n"
    (tmp_path / "a.txt").write_bytes(one * (9_000_000 // len(one)))
    flags = ["build", f"--input_file={tmp_path}/a.txt", f"--vocab_file={tmp_path}/vocab.txt", "--num_shards=8"]
    build, cut = partial(command, "tasks.corpus", *flags, "--num_workers=2"), tmp_path / "cut"
    shell(*build(f"--output_dir={tmp_path}/whole"))
    with started(build(f"--output_dir={cut}")) as job:
        job.wait_for(lambda: any(cut.glob(".work/unit-*")))
        tasks = Path(f"/proc/{job.process.pid}/task").iterdir()
        workers = [int(child) for task in tasks for child in (task / "children").read_text().split()]
        job.process.kill()
    assert len(workers) >= 2
    assert_gone(*workers)
    refused(lambda: corpora.open_table(str(cut)), cut, "bert-corpus build")
    shell(*build(f"--output_dir={cut}", ranks=2))
    assert files_in(cut) == files_in(tmp_path / "whole")


def test_unfinished_work_with_other_settings_or_input_is_refused(tmp_path, monkeypatch):
    corpora.write(tmp_path, corpora.make_texts(40))
    monkeypatch.setattr(UNIT_BYTES, 1 << 14)
    with (tmp_path / "a.txt.part").open("ab") as file:
        file.write(b"\n\nbad \xff")  # found in the last unit
    refused(lambda: corpora.build(tmp_path), "a.txt.part")
    refused(lambda: corpora.build(tmp_path, short_seq_prob=0.2), "short_seq_prob", 0.1, 0.2)
    (tmp_path / "b.txt.part").write_text("w7 w8\n")
    refused(lambda: corpora.build(tmp_path), "input file")


@pytest.mark.slow
def test_a_vocabulary_of_the_corpus(tmp_path, monkeypatch):
    """With names of files as in google-research/bert's README."""
    monkeypatch.chdir(tmp_path)
    novel = (real("text/british_fiction") / "Austen_Emma.txt").read_text(encoding="utf-8")[:100_000]
    Path("sample_text.txt").write_text(novel.replace(".\n", ".\n\n"))
    bert_corpus(["vocab", "--input_file=*.txt", "--output_dir=v", "--vocab_size=1000"])
    bert_corpus(["build", "--input_file=*.txt", "--output_file=a.tfrecord", "--vocab_file=v/vocab.txt"])
    manifest = corpora.open_table("a.tfrecord")[1]
    assert manifest["vocab_size"] == 1000
    assert manifest["counts"]["unknown_share"] < 0.01


@pytest.fixture
def shards(tmp_path):
    corpora.write(tmp_path, corpora.make_texts(20))
    corpora.build(tmp_path, num_shards=3)
    verify(tmp_path / "shards")
    return tmp_path / "shards"


@pytest.mark.parametrize("damage", ["flipped", "missing", "cut"])
def test_a_damaged_shard_is_named_and_the_others_are_read(shards, damage, capsys):
    path = shards / "shard-00001-of-00003.arrow"
    data = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(data[:-100] if damage == "cut" else data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    refusal(capsys, "bert-corpus verify", lambda: bert_corpus(["verify", f"--input_dir={shards}"]), path)
    for patterns in (str(shards), f"{shards}/shard-*.arrow"):
        refused(partial(corpora.open_table, patterns), path)
    assert corpora.open_table(f"{shards}/shard-00000-*,{shards}/shard-00002-*")[0].num_rows > 0


def test_shards_and_files_that_do_not_belong_together_are_refused(tmp_path, shards):
    corpora.build(tmp_path, "other", max_seq_length=64)
    refused(lambda: corpora.open_table(f"{shards}/*.arrow,{tmp_path}/other/*.arrow"), "max_seq_length", 128, 64)
    corpora.build(tmp_path, "more", num_shards=2)
    table, manifest = corpora.open_table(f"{shards},{tmp_path}/more")
    assert table.num_rows == 2 * manifest["counts"]["examples"]
    (tmp_path / "other" / "shard-00000-of-00001.arrow").rename(shards / "shard-00000-of-00001.arrow")
    refused(lambda: corpora.open_table(f"{shards}/*"), "shard-00000-of-00001.arrow")
    (shards / "tokenizer/vocab.txt").write_text("w7")
    refused(lambda: verify(shards), "shard-00000-of-00001.arrow", "tokenizer/vocab.txt")
    (shards / "manifest.json").unlink()
    refused(lambda: corpora.open_table(f"{shards}/*"), "manifest.json")
    refused(lambda: corpora.open_table(f"{tmp_path}/nowhere/*"), f"{tmp_path}/nowhere/*")
    refused(lambda: verify(tmp_path / "nowhere"), f"{tmp_path}/nowhere: no such folder")
