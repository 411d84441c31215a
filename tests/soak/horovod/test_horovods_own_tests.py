"""Horovod's own tests of its TensorFlow API on two ranks, with `ringbert.horovod` under Horovod's name.

../shared/horovod holds them, unedited, and the program that runs them; they are not a part of this project.
"""

import json
import os
import subprocess
import sys

import pytest
from harness.mpi import ENVIRONMENT, ROOT

FOLDER = ROOT.parent / "shared" / "horovod"
# docs/horovod.md names these, with the reason of each.
EXCEPTIONS = {"test_horovod_syncbn_cpu", "test_partial_distributed_gradient_tape"}


@pytest.mark.skipif(not FOLDER.exists(), reason=f"{FOLDER} is not there")
def test_horovods_own_tests_pass(tmp_path):
    for module in ("mock", "cloudpickle"):  # imported for helpers that these tests do not call
        (tmp_path / f"{module}.py").touch()
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    driver = [sys.executable, str(FOLDER / "drive.py"), "eager", str(FOLDER / "eager.list")]
    done = subprocess.run(
        [*driver, str(tmp_path / "out"), "2", "1500"],
        env=os.environ | ENVIRONMENT | {"PYTHONPATH": path, "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    outcomes = json.loads((tmp_path / "out.json").read_text())
    assert len(outcomes) == len((FOLDER / "eager.list").read_text().split()), done.stdout
    failed = {
        name.split(":")[-1] for name, ranks in outcomes.items() if {rank[0] for rank in ranks} - {"PASS", "SKIP"}
    }
    assert failed == EXCEPTIONS, done.stdout
