"""bert-launch --restarts: a job that was killed goes on where it had saved, and other ends are final."""

import signal

import pytest
from harness.jobs import assert_gone, launch, program, run, started


def test_a_killed_job_goes_on_where_it_was_as_often_as_allowed(tmp_path):
    with started(launch(2, *program("work.py", tmp_path, "hold"), flags=("--restarts=1",))) as job:
        job.wait_for((tmp_path / "holding").exists)
        first = (tmp_path / "rank-1").read_text()
        (tmp_path / "holding").unlink()  # the second start holds too
        job.strike(tmp_path / "rank-1")
        job.wait_for(lambda: (tmp_path / "holding").exists() and (tmp_path / "rank-1").read_text() != first)
        assert_gone(int(first))
        job.strike(tmp_path / "rank-1")
        done = job.end()
    assert done.status not in (0, 75), done
    assert done.stdout.splitlines() == ["from 0", "from 7"]


@pytest.mark.slow
def test_an_error_of_the_users_is_not_tried_again(tmp_path):
    done = run(launch(2, *program("work.py", tmp_path, "1: refuse()"), flags=("--restarts=3",)))
    assert done.status == 1, done
    assert done.stdout.splitlines() == ["from 0"]


@pytest.mark.slow
def test_a_job_that_a_user_ends_is_not_started_again(tmp_path):
    """The first signal asks the ranks to save; this program has nothing to save, and the second one ends it."""
    with started(launch(2, *program("work.py", tmp_path, "hold"), flags=("--restarts=3",))) as job:
        job.wait_for((tmp_path / "holding").exists)
        job.process.send_signal(signal.SIGINT)
        job.wait_for(lambda: "SIGINT" in job.done().stderr)
        job.process.send_signal(signal.SIGTERM)
        done = job.end()
    assert done.status not in (0, 75), done
    assert done.stdout.splitlines() == ["from 0"]
    assert_gone(*(int((tmp_path / f"rank-{rank}").read_text()) for rank in range(2)))


@pytest.mark.slow
def test_a_rank_that_never_joins_ends_the_job(tmp_path):
    one = 'if [ $OMPI_COMM_WORLD_RANK = 1 ]; then exec sleep 1000; else exec "$@"; fi'
    done = run(launch(2, "sh", "-c", one, "sh", *program("work.py", tmp_path), flags=("--start-timeout=5",)))
    assert done.status not in (0, 75), done
    assert "a process was ended by SIGALRM (not all ranks joined within --start-timeout" in done.stderr
