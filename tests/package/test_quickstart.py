"""README's first command, with less data and without installing again what this Python already
has."""

import os
import re
import sys
from pathlib import Path

import pytest
from harness.jobs import shell
from harness.mpi import ROOT

LESS = ("--max_train_examples=160", "--num_train_epochs=1", "--log_steps=1")


@pytest.mark.slow
def test_the_quickstart_trains_on_two_ranks_and_shows_scores_and_answers(tmp_path):
    assert "    scripts/quickstart.sh " in (ROOT / "README.md").read_text()
    (tmp_path / "venv").mkdir()
    for path in Path(sys.prefix).iterdir():
        if not path.name.startswith("."):  # what the scripts note about it stays here
            (tmp_path / "venv" / path.name).symlink_to(path)
    (tmp_path / "uv").write_text("#!/bin/sh\n")  # it installs nothing
    (tmp_path / "uv").chmod(0o755)
    variables = {
        "QUICKSTART_DIR": f"{tmp_path}/run",
        "RINGBERT_CACHE": f"{tmp_path}/cache",
        "RINGBERT_VENV": f"{tmp_path}/venv",
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": "",
    }
    done = shell("scripts/quickstart.sh", *LESS, **variables)
    assert "+ bert-launch -np 2 -- bert-squad" in done.stdout
    assert "2 ranks" in done.stderr
    for name in ("untrained/result.json", "trained/predictions.json", "trained/report.html"):
        assert (tmp_path / "run" / name).stat().st_size > 0
    assert re.search(r"trained on 2 ranks +\d", done.stdout)
