"""Corpora of hundreds of megabytes."""

import os
import subprocess
import sys

import pytest
from harness.corpora import make_texts, write
from harness.mpi import ROOT

PEAK = (
    "import resource, sys; from tasks.corpus.__main__ import main; main(['build', *sys.argv[1:]]); "
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
)


@pytest.mark.timeout(1800)
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    """Peak memory of one process for 50 MB and for 500 MB of text."""
    write(tmp_path, make_texts(200), "one.txt")
    one, peaks = (tmp_path / "one.txt").read_bytes() + b"\n\n", []
    for size in (50, 500):
        with (tmp_path / f"{size}.txt").open("wb") as file:
            for _ in range(size * 1_000_000 // len(one)):
                file.write(one)
        given = [f"--input_file={size}.txt", f"--output_dir=of{size}", "--vocab_file=vocab.txt", "--num_workers=1"]
        options = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(ROOT)}, "check": True}
        done = subprocess.run([sys.executable, "-c", PEAK, *given], capture_output=True, text=True, **options)
        peaks.append(int(done.stdout.split()[-1]))
    assert peaks[1] < 1.4 * peaks[0]
