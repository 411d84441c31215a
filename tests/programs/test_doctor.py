"""bert-doctor on one process: a green page, and red ones that say what to do (more in
tests/soak/install)."""

import json
import sys

import pytest
from harness.jobs import run

pytestmark = pytest.mark.slow


def doctor(*flags, **variables):
    """A quick run."""
    done = run([sys.executable, "-m", "tasks.doctor", "--quick", *flags], COLUMNS="80", **variables)
    assert "Traceback" not in done.stderr
    return done


def test_a_healthy_machine_is_green_and_nothing_is_left(tmp_path):
    done = doctor("--json", f"--output_dir={tmp_path}/new/run", RINGBERT_CACHE=f"{tmp_path}/cache")
    whole = json.loads(done.stdout)
    assert (done.status, whole["verdict"]) == (0, "green"), done
    found = {check["name"]: check for check in whole["checks"]}
    assert found["MPI"]["status"] == "ok"
    assert "CPU" in found["devices"]["text"]
    assert sum(whole["counts"].values()) == len(whole["checks"])
    assert not list(tmp_path.glob("*"))


def test_a_folder_that_cannot_be_written_is_red_with_what_to_do_in_a_narrow_page_of_ascii():
    done = doctor("--output_dir=/proc/self/run", PYTHONIOENCODING="ascii")
    lines = done.stdout.splitlines()
    assert done.status == 1
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("RingBERT ")
    assert lines[-1].startswith("red: 1 failed")
    assert (
        "--output_dir" in done.stdout.partition("\n  XX output folder ")[2].partition("\n  ok ")[0]
    )
