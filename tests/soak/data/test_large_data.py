"""Corpora of gigabytes, and thousands of damaged files."""

import os
import subprocess
import sys

import pytest
from harness.corpora import make_texts, write
from harness.mpi import ROOT
from soak.fuzz.run import run

from bert.corpus.shards import find_shards, open_shards
from distributed.order import BlockOrder
from distributed.rows import BatchRows

PEAK = (
    "import resource, sys; from tasks.corpus.__main__ import main; main(sys.argv[1:]); "
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
)


@pytest.mark.timeout(1800)
def test_memory_does_not_grow_with_the_corpus_and_a_gigabyte_is_read_as_written(tmp_path):
    """Peak memory of one process for 50 MB and for 500 MB of text; the shards' rows in the order of the stream."""
    write(tmp_path, make_texts(200), "one.txt")
    one, peaks = (tmp_path / "one.txt").read_bytes() + b"\n\n", []
    for size in (50, 500):
        with (tmp_path / f"{size}.txt").open("wb") as file:
            for _ in range(size * 1_000_000 // len(one)):
                file.write(one)
        given = ["build", f"--input_file={size}.txt", f"--output_dir=of{size}", "--vocab_file=vocab.txt"]
        command = [sys.executable, "-c", PEAK, *given, "--num_workers=1"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout.split()[-1]))
    assert peaks[1] < 1.4 * peaks[0]
    parts, manifest = open_shards(find_shards(str(tmp_path / "of500")))
    rows, tokens = BatchRows(parts), 0
    for start in range(0, len(rows), 1 << 14):
        numbers = BlockOrder(len(rows), 1).rows_at(start, min(start + (1 << 14), len(rows)))
        tokens += int(rows.lengths_at("input_ids", numbers).sum())
    assert len(rows) == manifest["counts"]["examples"]
    assert tokens > manifest["counts"]["tokens"]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("reader", ["shards", "TFRecord", "cached windows", "texts", "SentencePiece"])
def test_a_thousand_kinds_of_damage(tmp_path, reader):
    _, faults = run(tmp_path, 1000, seed=1, names=[reader])
    assert not faults, "\n".join(faults)
