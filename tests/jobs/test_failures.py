"""A rank that fails, is killed or is stopped: the others end, and the reason is shown once."""

import re
import signal

import pytest
from harness.jobs import assert_gone, launch, program, run, started


def fails(folder, fault):
    """A job of two ranks that must not succeed; what it printed as an error."""
    done = run(launch(2, *program("work.py", folder, fault)))
    assert done.status != 0, done
    assert_gone(*ranks(folder))
    return done


def ranks(folder):
    """The process ids of its two ranks."""
    return [int((folder / f"rank-{rank}").read_text()) for rank in range(2)]


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
    with started(launch(2, *program("work.py", tmp_path, "hold"))) as job:
        job.wait_for((tmp_path / "holding").exists)
        job.strike(tmp_path / "rank-1")
        done = job.end()
    assert done.status not in (0, 75), done
    assert re.search(r"rank 1\b", done.stderr), done
    assert re.search(r"(?i)signal 9|killed", done.stderr), done
    assert_gone(*ranks(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stopped_rank_is_named_and_the_job_ends(tmp_path, stopped):
    with started(launch(2, *program("work.py", tmp_path, "hold"))) as job:
        job.wait_for((tmp_path / "holding").exists)
        job.strike(tmp_path / f"rank-{stopped}", signal.SIGSTOP)
        done = job.end()
    assert done.status not in (0, 75), done
    (line,) = [line for line in done.stderr.splitlines() if "prog: error:" in line]
    assert f"rank {stopped}: process" in line
    assert "is stopped" in line
    assert_gone(*ranks(tmp_path))
