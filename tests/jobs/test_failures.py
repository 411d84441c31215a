"""A rank that fails, is killed or is stopped: the others end, and the reason is shown once."""

import re
import signal

import pytest
from harness.jobs import assert_gone, held, launch, pids, program, run


def fails(folder, fault):
    """A job of two ranks that must not succeed; what it printed as an error."""
    done = run(launch(2, *program("work.py", folder, fault)))
    assert_gone(*pids(folder))
    return done


def test_an_exception_on_one_rank_ends_all_and_is_shown_once(tmp_path):
    done = fails(tmp_path, "1: fail()")
    assert done.status == 70, done
    assert done.stderr.count("Traceback (most recent call last)") == 1, done
    assert done.stderr.count("Planned: the planned failure") == 1, done
    assert "in fail" in done.stderr, done
    assert "rank 1 of 2" in done.stderr, done


@pytest.mark.parametrize("fault", ["1: refuse()", pytest.param("refuse()", marks=pytest.mark.slow)])
def test_an_error_of_the_users_is_one_line_over_all_ranks(tmp_path, fault):
    done = fails(tmp_path, fault)
    assert done.status == 1, done
    assert done.stderr.count("prog:") == 1, done
    assert "prog: error: --train_file x.json: broken in line 3\n" in done.stderr, done
    assert "Traceback" not in done.stderr, done


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
    assert re.search(
        rf"prog: error: .*rank {stopped}, process \d+ on \S+, gave its last sign of life \d+ s ago", printed
    )
    assert printed.count("prog: error:") == 1
    assert_gone(*pids(tmp_path))
