"""Building a corpus: its text, the same bytes whoever does the work, kills, and shards that belong
together."""

import gzip
import json
import random
import re
import shutil
import unicodedata
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from harness import corpora, texts
from harness.jobs import assert_gone, shell, started
from harness.program_runs import command, files_in, refusal
from harness.real_data import real
from harness.real_tokenizers import albert, multilingual, nsmc
from harness.refusals import refused

from bert.corpus.read import split_sentences
from bert.corpus.shards import verify
from bert.corpus.words import Encoder
from bert.text import tokenizer
from tasks.corpus.__main__ import main as bert_corpus

TEXTS = [
    ["The first.", "그는 갔다.", "x " * 30 + "x"],
    ["One alone."],
    ["café – naïve", "Ünder"],
    ["last", "of all"],
]
PLAIN = "\n".join("".join(f"{sentence}\n" for sentence in text) for text in TEXTS)
EMMA = "text/british_fiction/Austen_Emma.txt"
UNIT_BYTES = "bert.corpus.units.LARGEST_UNIT_BYTES"  # small, so that a small corpus has many units


def test_every_form_of_text_gives_the_same_documents(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "set").mkdir()
    (tmp_path / "a.txt").write_text(PLAIN)
    (tmp_path / "b.txt").write_bytes(
        PLAIN.replace("\n\n", "\n \n\n").replace("\n", "\r\n").encode()
    )
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(PLAIN.encode()))
    with pa.CompressedOutputStream(pa.OSFile(str(tmp_path / "d.txt.zst"), "wb"), "zstd") as file:
        file.write(PLAIN.encode())
    rows = [{"body": text} for text in (*map("\n".join, TEXTS), None)]
    texts.write_lines(tmp_path / "e.jsonl", *(json.dumps(row, ensure_ascii=False) for row in rows))
    for name in ("f.parquet", "set/train.parquet"):
        pa.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / name, row_group_size=2)
    for name in ("[ab].txt", "c.txt.gz", "d.txt.zst", "e.jsonl", "f.parquet"):
        expected = TEXTS * (2 if name == "[ab].txt" else 1)
        found = corpora.read_documents(input_file=str(tmp_path / name), text_column="body")
        assert found == expected, name
    data_set = str(tmp_path / "set")
    assert corpora.read_documents(dataset_name=data_set, text_column="body") == TEXTS
    for flag, source in ("input_file", str(tmp_path / "f.parquet")), ("dataset_name", data_set):
        call = partial(corpora.read_documents, **{flag: source})
        refused(call, source, "--text_column", "body")


@pytest.mark.parametrize("unit_bytes", [1, 50, 5000])
def test_units_of_any_size_hold_each_document_once(tmp_path, monkeypatch, unit_bytes):
    draw = random.Random(unit_bytes)

    def sentence():
        return "x".join(draw.choices("abé한 ", k=draw.randint(2, 20))).strip()

    texts = [[sentence() for _ in range(draw.randint(1, 6))] for _ in range(60)]
    documents = ["\n".join(text) for text in texts]
    (tmp_path / "a.txt").write_text("\n\n".join(documents) + "\n")
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in documents))
    monkeypatch.setattr(UNIT_BYTES, unit_bytes)
    for name in ("a.txt", "a.jsonl"):
        assert corpora.read_documents(input_file=str(tmp_path / name)) == texts
    lines = [[sentence] for text in texts for sentence in text]
    of_lines = partial(corpora.read_documents, document_separator="line")
    assert of_lines(input_file=str(tmp_path / "a.txt")) == lines
    assert of_lines(input_file=str(tmp_path / "a.jsonl")) == texts


def test_running_text_with_a_document_in_each_line(tmp_path):
    path = texts.write_lines(
        tmp_path / "a.txt", "It was good. We liked it.", "", "Bad.", "We left early. Why stay?"
    )
    expected = [["It was good.", "We liked it."], ["Bad."], ["We left early.", "Why stay?"]]
    options = {"document_separator": "line", "split_sentences": True}
    assert corpora.read_documents(input_file=path, **options) == expected


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
)
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
        ["दिल्ली भारत की राजधानी है।", "क्या यह सच है?", "हाँ।"],
        ["کیا یہ سچ ہے؟", "ہاں۔", "ٹھیک ہے"],
        ["နေကောင်းလား။", "ကောင်းတယ်။"],
    ],
)
def test_sentences_of_running_text(expected):
    assert split_sentences(("" if "。" in expected[0] else " ").join(expected)) == expected


def test_words_are_encoded_as_the_tokenizer_does():
    """Odd characters, and real text in two languages."""
    odd = [
        "a\x1cb c\x85d\x0be\tf",
        "x\u2028y\u3000z\u00a0w",
        "[SEP] ##ing",
        "é e\u0301 \u0301e",
        "ΑΣ σ",
        "\ufffd \x00",
        "㈜ 北京 don't--x",
        "中文，测试。x “é”—ы  、\u3400龥豈",
    ]
    novel = real(EMMA).read_text().split("\n")[:500]
    lines = [*odd, *novel, "", *nsmc(300)]
    for words in (multilingual(), albert()):
        expected, encode = words.encode(lines)[0], Encoder(words)
        parts = [encode(lines[at : at + 100]) for at in range(0, len(lines), 100)]
        values, lengths = map(np.concatenate, zip(*parts, strict=True))
        assert lengths.tolist() == [len(ids) for ids in expected]
        np.testing.assert_array_equal(values, np.concatenate(expected))


def test_workers_and_shards_do_not_change_the_examples_and_a_finished_build_stays(
    tmp_path, monkeypatch
):
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
    other = partial(corpora.build, tmp_path, "one", num_shards=3, max_seq_length=32)
    refused(other, "max_seq_length", 128, 32)


@pytest.mark.slow
def test_a_killed_build_goes_on_to_the_bytes_of_one_and_its_workers_end(tmp_path, capsys):
    """By two ranks under mpirun; 9 MB are three units of work, and the kill comes in the first
    pass."""
    corpora.write(tmp_path, corpora.make_texts(200), "a.txt")
    one = (tmp_path / "a.txt").read_bytes() + b"\n\n"
    (tmp_path / "a.txt").write_bytes(one * (9_000_000 // len(one)))
    files = f"--input_file={tmp_path}/a.txt", f"--vocab_file={tmp_path}/vocab.txt"
    flags = ["build", *files, "--num_shards=8"]
    build, cut = partial(command, "tasks.corpus", *flags, "--num_workers=2"), tmp_path / "cut"
    shell(*build(f"--output_dir={tmp_path}/whole"))
    with started(build(f"--output_dir={cut}")) as job:
        job.wait_for(lambda: any(cut.glob(".work/unit-*")))
        tasks = Path(f"/proc/{job.process.pid}/task").iterdir()
        workers = [
            int(child) for task in tasks for child in (task / "children").read_text().split()
        ]
        job.process.kill()
    assert len(workers) >= 2
    assert_gone(*workers)
    flags += [f"--output_dir={cut}"]
    others = partial(bert_corpus, [*flags, "--short_seq_prob=0.2"])
    refusal(capsys, "bert-corpus build", others, cut, "short_seq_prob", 0.1, 0.2)
    texts.write_lines(tmp_path / "b.txt", "w7 w8")
    more = partial(bert_corpus, [flag.replace("a.txt", "?.txt") for flag in flags])
    refusal(capsys, "bert-corpus build", more, cut, "input file")
    refused(lambda: corpora.open_table(str(cut)), cut, "bert-corpus build")
    shell(*build(f"--output_dir={cut}", ranks=2))
    assert files_in(cut) == files_in(tmp_path / "whole")


def test_a_refused_build_leaves_nothing_that_refuses_the_corrected_command(tmp_path, monkeypatch):
    corpora.write(tmp_path, corpora.make_texts(40))
    build = partial(corpora.build, tmp_path, short_seq_prob=0.2)
    expected, _ = build("expected", num_shards=3)
    path = tmp_path / "a.txt.part"
    good = path.read_bytes()
    path.write_bytes(good + b"\n\nbad \xff")  # found in the last unit
    with monkeypatch.context() as patch:
        patch.setattr(UNIT_BYTES, 1 << 14)
        refused(lambda: corpora.build(tmp_path), "a.txt.part")
    path.write_bytes(good)
    refused(lambda: build(num_shards=5000), "--num_shards is 5000")
    assert build(num_shards=3)[0] == expected
    verify(tmp_path / "shards")  # also that there is no other shard


def test_documents_that_repeat_others_are_counted_and_left_out(tmp_path, monkeypatch, capsys):
    """Against a dict of Python, in one unit and in many, in runs and slices of a few documents."""
    draw = random.Random(4)
    words = [f"w{number}" for number in range(5, 45)]
    texts.write_vocabulary(tmp_path, *words, "!")
    every = ["\n".join(draw.choices(words, k=draw.randint(1, 2))) for _ in range(3000)]
    every[100:400] = [every[0]] * 300  # and one that is everywhere
    once = list(dict.fromkeys(every))
    for name, documents in ("every", every), ("once", once):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(documents))

    def build(name, output, *flags):
        files = f"--input_file={tmp_path}/{name}.txt", f"--vocab_file={tmp_path}/vocab.txt"
        output = tmp_path / output
        bert_corpus(["build", *files, f"--output_dir={output}", "--num_workers=1", *flags])
        report = json.loads((output / "report.json").read_text())
        printed = capsys.readouterr().err
        found = report["documents"], report["repeated_documents"]
        assert f"{len(every) - len(once):,} documents" in printed or not found[1]
        return found, {name: data for name, data in files_in(output).items() if "shard-" in name}

    num_repeated = len(every) - len(once)
    assert num_repeated > 1000
    counted, unchanged = build("every", "counted")
    expected, shards = build("once", "expected")
    assert (counted, expected) == ((3000, num_repeated), (len(once), 0))
    dropped, found = build("every", "dropped", "--deduplicate")
    assert dropped == (len(once), num_repeated)
    assert found == shards != unchanged
    other = partial(build, "every", "dropped")
    refusal(capsys, "bert-corpus build", other, "--deduplicate (true and not set)")
    monkeypatch.setattr(UNIT_BYTES, 1 << 12)
    monkeypatch.setattr("bert.corpus.units.SMALLEST_UNIT_BYTES", 1)
    monkeypatch.setattr("bert.corpus.duplicates.MOST_IN_RUN", 200)
    monkeypatch.setattr("bert.corpus.duplicates.MOST_AT_ONCE", 300)
    assert build("every", "units counted", "--nonext_sentence")[0] == counted
    flags = "--nonext_sentence", "--deduplicate", "--max_seq_length=5"
    assert build("every", "units dropped", *flags)[0] == dropped
    rows = corpora.open_table(str(tmp_path / "units dropped"))[0]["input_ids"].to_pylist()
    kept = sorted(token for row in rows for token in row if token > corpora.MASK)
    ids = {word: number for number, word in enumerate(words, 5)}
    assert kept == sorted(ids[word] for text in once for word in text.split())


def test_a_report_counts_scripts_and_lengths(tmp_path):
    """Scripts by the names of characters, as Python's unicodedata has them."""
    lines = [
        "Ελλάδα and 한국어 영화",
        "русский фильм, 12",
        "हिन्दी फ़िल्म",
        "日本語の映画 カナ",
        "ไทย",
    ]
    path = texts.write_lines(tmp_path / "a.txt", *lines)
    texts.write_vocabulary(tmp_path, "and", ",", "12", "!")
    files = f"--input_file={path}", f"--vocab_file={tmp_path}/vocab.txt"
    options = "--document_separator=line", "--nonext_sentence", "--allow_unknown", "--num_workers=1"
    bert_corpus(["build", *files, *options, f"--output_dir={tmp_path}/shards"])
    report = json.loads((tmp_path / "shards/report.json").read_text())
    expected = Counter()
    names = {"CJK": "Han", "DIGIT": "other characters", "COMMA": "other characters"}
    for character in "".join(lines):
        if character != " ":
            first = unicodedata.name(character).split()[0]
            expected[names.get(first, first.capitalize())] += 1
    assert report["characters_by_script"] == expected
    words = tokenizer.load(str(tmp_path / "vocab.txt"))
    sizes = [len(ids) for ids in words.encode_ids(lines)]
    assert report["tokens_of_the_longest_document"] == max(sizes)
    by_power = Counter(str(1 << (size - 1).bit_length()) for size in sizes)
    assert report["documents_of_at_most_so_many_tokens"] == by_power
    assert report["tokens"] == sum(sizes)


def test_what_a_build_cuts_off_and_lines_that_may_be_documents_are_said(tmp_path, capsys):
    """A row of 16 has 13 tokens of text; 50 lines of 40 words have 27 more each."""
    words = [f"w{number}" for number in range(5, 45)]
    texts.write_vocabulary(tmp_path, *words)
    long, short = [" ".join(words)] * 50, [" ".join(words[:13])] * 3000
    texts.write_lines(tmp_path / "long.txt", *long[:25], "", *long[25:])
    texts.write_lines(tmp_path / "short.txt", *short, "", *short[:1000])

    def build(name, *flags):
        files = f"--input_file={tmp_path}/{name}.txt", f"--vocab_file={tmp_path}/vocab.txt"
        output = f"--output_dir={tmp_path}/shards {name} {len(list(tmp_path.iterdir()))}"
        bert_corpus(["build", *files, output, "--max_seq_length=16", "--num_workers=1", *flags])
        return capsys.readouterr().err

    said = build("long")
    cut = "1,350 of 2,000 tokens (68%)", "1,350 cut off"
    for part in (*cut, "50 of 50 lines", "--split_sentences"):
        assert part in said
    assert "cut off" not in build("long", "--nonext_sentence")
    said = build("short")
    assert "cut off" not in said
    assert "1 of 2 documents have more than 2,000 sentences" in said
    assert "--document_separator line" in said
    for separator, documents in ("line", "4,000 documents"), ("file", "1 documents"):
        said = build("short", f"--document_separator={separator}", "--nonext_sentence")
        assert documents in said
        assert "warning" not in said


@pytest.mark.slow
def test_a_vocabulary_of_the_corpus(tmp_path, monkeypatch):
    """With names of files as in google-research/bert's README."""
    monkeypatch.chdir(tmp_path)
    novel = real(EMMA).read_text()[:100_000]
    Path("sample_text.txt").write_text(novel.replace(".\n", ".\n\n"))
    bert_corpus(["vocab", "--input_file=*.txt", "--output_dir=v", "--vocab_size=1000"])
    files = "--input_file=*.txt", "--output_file=a.tfrecord", "--vocab_file=v/vocab.txt"
    bert_corpus(["build", *files])
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
    flipped = data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]
    if damage != "missing":
        path.write_bytes(data[:-100] if damage == "cut" else flipped)
    checks = partial(bert_corpus, ["verify", f"--input_dir={shards}"])
    refusal(capsys, "bert-corpus verify", checks, path)
    for patterns in (str(shards), f"{shards}/shard-*.arrow"):
        refused(partial(corpora.open_table, patterns), path)
    assert corpora.open_table(f"{shards}/shard-00000-*,{shards}/shard-00002-*")[0].num_rows > 0


def test_shards_and_files_that_do_not_belong_together_are_refused(tmp_path, shards):
    corpora.build(tmp_path, "other", max_seq_length=64)
    both = partial(corpora.open_table, f"{shards}/*.arrow,{tmp_path}/other/*.arrow")
    again = f"build {tmp_path}/other again with --max_seq_length 128"
    refused(both, "max_seq_length", 128, 64, again)
    (tmp_path / "cats").mkdir()
    texts.write_vocabulary(tmp_path / "cats", *(f"w{n}" for n in range(4, 40)))
    others = [f"--input_file={tmp_path}/*.txt.part", f"--output_dir={tmp_path}/cats/shards"]
    bert_corpus(["build", *others, f"--vocab_file={tmp_path}/cats/vocab.txt", "--allow_unknown"])
    mixed = partial(corpora.open_table, f"{shards},{tmp_path}/cats/shards")
    line = refused(mixed, f"differ in the vocabulary: build {tmp_path}/cats/shards again")
    shutil.rmtree(tmp_path / "cats/shards")
    model = re.search(r"again with (--model \S+) \(bert-corpus build\)", line)[1]
    bert_corpus(["build", *others, *model.split()])
    mixed()
    corpora.build(tmp_path, "more", num_shards=2)
    table, manifest = corpora.open_table(f"{shards},{tmp_path}/more")
    assert table.num_rows == 2 * manifest["counts"]["examples"]
    foreign = "shard-00000-of-00001.arrow"
    (tmp_path / "other" / foreign).rename(shards / foreign)
    refused(lambda: corpora.open_table(f"{shards}/*"), foreign)
    (shards / "tokenizer/vocab.txt").write_text("w7")
    refused(lambda: verify(shards), foreign, "tokenizer/vocab.txt")
    (shards / "manifest.json").unlink()
    refused(lambda: corpora.open_table(f"{shards}/*"), "manifest.json")
    refused(lambda: corpora.open_table(f"{tmp_path}/nowhere/*"), f"{tmp_path}/nowhere/*")
    refused(lambda: verify(tmp_path / "nowhere"), f"{tmp_path}/nowhere: no such folder")
