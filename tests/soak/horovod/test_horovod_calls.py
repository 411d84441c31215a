"""Each call of hvd on two and four ranks; Horovod's own tests of its TensorFlow API on two ranks,
with `ringbert.horovod` under Horovod's name.

../shared/horovod holds them, unedited, and the program that runs them; they are not a part of this
project.
"""

import json
import os
import sys

import pytest
from harness.jobs import launch, program, run
from harness.mpi import ROOT

FOLDER = ROOT.parent / "shared" / "horovod"
# docs/horovod.md names these, with the reason of each.
EXCEPTIONS = {"test_horovod_syncbn_cpu", "test_partial_distributed_gradient_tape"}


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_each_call_gives_numpys_numbers(num_ranks):
    """`.ci/run` has three ranks."""
    assert run(launch(num_ranks, *program("horovod_calls.py"))).json()["checks"] > 100


@pytest.mark.skipif(not FOLDER.exists(), reason=f"{FOLDER} is not there")
def test_horovods_own_tests_pass(tmp_path):
    for module in ("mock", "cloudpickle"):  # imported for helpers that these tests do not call
        (tmp_path / f"{module}.py").touch()
    path = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}"}
    names = (FOLDER / "eager.list").read_text().split()
    driver = [
        sys.executable,
        FOLDER / "drive.py",
        "eager",
        FOLDER / "eager.list",
        tmp_path / "out",
        "2",
        "1500",
    ]
    done = run(driver, wait_s=3600, **path)
    ranks = json.loads((tmp_path / "out.json").read_text())
    failed = {
        name for name in names if any(outcome[0] not in ("PASS", "SKIP") for outcome in ranks[name])
    }
    assert {name.split(":")[-1] for name in failed} == EXCEPTIONS, done.stdout
