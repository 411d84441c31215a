"""bert-doctor on one process: a green page, and red ones that say what to do (more in
tests/soak/install)."""

import json
import sys

import pytest
from harness.jobs import run

from tasks.doctor.program import scaling

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


def test_what_the_sums_leave_of_the_speed_is_that_of_paper():
    """400 MB in 0.2 s, of which a ring of four ranks sends 1.5 times as many; steps of 0.3 s."""
    figures = {"parameters": 100_000_000, "compute_s": 0.25, "apply_s": 0.05, "reduce_s": 0.2}
    assert scaling(figures, 4) == (
        "a sum of 400 MB takes 200 ms (3 GB/s), which leaves 60% of 4 times one rank's speed, and"
        " 92% with --gradient_accumulation_steps 8"
    )


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
