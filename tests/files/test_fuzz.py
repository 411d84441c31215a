"""Damaged files are read as what was written, or refused in one line that names them
(tests/soak/fuzz)."""

import pytest
from soak.fuzz.run import run

CASES = 300
# Readers of what we write ourselves: whether they refuse damage is up to us alone.
OWN = {"shards", "TFRecord", "cached windows", "manifest"}


@pytest.mark.slow
def test_damaged_files_are_read_right_or_refused(tmp_path):
    counts, faults = run(tmp_path, CASES)
    assert not faults, "\n".join(faults)
    assert counts.total() == CASES
    assert {result for _, result in counts} == {"read", "refused"}, "the cases must reach both"
    assert {reader for reader, _ in counts} >= OWN
