"""Damaged files are read as what was written, or refused in one line that names them
(tests/soak/fuzz)."""

import pytest
from soak.fuzz.run import run

CHECKED = ("shards", "TFRecord", "cached windows", "manifest", "classifier", "tagger")


@pytest.mark.parametrize(
    ("cases", "names"), [(60, CHECKED), pytest.param(300, (), marks=pytest.mark.slow)]
)
def test_damaged_files_are_read_right_or_refused(tmp_path, cases, names):
    counts, faults = run(tmp_path, cases, names=names)
    assert not faults, "\n".join(faults)
    assert counts.total() == cases
    assert {result for _, result in counts} == {"read", "refused"}, "the cases must reach both"
