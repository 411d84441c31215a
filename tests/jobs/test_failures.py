"""A rank that fails, is killed or is stopped: the others end, and the reason is shown once."""

import re
import signal

import pytest
from harness.jobs import assert_gone, held, launch, pids, program, run

FAILED = "failed on rank {} of 2\nTraceback (most recent call last)"
REFUSED = "error: --train_file x.json: broken in line 3\n"
THREAD = "1: import threading; threading.Thread(target=fail).start(); time.sleep(1000)"
FAULTS = {  # what strikes -> exit status, and the beginning of the one error
    "1: fail()": (70, FAILED.format(1)),
    "1: refuse()": (1, REFUSED),
    "refuse()": (1, REFUSED),
    "fail()": (70, FAILED.format(0)),
    "world.on_first(fail)": (70, FAILED.format(0)),
    "world.on_first(refuse)": (1, REFUSED),
    THREAD: (70, FAILED.format(1)),
    "1: sys.exit(3)": (3, "rank 1 of 2 exits: 3\n"),
    "1: sys.exit('the words')": (1, "rank 1 of 2 exits: the words\n"),
    "1: sys.exit(0)": (70, "error: the ranks do different things: "),
    "1: time.sleep(1000)": (70, "error: rank 1 did not arrive at "),
}
SLOW = [pytest.param(fault, marks=pytest.mark.slow) for fault in list(FAULTS)[2:]]


@pytest.mark.parametrize("fault", [*list(FAULTS)[:2], *SLOW])
def test_a_fault_ends_all_ranks_and_is_shown_once(tmp_path, fault):
    done = run(launch(2, *program("work.py", tmp_path, fault)))
    status, error = FAULTS[fault]
    assert done.status == status, done
    assert f"\nprog: {error}" in f"\n{done.stderr}", done
    assert done.stderr.count("prog:") - done.stderr.count("prog: warning") == 1, done
    assert done.stderr.count("Traceback") == error.count("Traceback"), done
    assert_gone(*pids(tmp_path))


def test_a_killed_rank_is_named(tmp_path):
    with held(tmp_path, 2) as job:
        job.strike(tmp_path / "rank-1")
        printed = job.fail().stderr
    assert re.search(r"rank 1\b", printed)
    assert re.search(r"(?i)signal 9|killed", printed)
    assert_gone(*pids(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stopped_rank_is_named_and_the_job_ends(tmp_path, stopped):
    with held(tmp_path, 2) as job:
        job.strike(tmp_path / f"rank-{stopped}", signal.SIGSTOP)
        printed = job.fail().stderr
    (line,) = [line for line in printed.splitlines() if "prog: error:" in line]
    assert re.search(rf"rank {stopped}, process \d+ on \S+, gave its last sign of life \d+ s ago", line)
    assert_gone(*pids(tmp_path))
