"""Corpora against Google's `create_pretraining_data.py`, written out here, and against real faults."""

import collections
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from real_data import real

from bert.corpus import build as corpus
from bert.corpus import documents
from bert.corpus import encoder as corpus_encoder
from bert.corpus import tokens as corpus_tokens
from bert.corpus.build import Settings
from bert.corpus.builder import Builder
from bert.corpus.documents import Source
from bert.corpus.workers import Workers
from bert.text import tokenizer
from ringbert.errors import InputError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CLS, SEP, MASK = 2, 3, 4
ROOT = Path(__file__).resolve().parents[1]


def make_texts(num_documents: int, seed: int = 0, most_words: int = 25) -> list[list[list[int]]]:
    """Documents of sentences of token ids. No id occurs twice, so a token tells where it comes from."""
    draw, number, texts = random.Random(seed), len(SPECIAL), []
    for _ in range(num_documents):
        text = []
        for _ in range(draw.randint(1, 40)):
            length = draw.randint(1, most_words)
            text.append(list(range(number, number + length)))
            number += length
        texts.append(text)
    return texts


def write(folder: Path, texts, name: str = "a.txt.part") -> None:
    """The text, each id a word, and its vocabulary."""
    last = texts[-1][-1][-1]
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *(f"w{n}" for n in range(5, last + 1))]) + "\n")
    lines = ("\n".join(" ".join(f"w{n}" for n in sentence) for sentence in text) for text in texts)
    (folder / name).write_text("\n\n".join(lines))


def build_with(source: Source, settings: Settings, words, output: Path, *, workers: int = 1, **ranks) -> None:
    with Workers(workers, print) as processes:
        corpus.build(source, settings, words, output, workers=processes, say=lambda _: None, **ranks)


def build(folder: Path, output: str = "shards", *, workers: int = 1, source: dict | None = None, **settings):
    words = tokenizer.load(str(folder / "vocab.txt"))
    text = Source(**(source or {"input_file": str(folder / "*.txt.part")}))
    build_with(text, Settings(**settings), words, folder / output, workers=workers)
    table, manifest = corpus.open_table(str(folder / output))
    return table.to_pylist(), manifest


@pytest.fixture(scope="module")
def texts():
    return make_texts(80)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, texts):
    """The written texts, for tests that only read."""
    made = tmp_path_factory.mktemp("corpus")
    write(made, texts)
    return made


@pytest.fixture(scope="module")
def static(folder):
    return build(folder, "static", masking="static", dupe_factor=20)


def unmasked(row: dict) -> list[int]:
    ids = list(row["input_ids"])
    for position, original in zip(row["masked_lm_positions"], row["masked_lm_ids"], strict=True):
        ids[position] = original
    return ids


def halves(row: dict) -> tuple[list[int], list[int]]:
    """A and B without [CLS] and [SEP], which must be where they belong."""
    ids = unmasked(row) if "masked_lm_ids" in row else row["input_ids"]
    a = row["sentence_a_tokens"]
    assert (ids[0], ids[a - 1], ids[-1]) == (CLS, SEP, SEP)
    return ids[1 : a - 1], ids[a:-1]


# -- Google's algorithm -------------------------------------------------------------------------------------------


def google_instances(texts, draw: random.Random, max_seq_length: int, short_seq_prob: float):
    """(A, B, is_random_next, whether the target was short) as `create_pretraining_data.py` makes them."""
    for number, text in enumerate(texts):
        most = max_seq_length - 3
        is_short = draw.random() < short_seq_prob
        target = draw.randint(2, most) if is_short else most
        chunk, index = [], 0
        while index < len(text):
            chunk.append(text[index])
            if index == len(text) - 1 or sum(map(len, chunk)) >= target:
                split = draw.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                a = [token for sentence in chunk[:split] for token in sentence]
                is_random = len(chunk) == 1 or draw.random() < 0.5
                b = []
                if is_random:
                    other = number
                    for _ in range(10):
                        other = draw.randrange(len(texts))
                        if other != number:
                            break
                    for sentence in texts[other][draw.randrange(len(texts[other])) :]:
                        b += sentence
                        if len(b) >= target - len(a):
                            break
                    index -= len(chunk) - split
                else:
                    b = [token for sentence in chunk[split:] for token in sentence]
                while len(a) + len(b) > most:
                    longer = a if len(a) > len(b) else b
                    del longer[0 if draw.random() < 0.5 else -1]
                yield a, b, is_random, is_short
                chunk = []
            index += 1


def close(one, other, name: str) -> None:
    """Whether two samples have the same mean, within 4.5 standard errors: 1 chance in 100,000 to differ."""
    one, other = np.asarray(one, float), np.asarray(other, float)
    # Examples of one document hang together: about 10 of them share a target length.
    error = np.sqrt(10 * (one.var() / len(one) + other.var() / len(other)))
    assert abs(one.mean() - other.mean()) < 4.5 * error, f"{name}: {one.mean()} and {other.mean()} +- {error}"


def test_examples_are_distributed_as_googles(static, texts):
    rows, manifest = static
    draw = random.Random(1)
    google = [row for _ in range(20) for row in google_instances(texts, draw, 128, 0.1)]
    ours = [(*halves(row), row["is_random_next"]) for row in rows]
    close([row[2] for row in ours], [row[2] for row in google], "random next")
    lengths, theirs = ([len(a) + len(b) for a, b, *_ in which] for which in (ours, google))
    close(lengths, theirs, "length")
    close([len(a) for a, *_ in ours], [len(a) for a, *_ in google], "length of A")
    for most in (30, 60, 100, 124):
        close([n <= most for n in lengths], [n <= most for n in theirs], f"at most {most} tokens")
    for kind in (0, 1):
        close(
            [len(b) for _, b, r in ours if r == kind],
            [len(b) for _, b, r, _ in google if r == kind],
            "length of B",
        )
    # Every document is gone through once per duplicate, so the number of examples is random only through targets.
    assert abs(len(ours) / len(google) - 1) < 0.05
    assert manifest["counts"]["examples"] == len(rows)
    assert manifest["counts"]["examples_with_random_next"] == sum(row[2] for row in ours)


def test_share_of_short_targets(tmp_path):
    texts = [
        [[number * 100 + word for word in range(5, 25)] for number in range(n * 10, n * 10 + 10)]
        for n in range(60)
    ]
    write(tmp_path, texts)
    # 200 tokens a document and a target of 61: a first example below 61 - 20 tokens tells a short target.
    for probability in (0.0, 0.3, 1.0):
        rows, _ = build(tmp_path, f"p{probability}", dupe_factor=30, max_seq_length=64, short_seq_prob=probability)
        draw = random.Random(2)
        google = [
            len(a) + len(b) for _ in range(30) for a, b, *_ in google_instances(texts, draw, 64, probability)
        ]
        ours = [len(row["input_ids"]) - 3 for row in rows]
        close([n < 61 for n in ours], [n < 61 for n in google], "shorter than the target")
        close(ours, google, "length")


def test_a_and_b_come_from_where_they_should(static, texts):
    rows, _ = static
    place = {  # token -> document, place in it
        token: (number, at)
        for number, text in enumerate(texts)
        for at, token in enumerate(token for sentence in text for token in sentence)
    }
    starts = {sentence[0] for text in texts for sentence in text}
    others = collections.Counter()
    for row in rows:
        a, b = halves(row)
        for part in (a, b):
            assert part == list(range(part[0], part[0] + len(part)))  # consecutive
            assert place[part[0]][0] == place[part[-1]][0]
        assert 5 <= len(a) + len(b) + 3 <= 128
        of_a, of_b = place[a[0]][0], place[b[0]][0]
        assert (of_a != of_b) == row["is_random_next"]
        if len(row["input_ids"]) < 128:  # nothing was cut off
            assert a[0] in starts
            assert b[0] in starts
            if not row["is_random_next"]:
                assert b[0] == a[-1] + 1
        elif not row["is_random_next"]:
            assert b[0] > a[-1]
        if row["is_random_next"]:
            others[of_b] += 1
    # Random documents are drawn from the whole corpus, each as likely: chi-square of 80 cells, 79 degrees.
    expected = sum(others.values()) / len(texts)
    assert sum((others[n] - expected) ** 2 / expected for n in range(len(texts))) < 79 + 5 * (2 * 79) ** 0.5


def test_static_masks_follow_googles_rules(static):
    rows, manifest = static
    kinds, total = collections.Counter(), 0
    for row in rows:
        ids, original = row["input_ids"], unmasked(row)
        positions = row["masked_lm_positions"]
        assert positions == sorted(set(positions))
        assert len(positions) == min(20, max(1, round(len(ids) * 0.15)), len(ids) - 3)
        assert not {CLS, SEP} & {original[position] for position in positions}
        for position, was in zip(positions, row["masked_lm_ids"], strict=True):
            kinds["mask" if ids[position] == MASK else "same" if ids[position] == was else "other"] += 1
        assert [n for p, n in enumerate(ids) if p not in positions] == [
            n for p, n in enumerate(original) if p not in positions
        ]
        total += len(positions)
    assert manifest["counts"]["masked_tokens"] == total
    for kind, share in (("mask", 0.8), ("same", 0.1), ("other", 0.1)):
        assert abs(kinds[kind] / total - share) < 4.5 * (share * (1 - share) / total) ** 0.5, kind


def test_each_sentence_is_there_when_only_its_document_can_follow(folder, texts):
    rows, manifest = build(folder, "plain", short_seq_prob=0.0, max_seq_length=512, dupe_factor=2)
    assert set(rows[0]) == {"input_ids", "sentence_a_tokens", "is_random_next"}
    seen = collections.Counter()
    for row in rows:
        a, _ = halves(row)
        seen.update(a)
        if not row["is_random_next"]:
            seen.update(halves(row)[1])
    words = {token for text in texts for sentence in text for token in sentence}
    cut = sum(len(row["input_ids"]) == 512 for row in rows)
    # Unused sentences are put back, so each is in an example of its own document; only truncation loses tokens.
    lost = sum(2 - seen[word] for word in words)
    assert 0 <= lost <= cut * 25 * 2
    assert max(seen.values()) <= 2
    assert manifest["counts"]["tokens"] == len(words)
    assert manifest["counts"]["sentences"] == sum(map(len, texts))
    assert manifest["counts"]["documents"] == len(texts)


def test_rows_without_next_sentence_are_full_and_lose_nothing(folder, texts):
    rows, manifest = build(folder, "rows", next_sentence=False, dupe_factor=2, max_seq_length=50)
    assert set(rows[0]) == {"input_ids", "sentence_a_tokens"}
    first_tokens = {text[0][0] for text in texts}
    seen = collections.Counter()
    for row in rows:
        ids = row["input_ids"]
        assert (ids[0], ids[-1]) == (CLS, SEP)
        assert row["sentence_a_tokens"] == len(ids) <= 50
        inner = ids[1:-1]
        assert SEP not in (inner[0], inner[-1])
        for before, token in itertools.pairwise(inner):
            # Consecutive tokens of the corpus, with a [SEP] before each document.
            assert token == (SEP if before + 1 in first_tokens else before + 1) or before == SEP
        seen.update(token for token in inner if token != SEP)
    words = [token for text in texts for sentence in text for token in sentence]
    assert seen == dict.fromkeys(words, 2)
    # All but the last row of each duplicate and the first of the second one, and those at a [SEP].
    assert sum(len(row["input_ids"]) < 48 for row in rows) <= 3
    assert manifest["counts"]["examples"] == len(rows)


# -- the same bytes -----------------------------------------------------------------------------------------------


@pytest.fixture
def small_units(monkeypatch):
    monkeypatch.setattr(documents, "LARGEST_UNIT_BYTES", 1 << 14)
    monkeypatch.setattr(corpus_tokens, "BLOCK_TOKENS", 1 << 10)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("small_units")
def test_ranks_give_the_same_bytes(folder):
    settings = {"num_shards": 5, "dupe_factor": 2}
    build(folder, "one", **settings)
    words, barrier, failed = tokenizer.load(str(folder / "vocab.txt")), threading.Barrier(2), []

    def rank(number: int) -> None:
        try:
            source, output = Source(str(folder / "*.txt.part")), folder / "two"
            build_with(source, Settings(**settings), words, output, share=(number, 2), barrier=barrier.wait)
        except BaseException as error:
            failed.append(error)
            barrier.abort()

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert content(folder / "one") == content(folder / "two")
    assert len(content(folder / "one")) > 5 + 1


def test_workers_give_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LARGEST_UNIT_BYTES", 1 << 14)
    write(tmp_path, make_texts(40))
    build(tmp_path, "one", num_shards=3)
    build(tmp_path, "two", workers=2, num_shards=3)
    assert content(tmp_path / "one") == content(tmp_path / "two")


@pytest.mark.usefixtures("small_units")
def test_offsets_that_find_no_room_in_memory_are_read(folder, monkeypatch):
    kept, _ = build(folder, "kept", num_shards=1)
    for number, most in enumerate((0, 1 << 11)):  # none, some
        monkeypatch.setattr(corpus_tokens, "MOST_KEPT_BYTES", most)
        read, _ = build(folder, f"read-{number}", num_shards=1)
        assert read == kept


@pytest.mark.usefixtures("small_units")
def test_the_order_does_not_depend_on_the_number_of_shards(folder):
    one, _ = build(folder, "in1", num_shards=1)
    seven, manifest = build(folder, "in7", num_shards=7)
    assert one == seven
    sizes = [shard["examples"] for shard in manifest["shards"]]
    assert max(sizes) - min(sizes) <= 1
    other, _ = build(folder, "seed", num_shards=1, random_seed=1)
    assert other != one


# -- a kill -------------------------------------------------------------------------------------------------------


def processes_below(parent: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{parent}/task").iterdir():
        children = [int(child) for child in (task / "children").read_text().split()]
        found += [*children, *(below for child in children for below in processes_below(child))]
    return found


@pytest.mark.parametrize(
    ("made", "count", "workers"), [("unit-*.json", 3, 1), ("task-*.json", 3, 2), ("shard-*.json", 1, 1)]
)
def test_a_killed_build_goes_on_where_it_was(tmp_path, monkeypatch, made, count, workers):
    settings = {"max_seq_length": 64, "num_shards": 8, "masking": "static", "dupe_factor": 3}
    write(tmp_path, make_texts(120))
    output = tmp_path / "shards"
    command = [sys.executable, str(ROOT / "tests/programs/corpus_build.py"), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([*command, str(workers)], env=environment)
    while len(list(output.glob(f".work/{made}"))) < count:
        assert process.poll() is None, "the build ended before it could be killed"
        time.sleep(0.001)
    below = processes_below(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (output / "manifest.json").exists()
    with pytest.raises(InputError, match="unfinished: give the same bert-corpus build command again"):
        corpus.open_table(str(output))
    until = time.monotonic() + 20
    while any(Path(f"/proc/{number}").exists() for number in below):
        assert time.monotonic() < until, "workers outlive the process that started them"
        time.sleep(0.05)
    finished = {path.stem for path in output.glob(".work/*.json")} - {"settings"}
    assert finished

    done: list[str] = []
    for method, name in (("tokenize", "unit-{:06d}"), ("sample", "task-{:06d}"), ("write", "shard-{:05d}")):
        work = getattr(Builder, method)

        def recorded(builder, number, work=work, name=name):
            done.append(name.format(number))
            work(builder, number)

        monkeypatch.setattr(Builder, method, recorded)
    monkeypatch.setattr(documents, "LARGEST_UNIT_BYTES", 1 << 15)
    build(tmp_path, **settings)
    assert not finished & set(done)
    resumed, done[:] = len(done), []
    build(tmp_path, "clean", **settings)
    assert len(done) == resumed + len(finished)
    assert content(output) == content(tmp_path / "clean")


def test_what_a_power_cut_left_of_a_file_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LARGEST_UNIT_BYTES", 1 << 14)
    write(tmp_path, make_texts(40))
    build(tmp_path, "whole", num_shards=3)

    def fail(self, number):
        raise KeyboardInterrupt

    cuts = {"unit-000000.tokens": 5, "unit-000001.json": 0, "unit-000002.documents": 0}
    for method, left in (("sample", cuts), ("write", {"task-000000.examples": 100, "task-000002.json": 3})):
        with monkeypatch.context() as patched:
            patched.setattr(Builder, method, fail)
            with pytest.raises(KeyboardInterrupt):
                build(tmp_path, "cut", num_shards=3)
        for name, size in left.items():
            (path,) = (tmp_path / "cut").rglob(name)
            assert path.stat().st_size > size
            os.truncate(path, size)
    build(tmp_path, "cut", num_shards=3)
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


def test_other_settings_or_input_in_the_same_folder_are_refused(tmp_path):
    texts = make_texts(20)
    write(tmp_path, texts)
    build(tmp_path, max_seq_length=64)
    before = content(tmp_path / "shards")
    build(tmp_path, max_seq_length=64)  # finished: nothing to do
    assert content(tmp_path / "shards") == before
    with pytest.raises(InputError, match=r"finished corpus of other settings.*max_seq_length \(64 and 32\)"):
        build(tmp_path, max_seq_length=32)
    # Unfinished work, as a kill in the first pass leaves it.
    words = tokenizer.load(str(tmp_path / "vocab.txt"))
    source = Source(str(tmp_path / "*.txt.part"))
    (tmp_path / "b.txt.part").write_text(
        "bad \udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "latin-1"
    )
    with pytest.raises(InputError, match=r"b\.txt\.part: byte 4"):
        build(tmp_path, "half")
    (tmp_path / "b.txt.part").write_text("w7 w8\n")
    build(tmp_path, "half")  # nothing was finished: another input may take the folder
    work = tmp_path / "again" / ".work"
    work.mkdir(parents=True)
    builder = Builder(
        source, Settings(), corpus_encoder.Words.of(words), work.parent, tuple(documents.find_units(source)[0])
    )
    (work / "settings.json").write_text(json.dumps(builder.facts | {"changed": builder.changed}))
    builder.tokenize(0)
    with pytest.raises(InputError, match=r"unfinished work of other settings.*short_seq_prob \(0.1 and 0.2\)"):
        build(tmp_path, "again", short_seq_prob=0.2)
    os.utime(tmp_path / "b.txt.part", (1, 1))
    with pytest.raises(InputError, match="an input file was changed"):
        build(tmp_path, "again")


# -- damage -------------------------------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path):
    write(tmp_path, make_texts(20))
    build(tmp_path, num_shards=3)
    return tmp_path / "shards"


def problems_of(shards: Path) -> str:
    return "; ".join(corpus.verify(shards)[1])


def test_an_intact_corpus_verifies(shards):
    assert problems_of(shards) == ""
    table, manifest = corpus.open_table(f"{shards}/*")
    assert table.num_rows == manifest["counts"]["examples"]
    some, _ = corpus.open_table(f"{shards}/shard-0000[02]-*.arrow")
    assert some.num_rows == sum(manifest["shards"][n]["examples"] for n in (0, 2))
    assert corpus.tokenizer_folder(f"{shards}/*") == shards / "tokenizer"
    words = tokenizer.load(folder=corpus.tokenizer_folder(str(shards)))
    assert (words.digest, words.vocab_size) == (manifest["tokenizer_digest"], manifest["vocab_size"])


@pytest.mark.parametrize("damage", ["flipped", "missing", "cut", "empty"])
def test_a_damaged_shard_is_named(shards, damage):
    path = shards / "shard-00001-of-00003.arrow"
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "flipped":
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    else:
        path.write_bytes(data[:-100] if damage == "cut" else b"")
    words = {
        "flipped": "is damaged",
        "missing": "is missing",
        "cut": "bytes, its manifest says",
        "empty": "is empty",
    }
    assert f"{path} " in problems_of(shards)
    assert words[damage] in problems_of(shards)
    if damage == "flipped":
        done = run("verify", f"--input_dir={shards}", folder=shards)
        assert done.returncode == 1
        assert re.fullmatch(rf"bert-corpus verify: error: {path} is damaged: .*\n", done.stderr)
    else:  # opening reads no content
        for patterns in (str(shards), f"{shards}/*", f"{shards}/shard-*.arrow"):
            with pytest.raises(InputError, match=rf"shard-00001-of-00003\.arrow.*{words[damage]}"):
                corpus.open_table(patterns)
    others, _ = corpus.open_table(f"{shards}/shard-00000-*,{shards}/shard-00002-*")
    assert others.num_rows > 0


def test_ids_beyond_the_vocabulary_are_found(shards):
    manifest = json.loads((shards / "manifest.json").read_text())
    (shards / "manifest.json").write_text(json.dumps(manifest | {"vocab_size": 100}))
    assert "input_ids holds" in problems_of(shards)


def test_shards_that_do_not_belong_together_are_refused(tmp_path, shards):
    build(tmp_path, "other", max_seq_length=64)
    with pytest.raises(InputError, match=r"differ in settings: max_seq_length \(128 and 64\)"):
        corpus.open_table(f"{shards}/*.arrow,{tmp_path}/other/*.arrow")
    build(tmp_path, "more", num_shards=2)
    table, manifest = corpus.open_table(f"{shards},{tmp_path}/more")
    assert table.num_rows == 2 * json.loads((shards / "manifest.json").read_text())["counts"]["examples"]
    assert len(manifest["shards"]) == 5
    shutil.copy(tmp_path / "other" / "shard-00000-of-00001.arrow", shards)
    with pytest.raises(InputError, match=r"shard-00000-of-00001\.arrow is not in the manifest"):
        corpus.open_table(f"{shards}/*")
    assert "is not in the manifest" in problems_of(shards)
    (shards / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"has no manifest\.json"):
        corpus.open_table(f"{shards}/*")
    with pytest.raises(InputError, match="no file matches"):
        corpus.open_table(f"{tmp_path}/nowhere/*")


def test_what_cannot_be_built_is_one_clear_line(tmp_path):
    write(tmp_path, make_texts(3))
    with pytest.raises(InputError, match=r"--num_shards 5000 is more than the corpus has examples"):
        build(tmp_path, "many", num_shards=5000)
    write(tmp_path, make_texts(1))
    with pytest.raises(InputError, match="the corpus is one document"):
        build(tmp_path, "single")
    assert build(tmp_path, "single_rows", next_sentence=False)[0]
    (tmp_path / "a.txt.part").write_text("\n\n   \n")
    with pytest.raises(InputError, match="there is no text in it"):
        build(tmp_path, "none")
    (tmp_path / "a.txt.part").write_text("w5 w6 unknown words\n\nw7 w8\n")
    with pytest.raises(InputError, match=r"first 6 tokens\): 33.3% of the tokens are \[UNK\].*--allow_unknown"):
        build(tmp_path, "unknown")
    for wrong in ({"max_seq_length": 4}, {"masked_lm_prob": 0.0}, {"dupe_factor": 0}, {"format": "tfrecord"}):
        with pytest.raises(InputError, match=f"--{next(iter(wrong))}"):
            Settings(**wrong)


# -- real text ----------------------------------------------------------------------------------------------------


def test_words_are_encoded_as_the_tokenizer_does(monkeypatch):
    """Odd characters, real text in two languages, and a cache that overflows all the time."""
    odd = [
        "a\x1cb c\x85d\x0be\tf",
        "x\u2028y\u3000z\u00a0w",
        "[SEP] ##ing",
        "é e\u0301 \u0301e",
        "㈜ 北京 don't--x",
        "中文，测试。x “é”—ы  、\u3400龥豈",
        "\ufffd \x00",
        "ΑΣ σ",
    ]
    novel = (real("text/british_fiction") / "Austen_Emma.txt").read_text(encoding="utf-8").split("\n")[:2000]
    reviews = real("nsmc/ratings_test.txt").read_text(encoding="utf-8").split("\n")[1:1000]
    lines = [*odd, *novel, "", *reviews]
    monkeypatch.setattr(corpus_encoder, "MOST_CACHED_WORDS", 500)
    for words, by_word in (
        (tokenizer.load(str(real("vocab/bert-base-uncased.txt"))), True),
        (tokenizer.load(str(real("vocab/bert-base-multilingual-cased.txt")), do_lower_case=False), True),
        (tokenizer.load(spm_model_file=str(real("vocab/albert_base_v1.model"))), False),
    ):
        expected, _ = words.encode(lines)
        encoder = corpus_encoder.Encoder(corpus_encoder.Words.of(words))
        assert encoder._by_word == by_word
        parts = [encoder(lines[at : at + 100]) for at in range(0, len(lines), 100)]
        assert np.concatenate([lengths for _, lengths in parts]).tolist() == [len(ids) for ids in expected]
        assert np.array_equal(np.concatenate([values for values, _ in parts]), np.concatenate(expected))


def test_lower_casing_that_splits_hangul_is_caught_at_once(tmp_path):
    reviews = real("nsmc/ratings_test.txt").read_text(encoding="utf-8").split("\n")[1:2000]
    (tmp_path / "a.txt").write_text("\n\n".join(line.split("\t")[1] for line in reviews), encoding="utf-8")
    words = tokenizer.load(str(real("vocab/bert-base-multilingual-cased.txt")))
    with pytest.raises(InputError, match=r"\[UNK\] with .*lower case True: check --vocab_file"):
        build_with(Source(str(tmp_path / "a.txt")), Settings(), words, tmp_path / "out")
    assert not list((tmp_path / "out").glob(".work/unit-*"))


def test_whole_words_of_a_sentencepiece_model_are_masked_whole(tmp_path):
    """`bert-corpus build --do_whole_word_mask` with ALBERT's model: a word begins at a piece with the mark."""
    novel = (real("text/british_fiction") / "Austen_Emma.txt").read_text(encoding="utf-8")
    (tmp_path / "a.txt").write_text(novel[:200_000], encoding="utf-8")
    text = ("--input_file=a.txt", "--split_sentences", "--document_separator=blanks", "--do_lower_case")
    model = f"--spm_model_file={real('vocab/albert_base_v1.model')}"
    whole = ("--masking=static", "--dupe_factor=1", "--do_whole_word_mask", "--nonext_sentence")
    done = run("build", *text, "--output_dir=shards", model, *whole, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    words = tokenizer.load(spm_model_file=str(real("vocab/albert_base_v1.model")), do_lower_case=True)
    pieces = words._backend.id_to_token
    table, _ = corpus.open_table(str(tmp_path / "shards"))
    cut = long = 0
    for row in table.to_pylist():
        masked, ids = set(row["masked_lm_positions"]), list(row["input_ids"])
        for place, original in zip(row["masked_lm_positions"], row["masked_lm_ids"], strict=True):
            ids[place] = original
        continues = [token not in words.special_ids and not pieces(token).startswith("\u2581") for token in ids]
        for place in masked:
            start = max(n for n in range(place + 1) if not continues[n])
            start += ids[start] in (words.cls_id, words.sep_id)  # a row may begin within a word
            stop = next((n for n in range(place + 1, len(ids)) if not continues[n]), len(ids))
            cut += not masked.issuperset(range(start, stop))
            long += stop - start > 1
    assert long > 500
    assert cut == 0


# -- Google's files -----------------------------------------------------------------------------------------------


def test_tfrecord_shards_hold_the_same_examples(tmp_path):
    """Read by TensorFlow's own parser, against the Arrow shards of the same settings."""
    import tensorflow as tf

    write(tmp_path, make_texts(10))
    rows, _ = build(tmp_path, "arrow", masking="static", dupe_factor=2, max_seq_length=48, num_shards=2)
    words, output = tokenizer.load(str(tmp_path / "vocab.txt")), tmp_path / "tfrecord"
    settings = Settings(format="tfrecord", masking="static", dupe_factor=2, max_seq_length=48, num_shards=2)
    build_with(Source(str(tmp_path / "*.part")), settings, words, output)
    shape = {"input_ids": 48, "input_mask": 48, "segment_ids": 48, "next_sentence_labels": 1}
    shape |= dict.fromkeys(("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"), 20)
    kinds = {name: tf.float32 if name == "masked_lm_weights" else tf.int64 for name in shape}
    features = {name: tf.io.FixedLenFeature([length], kinds[name]) for name, length in shape.items()}
    files = sorted(str(path) for path in output.glob("shard-*.tfrecord"))
    records = [tf.io.parse_single_example(record, features) for record in tf.data.TFRecordDataset(files)]
    assert len(records) == len(rows)
    for record, row in zip(records, rows, strict=True):
        found = {name: value.numpy().tolist() for name, value in record.items()}
        length, masked = len(row["input_ids"]), len(row["masked_lm_ids"])
        assert found["input_ids"] == row["input_ids"] + [0] * (48 - length)
        assert found["input_mask"] == [1] * length + [0] * (48 - length)
        types = [0] * row["sentence_a_tokens"] + [1] * (length - row["sentence_a_tokens"])
        assert found["segment_ids"] == types + [0] * (48 - length)
        assert found["masked_lm_positions"] == row["masked_lm_positions"] + [0] * (20 - masked)
        assert found["masked_lm_ids"] == row["masked_lm_ids"] + [0] * (20 - masked)
        assert found["masked_lm_weights"] == [1.0] * masked + [0.0] * (20 - masked)
        assert found["next_sentence_labels"] == [row["is_random_next"]]
    assert problems_of(output) == ""
    with pytest.raises(InputError, match="holds tfrecord shards"):
        corpus.open_table(str(output))


# -- the program --------------------------------------------------------------------------------------------------


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "tasks.corpus", *arguments],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_ranks_under_mpirun_give_the_bytes_of_one(tmp_path):
    """As a user starts it, with two workers on each rank; and one line for text that cannot be read."""
    write(tmp_path, make_texts(30), "a.txt")
    given = ("build", "--input_file=a.txt", "--vocab_file=vocab.txt", "--num_shards=3")
    assert run(*given, "--output_dir=one", "--num_workers=1", folder=tmp_path).returncode == 0
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
    done = run("build", *google, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "becomes a folder of Arrow shards; --format tfrecord writes Google's" in done.stderr
    done = run("build", *google, "--format=tfrecord", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "bert-corpus build: error: --output_dir tf_examples.tfrecord holds"
    )
    done = run("build", "--input_file=nothing*", "--output_dir=x", "--vocab_file=vocab.txt", folder=tmp_path)
    assert (done.returncode, done.stderr) == (
        1, "bert-corpus build: error: --input_file nothing*: no file matches\n",
    )  # fmt: skip
    done = run("build", *google, "--dupe_factor=0", folder=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--dupe_factor is 0, needed is at least 1" in done.stderr


def test_a_vocabulary_of_the_corpus_builds_the_corpus(tmp_path):
    novel = (real("text/british_fiction") / "Austen_Emma.txt").read_text(encoding="utf-8")
    (tmp_path / "a.txt").write_text(novel[:300_000], encoding="utf-8")
    text = ("--input_file=a.txt", "--split_sentences", "--document_separator=file")
    done = run("vocab", *text, "--output_dir=v", "--vocab_size=2000", "--max_bytes=200000", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run("build", *text, "--output_dir=shards", "--model=v", "--nonext_sentence", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    table, manifest = corpus.open_table(str(tmp_path / "shards"))
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


def test_the_number_of_shards_follows_the_tokens():
    """2 million tokens each up to 16 shards, then 67 million each."""
    from bert.corpus.builder import shards_by_size

    million = 1 << 20
    sizes = [0, 1, 4 * million - 1, 4 * million, 33 * million, 16 * 64 * million, 16 * 64 * million + 1]
    assert [shards_by_size(tokens) for tokens in sizes] == [1, 1, 1, 2, 16, 16, 17]
