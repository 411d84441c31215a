"""Damaged and hostile files for every reader, from the seed in RINGBERT_FUZZ_SEED."""

import os

import pytest
from soak.fuzz.run import run


@pytest.mark.timeout(3600)
def test_ten_thousand_damaged_files_are_read_right_or_refused_in_one_line(tmp_path):
    counts, faults = run(tmp_path, 10_000, os.environ.get("RINGBERT_FUZZ_SEED", "0"))
    print(*sorted(counts.items()), sep="\n")
    assert not faults, "\n".join(faults)
    assert {result for _, result in counts} == {"read", "refused"}, "the cases must reach both"
