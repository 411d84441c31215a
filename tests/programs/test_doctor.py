"""bert-doctor on one process: a green page, and red ones that say what to do (more in tests/soak/install)."""

import json
import os
import subprocess
import sys

import pytest
from harness.parsing import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]


def doctor(*flags, **variables):
    """The page of a quick run, whose exit status says whether it is green."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1", "COLUMNS": "80", **variables}
    command = [sys.executable, "-m", "tasks.doctor", "--quick", *flags]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, timeout=140)
    page = done.stdout.decode(variables.get("PYTHONIOENCODING", "utf-8"))
    verdict = json.loads(page)["verdict"] if "--json" in flags else page.splitlines()[-1].partition(":")[0]
    assert done.returncode == {"green": 0, "red": 1}[verdict], page + done.stderr.decode()
    assert b"Traceback" not in done.stderr
    return page


def test_a_healthy_machine_is_green_and_nothing_is_left(tmp_path):
    whole = json.loads(doctor("--json", f"--output_dir={tmp_path}/new/run", RINGBERT_CACHE=f"{tmp_path}/cache"))
    assert whole["verdict"] == "green"
    found = {check["name"]: check for check in whole["checks"]}
    assert found["MPI"]["status"] == "ok"
    assert "CPU" in found["GPUs"]["text"]
    assert sum(whole["counts"].values()) == len(whole["checks"])
    assert "not tested" in whole["counts"]
    assert not list(tmp_path.glob("new"))


def test_a_folder_that_cannot_be_written_is_red_with_what_to_do_in_a_page_of_ascii():
    page = doctor("--output_dir=/proc/self/run", PYTHONIOENCODING="ascii")
    lines = page.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\033" not in page  # colours are for terminals
    assert lines[0].startswith("RingBERT ")
    assert "1 failed" in lines[-1]
    assert [line for line in lines if line.startswith("  XX output folder ")]
    assert "--output_dir" in page.partition("\nwhat to do\n")[2]


def test_another_mpis_launcher_is_red():
    """With the variables of MPICH's launcher: two processes, each alone."""
    whole = json.loads(doctor("--json", PMI_SIZE="2", PMI_RANK="0"))
    (check,) = (check for check in whole["checks"] if check["status"] == "failed")
    assert check["name"] == "MPI"
    assert "PMI_SIZE=2" in check["text"]
    assert "bert-launch" in check["advice"][0]
