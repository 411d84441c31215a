"""Corpora of gigabytes, all of SQuAD's windows, and all of the quickstart."""

import gzip
import json
import random
import sys

import pytest
from harness.corpora import make_texts, write
from harness.jobs import shell
from harness.mpi import ROOT
from harness.real_data import real
from harness.real_tokenizers import uncased
from harness.squad_files import compare_windows, read_file

from bert.corpus.shards import find_shards, open_shards
from distributed.order import BlockOrder
from distributed.rows import BatchRows
from ringbase.files import read_json
from tasks.squad.settings import WindowSettings

# The kernel's own mark of this program: the one of `resource` begins with the memory of pytest.
PEAK = (
    "import pathlib, sys; from tasks.corpus.__main__ import main; main(sys.argv[1:]); "
    "print(pathlib.Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
)


def peak_of_build(folder, name, *flags):
    """Peak memory, in kB, of one process that builds a corpus from a file of the folder."""
    given = ["build", f"--input_file={name}", f"--output_dir=of_{name}", "--vocab_file=vocab.txt"]
    given += ["--num_workers=1", *flags]
    done = shell(sys.executable, "-c", PEAK, *given, cwd=folder, wait_s=2000)
    return int(done.stdout.split()[-1])


@pytest.mark.timeout(3000)
def test_memory_does_not_grow_with_the_corpus_and_a_gigabyte_is_read_as_written(tmp_path):
    """50 MB of text, 1 GB, and 73 MB of very short lines packed in 0.1 MB; the rows in the stream's
    order."""
    write(tmp_path, make_texts(200), "one.txt")
    one = (tmp_path / "one.txt").read_bytes() + b"\n\n"
    for size in (50, 1000):
        with (tmp_path / f"{size}.txt").open("wb") as file:
            for _ in range(size * 1_000_000 // len(one)):
                file.write(one)
    with gzip.open(tmp_path / "bomb.txt.gz", "wb") as file:
        file.write(one + b"\n" * 50_000_000 + b"!\n" * 10_000_000 + b"!\n\n" * 1_000_000)
    small, large, bomb = (
        peak_of_build(tmp_path, name) for name in ("50.txt", "1000.txt", "bomb.txt.gz")
    )
    print(f"peak memory: {small:,} kB, {large:,} kB, {bomb:,} kB")
    assert large < 1.4 * small
    assert bomb < 2.5 * small  # a million examples of few tokens are sorted together
    parts, manifest = open_shards(find_shards(str(tmp_path / "of_1000.txt")))
    rows, tokens = BatchRows(parts), 0
    for start in range(0, len(rows), 1 << 14):
        numbers = BlockOrder(len(rows), 1).rows_at(start, min(start + (1 << 14), len(rows)))
        tokens += int(rows.lengths_at("input_ids", numbers).sum())
    assert len(rows) == manifest["counts"]["examples"]
    assert tokens > manifest["counts"]["tokens"]


@pytest.mark.timeout(3000)
def test_memory_does_not_grow_with_repeated_documents(tmp_path):
    """20 MB of lines, and 2 GB that repeat them; the same documents are left."""
    write(tmp_path, make_texts(200), "one.txt")
    words = (tmp_path / "one.txt").read_text().split()
    draw = random.Random(1)
    lines = [" ".join(draw.choices(words, k=draw.randint(3, 30))) for _ in range(200_000)]
    once = "".join(f"{line}\n" for line in lines).encode()
    (tmp_path / "small.txt").write_bytes(once)
    with (tmp_path / "large.txt").open("wb") as file:
        for _ in range(2_000_000_000 // len(once)):
            file.write(once)
    flags = "--document_separator=line", "--nonext_sentence", "--deduplicate"
    small, large = (peak_of_build(tmp_path, f"{name}.txt", *flags) for name in ("small", "large"))
    print(f"peak memory: {small:,} kB, {large:,} kB")
    assert large < 2 * small
    reports = [read_json(tmp_path / f"of_{name}.txt/report.json") for name in ("small", "large")]
    assert reports[0]["documents"] == reports[1]["documents"] == len(set(lines))


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("max_seq_length", "expected"), [(384, 88_641), (256, 97_077)])
def test_all_training_windows_of_squad_are_google_s(run, max_seq_length, expected):
    """As many as the published recipe has. 107 labels differ: answers inside a word, which ours
    hold exactly."""
    examples = read_file(real("squad/train-v1.1.json"))
    assert len(examples.questions) == 87_599
    settings = WindowSettings(max_seq_length=max_seq_length)
    number, differences = compare_windows(settings, examples, uncased(), run)
    assert number == expected
    print(len(differences), [each for each in differences if each[0] not in each[2]])
    assert len(differences) == 107
    for answer, _, ours in differences:
        assert answer in ours
        assert len(ours.split()) <= len(answer.split())


@pytest.mark.timeout(1800)
def test_the_quickstart_learns_to_look_names_up(tmp_path):
    """Held-out F1 at least 40 points above the untrained model and above always answering the first
    entry."""
    folders = {
        "RINGBERT_VENV": sys.prefix,
        "QUICKSTART_DIR": str(tmp_path),
        "RINGBERT_CACHE": f"{tmp_path}/cache",
    }
    shell(ROOT / "scripts/quickstart.sh", "--seed", 1, cwd=tmp_path, wait_s=1700, **folders)
    scores = {
        name: values["f1"]
        for name, values in json.loads((tmp_path / "scores.json").read_text()).items()
    }
    assert scores["trained on 2 ranks"] >= scores["untrained"] + 40
    assert scores["trained on 2 ranks"] >= scores["always the first entry"] + 40
