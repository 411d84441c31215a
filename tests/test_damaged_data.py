"""Damaged data files: what is read is what was written, or it is refused in one line that names the file.

Each reader runs in a process of its own, which reads one damaged file after the other: a crash there is seen here.
The files are damaged from seeds.
"""

import gzip
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from corpora import build, build_with, make_texts, settings_of, write
from real_data import real
from squad_files import make_entries, write_squad
from texts import letters_tokenizer

from bert.corpus import shard_writer
from bert.corpus.examples import Examples
from bert.corpus.shards import open_shards, open_table, verify
from bert.corpus.tfrecord_format import HEADER_BYTES, masked_crc32c
from bert.text import tokenizer
from ringbert import files
from ringbert.errors import InputError
from ringbert.hashing import sha256

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tests" / "programs" / "read_damaged.py"
FEW = 60  # cases of a default test
MANY = 1000  # of a slow one
AMOUNTS = [FEW, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]


def outcomes(kind: str, cases: list[list]) -> list[tuple[str, str]]:
    """What became of each case: "read", "refused", "failed", or "died" with the signal's name."""
    results: list[tuple[str, str]] = []
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RUST_BACKTRACE": "0"}
    while len(results) < len(cases):
        lines = "".join(json.dumps(case) + "\n" for case in cases[len(results) :])
        done = subprocess.run(
            [sys.executable, PROGRAM, kind],
            input=lines,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        results += [tuple(json.loads(line)) for line in done.stdout.splitlines()]
        if len(results) < len(cases):
            assert done.returncode < 0, done.stderr
            results.append(("died", signal.Signals(-done.returncode).name))
    return results


def flipped(data: bytes, seed: int) -> bytes:
    """The data with one bit flipped."""
    place, bit = divmod(random.Random(seed).randrange(8 * len(data)), 8)
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def damaged(data: bytes, seed: int) -> bytes:
    """The data with a bit flipped, or a span of it removed, doubled, zeroed, or replaced by random bytes."""
    draw = random.Random(seed)
    start = draw.randrange(len(data))
    stop = min(len(data), start + (1 << draw.randrange(12)))
    match draw.randrange(8):
        case 0 | 1 | 2:
            return flipped(data, seed)
        case 3:
            return data[:start]
        case 4:
            return data[:start] + data[stop:]
        case 5:
            return data[:stop] + data[start:]
        case 6:
            return data[:start] + bytes(stop - start) + data[stop:]
        case _:
            return data[:start] + draw.randbytes(stop - start) + data[stop:]


def assert_refused_or_unchanged(results: list[tuple[str, str]], intact: str, file: str) -> int:
    """Each case was read as `intact` or refused in one line that names the file; returns the number refused."""
    for number, (what, text) in enumerate(results):
        assert what in ("read", "refused"), (number, what, text)
        if what == "read":
            assert text == intact, (number, "damaged, but trained on")
        else:
            assert file in text, (number, text)
            assert "\n" not in text
            assert len(text) < 1000
    return sum(what == "refused" for what, _ in results)


# -- Arrow shards -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> Path:
    """A folder with a corpus of many pieces, `new`, the same from before pieces had checksums, `old`, and `tf`."""
    folder = tmp_path_factory.mktemp("corpora")
    write(folder, make_texts(60))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_writer, "PIECE_TOKENS", 64 * 12)
        build(folder, "new", max_seq_length=64, num_shards=2)
    shutil.copytree(folder / "new", folder / "old")
    manifest = json.loads((folder / "new" / "manifest.json").read_text())
    assert all(len(shard["pieces"]) > 5 for shard in manifest["shards"])
    for shard in manifest["shards"]:
        del shard["pieces"], shard["rows_per_piece"]
    (folder / "old" / "manifest.json").write_text(json.dumps(manifest))
    settings = settings_of(folder, "tf", format="tfrecord", dupe_factor=1, max_seq_length=48, num_shards=1)
    build_with(settings, tokenizer.load(str(folder / "vocab.txt")))
    return folder


def copies(folder: Path, file: str, contents: list[bytes], into: Path) -> list[Path]:
    """A copy of a folder for each content of its file `file`; the other files are links."""
    made = []
    for number, content in enumerate(contents):
        copy = into / f"case-{number}"
        copy.mkdir(parents=True)
        for path in folder.iterdir():
            if path.name == file:
                (copy / file).write_bytes(content)
            elif path.is_dir():
                (copy / path.name).symlink_to(path)
            else:
                os.link(path, copy / path.name)
        made.append(copy)
    return made


@pytest.mark.parametrize("kind", ["new", pytest.param("old", marks=pytest.mark.slow)])
def test_none_of_100_flipped_bits_in_a_shard_is_trained_on(corpora, tmp_path, kind):
    file = "shard-00001-of-00002.arrow"
    data = (corpora / kind / file).read_bytes()
    folders = copies(corpora / kind, file, [data, *(flipped(data, seed) for seed in range(100))], tmp_path)
    (_, intact), *results = outcomes("shards", [[str(folder), str(tmp_path / "cache")] for folder in folders])
    assert assert_refused_or_unchanged(results, intact, file) == 100
    assert intact == outcomes("shards", [[str(corpora / "new")]])[0][1]  # old and new are the same rows


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["new", "old"])
def test_nothing_of_a_damaged_shard_is_trained_on(corpora, tmp_path, kind):
    file = "shard-00000-of-00002.arrow"
    data = (corpora / kind / file).read_bytes()
    contents = [damaged(data, seed) for seed in range(MANY)]
    folders = copies(corpora / kind, file, [data, *contents], tmp_path)
    (_, intact), *results = outcomes("shards", [[str(folder), str(tmp_path / "cache")] for folder in folders])
    changed = sum(content != data for content in contents)
    assert assert_refused_or_unchanged(results, intact, file) == changed > MANY * 0.9


@pytest.mark.parametrize("number", AMOUNTS)
def test_a_damaged_manifest_is_refused_or_means_the_same(corpora, tmp_path, number):
    data = (corpora / "new" / "manifest.json").read_bytes()
    contents = [data, *(damaged(data, seed) for seed in range(number))]
    folders = copies(corpora / "new", "manifest.json", contents, tmp_path)
    (_, intact), *results = outcomes("shards", [[str(folder)] for folder in folders])
    assert assert_refused_or_unchanged(results, intact, str(tmp_path)) > 0.5 * number


@pytest.mark.parametrize("value", [None, True, -1, 0, 1.5, 1 << 70, "x", "../x", [], [1], {}, {"a": 1}], ids=repr)
def test_a_manifest_with_values_of_another_type_is_one_line(corpora, tmp_path, value):
    """Every value that is used, in turn."""
    manifest = json.loads((corpora / "new" / "manifest.json").read_text())
    shard = manifest["shards"][1]
    replaced = [
        *(manifest | {name: value} for name in ("format", "settings", "tokenizer_digest", "vocab_size", "shards")),
        *(manifest | {"settings": manifest["settings"] | {name: value}} for name in manifest["settings"]),
        *(
            manifest | {"shards": [manifest["shards"][0], shard | {name: value}]}
            for name in shard
            if name != "tokens"
        ),
        manifest | {"shards": [*manifest["shards"], value]},
        manifest | {"counts": manifest["counts"] | {"examples": value}},
        manifest | {"shards": [manifest["shards"][0], shard | {"pieces": [value] * len(shard["pieces"])}]},
    ]
    contents = [json.dumps(one).encode() for one in replaced]
    folders = copies(corpora / "new", "manifest.json", contents, tmp_path)
    intact = outcomes("shards", [[str(corpora / "new")]])[0][1]
    results = outcomes("shards", [[str(folder)] for folder in folders])
    refused = assert_refused_or_unchanged(results, intact, str(tmp_path))
    read = [one for one, (what, _) in zip(replaced, results, strict=True) if what == "read"]
    # Equal values mean the same (1 and true); the vocabulary's digest is compared with the vocabulary, later.
    assert all(one | {"tokenizer_digest": manifest["tokenizer_digest"]} == manifest for one in read)
    assert refused > 20


def test_a_damaged_corpus_does_not_train(corpora, tmp_path, monkeypatch):
    """The program, from the command line on: one line, and no weights are written."""
    from test_pretraining import CONFIG, in_process

    monkeypatch.setenv("RINGBERT_CACHE", str(tmp_path / "cache"))
    vocab_size = json.loads((corpora / "new" / "manifest.json").read_text())["vocab_size"]
    (tmp_path / "bert_config.json").write_text(json.dumps(CONFIG | {"vocab_size": vocab_size}))
    file = "shard-00001-of-00002.arrow"
    data = (corpora / "new" / file).read_bytes()
    (folder,) = copies(corpora / "new", file, [flipped(data, 7)], tmp_path)
    flags = [
        "--do_train", f"--input_file={folder}", f"--output_dir={tmp_path / 'out'}", "--max_seq_length=64",
        f"--bert_config_file={tmp_path}/bert_config.json", "--num_train_epochs=1",
    ]  # fmt: skip
    with pytest.raises(InputError, match=rf"^--input_file: {folder}/{file} is damaged: .*bert-corpus verify"):
        in_process(flags, tmp_path / "out")
    assert not (tmp_path / "out" / "model").exists()


# -- the record of what was checked -------------------------------------------------------------------------------


def test_only_pieces_that_are_used_are_checked_and_only_once(corpora, tmp_path, monkeypatch):
    from distributed.rows import BatchRows

    cache, checked = tmp_path / "cache", []
    real_value = google_crc32c.value
    monkeypatch.setattr(google_crc32c, "value", lambda data: checked.append(len(data)) or real_value(data))

    def take(rows: list[int], folder: Path = corpora / "new") -> int:
        """Takes rows as a new run does; the number of pieces that it checks."""
        checked.clear()
        shards, _ = open_shards(str(folder), cache)
        assert not checked
        BatchRows(shards).take(np.array(rows))
        return len(checked)

    assert take([0, 1, 2]) == 2  # the end of the file, and a batch
    assert take([2, 1]) == 0
    assert take([0, 13, 14]) == 1
    num_rows = sum(shard.num_rows for shard in open_shards(str(corpora / "new"))[0])
    assert take([num_rows - 1]) == 2
    everything = list(range(num_rows))
    (copy,) = copies(corpora / "new", "none", [b""], tmp_path)
    pieces = sum(len(shard["pieces"]) for shard in open_shards(str(copy))[1]["shards"])
    assert take(everything, copy) == pieces
    assert take(everything, copy) == 0
    path = copy / "shard-00000-of-00002.arrow"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)  # the same bytes in a new file
    assert take(everything, copy) == pieces
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 1))
    assert take([0], copy) == 2
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    assert take([0], copy) == 2


def test_a_damaged_piece_is_found_when_its_first_row_is_used(corpora, tmp_path):
    """With a record in the cache, without one, and where none can be written."""
    from distributed.rows import BatchRows

    file = "shard-00000-of-00002.arrow"
    data = (corpora / "new" / file).read_bytes()
    pieces = open_shards(str(corpora / "new"))[1]["shards"][0]["pieces"]
    place = pieces[0][0] + pieces[1][0] // 2  # in the second batch of 12 rows
    content = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
    (folder,) = copies(corpora / "new", file, [content], tmp_path)
    (tmp_path / "file").touch()
    for cache in (tmp_path / "cache", tmp_path / "cache", None, tmp_path / "file"):
        rows = BatchRows(open_shards(str(folder), cache)[0])
        rows.take(np.array([11, 0, 24]))
        for _ in range(2):
            with pytest.raises(InputError, match=f"{file} is damaged: .* bytes {pieces[0][0]:,} to "):
                rows.take(np.array([0, 12]))
            with pytest.raises(InputError, match="is damaged"):
                rows.lengths_at("input_ids", np.array([23]))
    with pytest.raises(InputError, match="is damaged"):
        open_table(str(folder))
    assert len(verify(folder)[1]) == 1


def test_columns_of_another_type_are_refused(corpora, tmp_path):
    """A shard and a manifest that agree, made by another program."""
    folder = tmp_path / "corpus"
    shutil.copytree(corpora / "old", folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    shard = manifest["shards"][0]
    path = folder / shard["file"]
    (folder / manifest["shards"][1]["file"]).unlink()
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    manifest["shards"], manifest["counts"]["examples"] = [shard], shard["examples"]
    for changed, words in [
        (table.rename_columns(["ids", *table.column_names[1:]]), r"its columns are ids \(large_list"),
        (table.drop_columns(["is_random_next"]), "its columns are input_ids"),
        (table.append_column("more", table["is_random_next"]), "more"),
        (table.set_column(1, "sentence_a_tokens", table["sentence_a_tokens"].cast(pa.int64())), "int64"),
        (table.set_column(0, "input_ids", table["input_ids"].cast(pa.list_(pa.uint16()))), r"list<"),
        (table.slice(1), r"examples, its manifest says"),
        (None, "does not hold its settings"),
    ]:
        metadata = {} if changed is None else table.schema.metadata
        changed = (table if changed is None else changed).replace_schema_metadata(metadata)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, changed.schema) as writer:
            writer.write_table(changed)
        shard |= {"bytes": path.stat().st_size, "sha256": sha256(path)}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(InputError, match=words):
            open_table(str(folder))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["new", "old"])
def test_the_check_takes_a_small_share_of_the_time_to_the_first_step(tmp_path, monkeypatch, capsys, kind):
    """A corpus of 1 GB, not in the page cache, with pieces of the usual size; bert-pretraining on one rank.

    Without the import of TensorFlow, which the share does not count. Pieces: less than 2 %. Shards from before
    pieces had checksums are hashed whole, so their share is only printed.
    """
    from test_pretraining import CONFIG, in_process

    from bert.corpus.shard_reader import Shard
    from distributed.train import Log

    monkeypatch.setenv("RINGBERT_CACHE", str(tmp_path / "cache"))
    manifest = write_random_corpus(tmp_path / "corpus", num_shards=16, examples=250_000, length=128)
    if kind == "old":
        for shard in manifest["shards"]:
            del shard["pieces"], shard["rows_per_piece"]
        (tmp_path / "corpus" / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "bert_config.json").write_text(
        json.dumps(CONFIG | {"vocab_size": manifest["vocab_size"], "max_position_embeddings": 128})
    )
    for path in (tmp_path / "corpus").glob("*.arrow"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    checks, first = [], []
    check, log_step = Shard._check, Log.step

    def timed_check(shard: Shard, piece: int) -> None:
        began = time.perf_counter()
        check(shard, piece)
        checks.append((began, time.perf_counter() - began))

    def timed_step(log: Log, step: object) -> None:
        first.append(time.perf_counter())
        log_step(log, step)

    monkeypatch.setattr(Shard, "_check", timed_check)
    monkeypatch.setattr(Log, "step", timed_step)
    flags = [
        "--do_train", f"--input_file={tmp_path}/corpus", f"--output_dir={tmp_path}/out", "--train_batch_size=32",
        f"--bert_config_file={tmp_path}/bert_config.json", "--num_train_steps=3", "--num_warmup_steps=1",
    ]  # fmt: skip
    began = time.perf_counter()
    in_process(flags, tmp_path / "out")
    seconds, checked = first[0] - began, sum(took for start, took in checks if start < first[0])
    with capsys.disabled():
        print(f"\n{kind}: first step after {seconds:.2f} s, checks {checked:.3f} s, {checked / seconds:.2%}")
    assert checked > 0
    if kind == "new":
        assert checked < 0.02 * seconds


def write_random_corpus(folder: Path, num_shards: int, examples: int, length: int) -> dict:
    """A corpus of random tokens, with `examples` in each shard; its manifest."""
    (folder / "text").mkdir(parents=True)
    write(folder / "text", make_texts(20))
    _, manifest = build(folder / "text", max_seq_length=length)
    shutil.copytree(folder / "text" / "shards" / "tokenizer", folder / "tokenizer")
    settings = settings_of(folder / "text", max_seq_length=length)
    chance = np.random.default_rng(0)

    def batches(size: int = 10_000):
        offsets = np.arange(size + 1) * length
        values = chance.integers(5, manifest["vocab_size"], size * length, np.uint16)
        for _ in range(examples // size):
            yield Examples(
                np.zeros(size, np.uint64), offsets, np.roll(values, 1), np.full(size, length // 2, np.int32),
                np.zeros(size, np.int8), np.zeros(size + 1, np.int64), np.zeros(0, np.int32), values[:0],
            )  # fmt: skip

    names = [shard_writer.shard_name(number, num_shards, "arrow") for number in range(num_shards)]
    kinds = settings, np.dtype(np.uint16), manifest["settings"]
    manifest["shards"] = [shard_writer.write_shard(folder / name, batches(), *kinds) for name in names]
    manifest["counts"]["examples"] = num_shards * examples
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return json.loads((folder / "manifest.json").read_text())


# -- TFRecord files -----------------------------------------------------------------------------------------------


def record_case(patterns: Path, cache: Path, vocab_size: int) -> list:
    return [str(patterns), str(cache), 48, 20, vocab_size]


@pytest.fixture(scope="module")
def tfrecord(corpora) -> tuple[Path, int]:
    """The file of a corpus, alone as others make it, and the size of its vocabulary."""
    folder = corpora / "alone"
    folder.mkdir()
    shutil.copy(corpora / "tf" / "shard-00000-of-00001.tfrecord", folder / "part.tfrecord")
    return folder / "part.tfrecord", json.loads((corpora / "tf" / "manifest.json").read_text())["vocab_size"]


@pytest.mark.parametrize("number", AMOUNTS)
def test_a_damaged_tfrecord_file_is_refused(tfrecord, tmp_path, number):
    file, vocab_size = tfrecord
    data, paths = file.read_bytes(), []
    for seed in range(number):
        paths.append(tmp_path / f"{seed}.tfrecord")
        paths[-1].write_bytes(damaged(data, seed))
    cases = [record_case(path, tmp_path / "cache", vocab_size) for path in [file, *paths]]
    (_, intact), *results = outcomes("records", cases)
    changed = sum(path.read_bytes() != data for path in paths)
    assert assert_refused_or_unchanged(results, intact, str(tmp_path)) == changed > 0.8 * number


def test_a_cut_between_two_records_is_seen_by_the_manifest(corpora, tmp_path):
    data = (corpora / "tf" / "shard-00000-of-00001.tfrecord").read_bytes()
    second = int.from_bytes(data[:8], "little") + 16
    (folder,) = copies(corpora / "tf", "shard-00000-of-00001.tfrecord", [data[second:]], tmp_path)
    results = outcomes("records", [record_case(folder, tmp_path / "cache", 10**5)])
    assert results[0][0] == "refused"
    assert "its manifest says" in results[0][1]


@pytest.mark.parametrize("number", AMOUNTS)
def test_a_tfrecord_file_of_damaged_examples_is_refused_or_fits(tfrecord, tmp_path, number):
    """The checksums are right: another program wrote such examples. What is read has ids of the vocabulary."""
    file, vocab_size = tfrecord
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    example, rest = data[HEADER_BYTES : HEADER_BYTES + length], data[length + 16 :]
    paths = []
    for seed in range(number):
        content = damaged(example, seed)
        header = len(content).to_bytes(8, "little")
        record = header + masked_crc32c(header).to_bytes(4, "little")
        record += content + masked_crc32c(content).to_bytes(4, "little")
        paths.append(tmp_path / f"{seed}.tfrecord")
        paths[-1].write_bytes(record + rest)
    cases = [record_case(path, tmp_path / "cache", vocab_size) for path in [file, *paths]]
    results = outcomes("records", cases)
    assert_no_crash(results, str(tmp_path))
    assert sum(what == "refused" for what, _ in results) > 0.2 * number


def assert_no_crash(results: list[tuple[str, str]], file: str) -> None:
    """Each case was read, as something, or refused in one line that names the file."""
    for number, (what, text) in enumerate(results):
        assert what in ("read", "refused"), (number, what, text)
        assert what == "read" or (file in text and "\n" not in text and len(text) < 1000), (number, text)


@pytest.mark.parametrize("number", AMOUNTS)
def test_a_damaged_index_of_records_is_made_again(tfrecord, tmp_path, number):
    file, vocab_size = tfrecord
    (_, intact), _ = outcomes("records", [record_case(file, tmp_path / "cache", vocab_size)] * 2)
    (index,) = (tmp_path / "cache").iterdir()
    data, cases = index.read_bytes(), []
    for seed in range(number):
        cases.append(record_case(file, tmp_path / f"cache-{seed}", vocab_size))
        (tmp_path / f"cache-{seed}").mkdir()
        (tmp_path / f"cache-{seed}" / index.name).write_bytes(damaged(data, seed))
    results = outcomes("records", cases)
    assert set(results) == {("read", intact)}
    assert {(tmp_path / f"cache-{seed}" / index.name).read_bytes() for seed in range(number)} == {data}


# -- caches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", AMOUNTS)
def test_damaged_windows_in_the_cache_are_made_again(tmp_path, number):
    """Every file of the cache in turn: Arrow files, their manifest, and the record of the questions' file."""
    letters = letters_tokenizer(tmp_path)
    questions = write_squad(tmp_path / "a.json", make_entries(20, 0))
    case = [str(questions), letters.source]
    (_, intact), = outcomes("windows", [[*case, str(tmp_path / "cache")]])  # fmt: skip
    names = [path.relative_to(tmp_path / "cache") for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert len(names) == 4
    cases = []
    for seed in range(number):
        cache, name = tmp_path / f"cache-{seed}", names[seed % len(names)]
        shutil.copytree(tmp_path / "cache", cache)
        (cache / name).write_bytes(damaged((cache / name).read_bytes(), seed))
        cases.append([*case, str(cache)])
    assert set(outcomes("windows", cases)) == {("read", intact)}


@pytest.mark.slow
def test_a_record_of_questions_with_values_of_another_type_is_made_again(tmp_path):
    letters = letters_tokenizer(tmp_path)
    case = [str(write_squad(tmp_path / "a.json", make_entries(3, 0))), letters.source]
    (_, intact), = outcomes("windows", [[*case, str(tmp_path / "cache")]])  # fmt: skip
    (record,) = (tmp_path / "cache").glob("*.json")
    values, cases = json.loads(record.read_text()), []
    for name in values:
        for value in (None, 5, "../../x", [], {}, [[]]):
            cache = tmp_path / f"cache-{len(cases)}"
            shutil.copytree(tmp_path / "cache", cache)
            (cache / record.name).write_text(json.dumps(values | {name: value}))
            cases.append([*case, str(cache)])
    assert set(outcomes("windows", cases)) == {("read", intact)}


# -- text, Parquet, vocabularies ----------------------------------------------------------------------------------


def write_table(path: Path, **options) -> Path:
    draw = random.Random(0)
    texts = ["".join(draw.choices("abc dé한\n", k=draw.randrange(60))) for _ in range(300)]
    columns = {"text": texts, "label": [draw.choice(["yes", "no"]) for _ in texts]}
    pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=100, **options)
    return path


@pytest.mark.parametrize("number", AMOUNTS)
@pytest.mark.parametrize("reader", ["corpus_text", "classifier_table"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_a_damaged_parquet_file_is_read_or_one_line(tmp_path, reader, compression, number):
    data = write_table(tmp_path / "whole.parquet", compression=compression).read_bytes()
    paths = [tmp_path / f"{seed}.parquet" for seed in range(number)]
    for seed, path in enumerate(paths):
        path.write_bytes(damaged(data, seed))
    results = outcomes(reader, [[str(path)] for path in [tmp_path / "whole.parquet", *paths]])
    assert results[0][0] == "read"
    assert_no_crash(results, str(tmp_path))


def test_flipped_bits_in_parquet_pages_with_checksums_are_refused(tmp_path):
    path = write_table(tmp_path / "whole.parquet", compression="none", write_page_checksum=True)
    data, text = path.read_bytes(), tmp_path / "flipped.parquet"
    place = data.index("한".encode())
    text.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    for reader in ("corpus_text", "classifier_table"):
        what, message = outcomes(reader, [[str(text)]])[0]
        assert what == "refused", message
        assert "flipped.parquet" in message


@pytest.mark.parametrize("name", ["kobert", pytest.param("albert_base_v1", marks=pytest.mark.slow)])
@pytest.mark.parametrize("number", [20, pytest.param(150, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_a_damaged_sentencepiece_model_is_used_or_one_line(tmp_path, name, number):
    """A flipped bit within a piece or a score cannot be seen: the format has no checksum."""
    data = real(f"vocab/{name}.model").read_bytes()
    vocabulary = str(real("vocab/kobert_vocab.json")) if name == "kobert" else None
    paths = [tmp_path / f"{seed}.model" for seed in range(number)]
    for seed, path in enumerate(paths):
        path.write_bytes(damaged(data, seed))
    intact, *results = outcomes(
        "sentencepiece", [[str(path), vocabulary] for path in [real(f"vocab/{name}.model"), *paths]]
    )
    assert intact[0] == "read"
    assert_no_crash(results, str(tmp_path))


# -- bombs --------------------------------------------------------------------------------------------------------

MIB = (b"the same words, " * 127 + b"the same line.\n") * ((1 << 20) // 2047)  # long lines: they are read slowly


@pytest.mark.slow
def test_a_compressed_file_that_unpacks_without_end_is_refused(tmp_path):
    """1 GiB in 1 MB of gzip; in 20 kB of Zstandard. What is refused needs no more memory than the limit."""
    with gzip.open(tmp_path / "bomb.txt.gz", "wb", 9) as packed:
        for _ in range(1 << 10):
            packed.write(MIB)
    shutil.copy(tmp_path / "bomb.txt.gz", tmp_path / "bomb.csv.gz")
    with pa.CompressedOutputStream(pa.OSFile(str(tmp_path / "bomb.txt.zst"), "wb"), "zstd") as packed:
        for _ in range(1 << 10):
            packed.write(MIB)
    assert (tmp_path / "bomb.txt.gz").stat().st_size < 4 << 20
    limit = r"bomb\.\w+\.\w+: unpacks to more than [\d,]+ bytes; the limit is 256 MiB, or 200 times the file"
    for reader, name in [
        ("corpus_text", "bomb.txt.gz"),
        ("corpus_text", "bomb.txt.zst"),
        ("classifier_table", "bomb.csv.gz"),
    ]:
        what, message = outcomes(reader, [[str(tmp_path / name)]])[0]
        assert what == "refused", message
        assert re.search(limit, message), message


def test_honest_compressed_files_of_any_size_are_read(tmp_path, monkeypatch):
    """The limit by size, made small here, does not stop text that compresses 100 times."""
    monkeypatch.setattr(files, "MOST_UNPACKED_BYTES", 1 << 10)
    line = random.Random(0).randbytes(300).hex()
    text = "".join(f"{line}{number}\n" for number in range(20_000))
    packed = gzip.compress(text.encode(), 9)
    assert 50 < len(text) / len(packed) < files.MOST_RATIO
    (tmp_path / "a.txt.gz").write_bytes(packed)
    assert files.read_text(tmp_path / "a.txt.gz") == text
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"a" * (1 << 20), 9))
    with pytest.raises(InputError, match=r"b\.txt\.gz: unpacks to more than [\d,]+ bytes"):
        files.read_text(tmp_path / "b.txt.gz")
