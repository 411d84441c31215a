"""Builds of corpora: the same bytes whoever does the work, and real faults."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from corpora import build, build_with, content, make_texts, settings_of, write
from mpi import ROOT

from bert.corpus import inputs, tokens
from bert.corpus.encoder import Words
from bert.corpus.passes import CorpusWork, shards_by_size
from bert.corpus.shards import open_table
from bert.text import tokenizer
from ringbert.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Written texts, for tests that only read."""
    folder = tmp_path_factory.mktemp("corpus")
    write(folder, make_texts(80))
    return folder


@pytest.fixture
def small_units(monkeypatch):
    monkeypatch.setattr(inputs, "LARGEST_UNIT_BYTES", 1 << 14)
    monkeypatch.setattr(tokens, "BLOCK_TOKENS", 1 << 10)


@pytest.mark.usefixtures("small_units")
def test_ranks_give_the_same_bytes(folder):
    settings = {"num_shards": 5, "dupe_factor": 2}
    build(folder, "one", **settings)
    words, barrier, failed = tokenizer.load(str(folder / "vocab.txt")), threading.Barrier(2), []

    def rank(number: int) -> None:
        try:
            two = settings_of(folder, "two", **settings)
            build_with(two, words, share=(number, 2), barrier=barrier.wait)
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
    monkeypatch.setattr(inputs, "LARGEST_UNIT_BYTES", 1 << 14)
    write(tmp_path, make_texts(40))
    build(tmp_path, "one", num_shards=3)
    build(tmp_path, "two", workers=2, num_shards=3)
    assert content(tmp_path / "one") == content(tmp_path / "two")


@pytest.mark.usefixtures("small_units")
def test_offsets_that_find_no_room_in_memory_are_read(folder, monkeypatch):
    kept, _ = build(folder, "kept", num_shards=1)
    for number, most in enumerate((0, 1 << 11)):  # none, some
        monkeypatch.setattr(tokens, "MOST_KEPT_BYTES", most)
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
    ("markers", "count", "workers"),
    [
        pytest.param("unit-*.json", 3, 1, marks=pytest.mark.slow),
        ("task-*.json", 3, 2),
        pytest.param("shard-*.json", 1, 1, marks=pytest.mark.slow),
    ],
)
def test_a_killed_build_continues_where_it_was(tmp_path, monkeypatch, markers, count, workers):
    settings = {"max_seq_length": 64, "num_shards": 8, "masking": "static", "dupe_factor": 3}
    write(tmp_path, make_texts(120))
    output = tmp_path / "shards"
    command = [sys.executable, str(ROOT / "tests/programs/corpus_build.py"), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([*command, str(workers)], env=environment)
    while len(list(output.glob(f".work/{markers}"))) < count:
        assert process.poll() is None, "the build ended before it could be killed"
        time.sleep(0.001)
    below = processes_below(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (output / "manifest.json").exists()
    with pytest.raises(InputError, match="unfinished: run the same bert-corpus build command again"):
        open_table(str(output))
    until = time.monotonic() + 20
    while any(Path(f"/proc/{number}").exists() for number in below):
        assert time.monotonic() < until, "workers outlive the process that started them"
        time.sleep(0.05)
    finished = {path.stem for path in output.glob(".work/*.json")} - {"settings"}
    assert finished

    done: list[str] = []
    for method, name in (("tokenize", "unit-{:06d}"), ("sample", "task-{:06d}"), ("write", "shard-{:05d}")):
        original = getattr(CorpusWork, method)

        def recorded(work, number, original=original, name=name):
            done.append(name.format(number))
            original(work, number)

        monkeypatch.setattr(CorpusWork, method, recorded)
    monkeypatch.setattr(inputs, "LARGEST_UNIT_BYTES", 1 << 15)
    build(tmp_path, **settings)
    assert not finished & set(done)
    resumed, done[:] = len(done), []
    build(tmp_path, "clean", **settings)
    assert len(done) == resumed + len(finished)
    assert content(output) == content(tmp_path / "clean")


def test_what_a_power_cut_left_of_a_file_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "LARGEST_UNIT_BYTES", 1 << 14)
    write(tmp_path, make_texts(40))
    build(tmp_path, "whole", num_shards=3)

    def fail(self, number):
        raise KeyboardInterrupt

    cuts = {"unit-000000.tokens": 5, "unit-000001.json": 0, "unit-000002.documents": 0}
    for method, left in (("sample", cuts), ("write", {"task-000000.examples": 100, "task-000002.json": 3})):
        with monkeypatch.context() as patched:
            patched.setattr(CorpusWork, method, fail)
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
    with pytest.raises(InputError, match=r"finished corpus with other settings.*max_seq_length \(64 and 32\)"):
        build(tmp_path, max_seq_length=32)
    # Unfinished work, as a kill in the first pass leaves it.
    words = tokenizer.load(str(tmp_path / "vocab.txt"))
    (tmp_path / "b.txt.part").write_text(
        "bad \udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "latin-1"
    )
    with pytest.raises(InputError, match=r"b\.txt\.part: byte 4"):
        build(tmp_path, "half")
    (tmp_path / "b.txt.part").write_text("w7 w8\n")
    build(tmp_path, "half")  # nothing was finished: another input may take the folder
    work = tmp_path / "again" / ".work"
    work.mkdir(parents=True)
    settings = settings_of(tmp_path, "again")
    unfinished = CorpusWork(settings, Words.of(words), tuple(inputs.find_units(settings)[0]))
    (work / "settings.json").write_text(json.dumps(unfinished.facts | {"changed": unfinished.changed}))
    unfinished.tokenize(0)
    with pytest.raises(InputError, match=r"unfinished work with other settings.*short_seq_prob \(0.1 and 0.2\)"):
        build(tmp_path, "again", short_seq_prob=0.2)
    os.utime(tmp_path / "b.txt.part", (1, 1))
    with pytest.raises(InputError, match="an input file has changed"):
        build(tmp_path, "again")


# -- what is refused ----------------------------------------------------------------------------------------------


def test_what_cannot_be_built_is_one_clear_line(tmp_path):
    write(tmp_path, make_texts(3))
    with pytest.raises(InputError, match=r"--num_shards must be at most the number of examples, \d+, got 5000"):
        build(tmp_path, "many", num_shards=5000)
    write(tmp_path, make_texts(1))
    with pytest.raises(InputError, match="the corpus is one document"):
        build(tmp_path, "single")
    assert build(tmp_path, "single_rows", next_sentence=False)[0]
    (tmp_path / "a.txt.part").write_text("\n\n   \n")
    with pytest.raises(InputError, match="contains no text"):
        build(tmp_path, "none")
    (tmp_path / "a.txt.part").write_text("w5 w6 unknown words\n\nw7 w8\n")
    with pytest.raises(InputError, match=r"first 6 tokens\): 33.3% of the tokens are \[UNK\].*--allow_unknown"):
        build(tmp_path, "unknown")
    tfrecord = {"format": "tfrecord"}
    for wrong in (
        {"max_seq_length": 4}, {"masked_lm_prob": 0.0}, {"dupe_factor": 0}, {"short_seq_prob": 1.5},
        {"num_shards": 0}, tfrecord | {"masking": "dynamic"}, tfrecord | {"next_sentence": False},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^--{next(iter(wrong))} "):
            settings_of(tmp_path, **wrong)
    with pytest.raises(ValueError, match="give either --input_file or --dataset_name"):
        settings_of(tmp_path, dataset_name="some")


def test_settings_are_recorded_as_ever(tmp_path):
    """Corpora and unfinished builds of earlier versions hold these entries and are compared with them."""
    write(tmp_path, make_texts(4))
    static = build(tmp_path, "static", masking="static", short_seq_prob=0.2)[1]
    recorded = {
        "max_seq_length": 128, "next_sentence": True, "short_seq_prob": 0.2, "format": "arrow",
        "masking": "static", "dupe_factor": 10, "masked_lm_prob": 0.15, "max_predictions_per_seq": 20,
        "do_whole_word_mask": False, "random_seed": 12345, "num_shards": None, "split_sentences": False,
        "document_separator": "blank", "text_column": "text",
    }  # fmt: skip
    assert list(static["settings"].items()) == list(recorded.items())  # in this order: shards hold it as text
    dynamic = build(tmp_path, "dynamic", num_shards=2)[1]
    recorded |= {"short_seq_prob": 0.1, "masking": "dynamic", "dupe_factor": 1}
    assert dynamic["settings"] == recorded
    assert (static["num_shards"], dynamic["num_shards"]) == ("by size", 2)
    assert static["input"] | {"digest": ""} == {
        "input_file": f"{tmp_path}/*.txt.part", "dataset_name": None, "dataset_config": None, "files": 1,
        "bytes": (tmp_path / "a.txt.part").stat().st_size, "digest": "",
    }  # fmt: skip
    assert list(static) == [
        "format_version", "format", "settings", "num_shards", "tokenizer_digest", "vocab_size", "do_lower_case",
        "input", "counts", "shards",
    ]  # fmt: skip


def test_the_number_of_shards_follows_the_tokens():
    """2 million tokens each up to 16 shards, then 67 million each."""
    million = 1 << 20
    sizes = [0, 1, 4 * million - 1, 4 * million, 33 * million, 16 * 64 * million, 16 * 64 * million + 1]
    assert [shards_by_size(tokens) for tokens in sizes] == [1, 1, 1, 2, 16, 16, 17]
